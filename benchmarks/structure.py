"""
The size of one checkout or several, by room: files and lines of the package, and of the tests beside them.

By default it is the checkout that this script stands in. Two, such as git worktrees of two commits, are before and
after: the columns stand side by side. For the package also the lines of code, without docstrings, comments and blank
lines, and what travels to the Hub with a VideoViT and with its processor. Nothing is imported from a checkout: its
source code is read. It takes seconds.

    python benchmarks/structure.py [CHECKOUT ...] [--smoke]
"""

import ast
import io
import tokenize
from collections import Counter
from pathlib import Path

from helpers.measurement import make_parser

ROOT = Path(__file__).resolve().parents[1]
OTHER_FOLDERS = ("benchmarks", "examples", "docs", "model_cards")
SHORT = 60
# Their modules travel to the Hub, and all that these import from beside them.
TRAVELLERS = {"a VideoViT": "VideoViTForVideoClassification", "its processor": "VideoClipProcessor"}
# Tokens of a line without code.
NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def read_sources(root: Path, *folders: str) -> dict[Path, str]:
    """The text of every Python file below the folders, by its path in the checkout."""
    paths = (path for folder in folders for path in sorted((root / folder).rglob("*.py")))
    return {path.relative_to(root): path.read_text(encoding="utf-8") for path in paths}


def count_code(text: str) -> int:
    """Lines that hold code, without docstrings."""
    tokens = [each for each in tokenize.generate_tokens(io.StringIO(text).readline) if each.type not in NO_CODE]
    code = {line for each in tokens for line in range(each.start[0], each.end[0] + 1)}
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, documented) and ast.get_docstring(node) is not None:
            code -= set(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    return len(code)


def find_travelling(package: dict[Path, str], class_name: str) -> dict[Path, str]:
    """The module of a class, and what it imports as `from .x`, directly or through others."""
    found: dict[Path, str] = {}
    waiting = [path for path, text in package.items() if f"\nclass {class_name}(" in text]
    while waiting:
        path = waiting.pop()
        found[path] = package[path]
        nodes = ast.walk(ast.parse(package[path]))
        stems = {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.level == 1}
        beside = {path.with_name(f"{stem}.py") for stem in stems if stem}
        waiting += [each for each in beside - found.keys() if each in package]
    return found


def room_of(path: Path) -> str:
    """The folder of a file, no deeper than two, or three below `models` and `ops`."""
    folders = path.parent.parts
    return "/".join(folders[: 3 if folders[1:2] in (("models",), ("ops",)) else 2])


def by_room(title: str, sources: dict[Path, str]) -> dict[str, str]:
    lines: Counter[str] = Counter()
    for path, text in sources.items():
        lines[room_of(path)] += count_lines(text)
    return {title: size(sources)} | {f"  {room}": f"{number:,}" for room, number in sorted(lines.items())}


def size(sources: dict[Path, str]) -> str:
    return f"{len(sources):,} files, {sum(map(count_lines, sources.values())):,} lines"


def count_lines(text: str) -> int:
    return len(text.splitlines())


def describe(root: Path) -> dict[str, str]:
    """Every figure of a checkout, by what it is.

    Raises:
        SystemExit: the folder has no package.
    """
    if not (root / "hf_video").is_dir():
        raise SystemExit(f"{root} is no checkout of this repository: it has no folder hf_video.")
    package, tests = read_sources(root, "hf_video", "conversion"), read_sources(root, "tests")
    others = read_sources(root, *OTHER_FOLDERS)
    figures = {**by_room("package", package), **by_room("tests", tests), **by_room("others", others)}
    figures["lines of code in the package"] = f"{sum(map(count_code, package.values())):,}"
    figures[f"modules of less than {SHORT} lines"] = str(sum(count_lines(text) < SHORT for text in package.values()))
    for name, class_name in TRAVELLERS.items():
        figures[f"travels with {name}"] = size(find_travelling(package, class_name))
    return figures


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("checkouts", nargs="*", type=Path, default=[ROOT], metavar="CHECKOUT")
    found = [describe(checkout.resolve()) for checkout in parser.parse_args().checkouts]
    for name in dict.fromkeys(name for figures in found for name in figures):
        print(f"{name:<36}" + "".join(f"{figures.get(name, '-'):<32}" for figures in found).rstrip())


if __name__ == "__main__":
    main()
