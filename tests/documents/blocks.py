"""The blocks of code in the Markdown files of the repository, and the commands in blocks of shell."""

import re
import shlex
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
_BLOCK = re.compile(r"^(?:<!-- (cluster|gpu|data) -->\n)?^( *)```([^\n]*)\n(.*?)^\2```$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"# \S+\.(py|toml)(, .*)?\n")
_KEYWORDS = ("if", "then", "else", "elif", "do", "while", "!", "time", "exec")


class Block(NamedTuple):
    """A fenced block of code.

    Attributes:
        place: its page in the repository, and the number of its first line of code.
        mark: `cluster`, `gpu` or `data` if it can only be parsed here.
        is_file: whether its first line names a file that it is a part of.
    """

    place: str
    language: str
    text: str
    mark: str | None
    is_file: bool


def pages() -> list[str]:
    """The paths of the documents in the repository."""
    listed = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [path.relative_to(ROOT).as_posix() for path in listed]


def read_blocks(page: str) -> list[Block]:
    """The blocks of a page in order."""
    text = (ROOT / page).read_text(encoding="utf-8")
    found = []
    for match in _BLOCK.finditer(text):
        mark, indent, language, code = match.groups()
        code = re.sub(f"^{indent}", "", code, flags=re.MULTILINE)
        place = f"{page}:{text.count(chr(10), 0, match.start(4)) + 1}"
        found.append(Block(place, language, code, mark, bool(_FILE.match(code))))
    return found


def commands(text: str) -> list[list[str]]:
    """The words of each command in a piece of shell, without keywords, redirections and variables in front."""
    found: list[list[str]] = []
    for line in text.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        found.append([])
        tokens = iter(lexer)
        for token in tokens:
            if set(token) <= set("<>"):
                next(tokens, None)
            elif set(token) <= set("();&|"):
                found.append([])
            elif found[-1] or not (token in _KEYWORDS or re.match(r"\w+=", token)):
                found[-1].append(token)
    return [words for words in found if words]
