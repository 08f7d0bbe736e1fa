"""The blocks of code in the Markdown files of the repository, and the commands in blocks of shell."""

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
LANGUAGES = ("bash", "python", "yaml", "toml", "json", "text", "console")
MARKS = ("cluster", "gpu", "data")

_BLOCK = re.compile(r"^(?:<!-- (\w+) -->\n)?^( *)```([^\n]*)\n(.*?)^\2```$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"# (\S+\.(?:py|toml))(?:, .*)?\n")
# A line that begins a construct of several lines.
_COMPOUND = re.compile(r"^\s*(#!|if |for |while |case |function )|<<", re.MULTILINE)


class Block(NamedTuple):
    """A fenced block of code.

    Attributes:
        page: the path of its file in the repository.
        line: the number of its first line of code.
        mark: `cluster`, `gpu` or `data` if it can only be parsed here.
        file: the path of the file that it is the content of, or a part of; its first line names it.
    """

    page: str
    line: int
    language: str
    text: str
    mark: str | None
    file: str | None


class Command(NamedTuple):
    """A line of shell, with its continuations; or a whole block, if it has a construct of several lines."""

    line: int
    text: str


def pages() -> list[str]:
    """The paths of the documents in the repository."""
    listed = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [path.relative_to(ROOT).as_posix() for path in listed]


def read_blocks(page: str, text: str | None = None) -> list[Block]:
    """The blocks of a page in order; `text` is its content, by default that of the file."""
    text = (ROOT / page).read_text(encoding="utf-8") if text is None else text
    found = []
    for match in _BLOCK.finditer(text):
        mark, indent, language, code = match.groups()
        code = re.sub(f"^{indent}", "", code, flags=re.MULTILINE)
        file = _FILE.match(code)
        line = text.count("\n", 0, match.start(4)) + 1
        found.append(Block(page, line, language, code, mark, file[1] if file else None))
    return found


def commands(block: Block) -> list[Command]:
    """The commands of a block of shell, in order."""
    if _COMPOUND.search(block.text):
        return [Command(block.line, block.text)]
    joined = re.finditer(r"(?:[^\n]*\\\n)*[^\n]+", block.text)
    return [
        Command(block.line + block.text.count("\n", 0, match.start()), match[0])
        for match in joined
        if not match[0].lstrip().startswith("#")
    ]
