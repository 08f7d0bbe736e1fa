"""
The structure of one checkout or several, by default of the one that this script stands in. It takes seconds.

For the package its files and lines, with and without docstrings, comments and blank lines, its modules of less than 60
lines, and what travels to the Hub with a VideoViT and with its processor. For each folder its files and lines; layers
and imports between folders; the longest files; settings that are declared in several places; lines that two model
families share without a `# Copied from` comment. Two checkouts, such as git worktrees of two commits, are before and
after. Nothing is imported from them: their source code is read.

    python benchmarks/structure.py [CHECKOUT ...] [--smoke]
"""

import ast
import io
import sys
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

from helpers.measurement import make_parser  # noqa: E402

CODE_FOLDERS = ("hf_video", "conversion", "examples", "benchmarks", "model_cards")
# Where settings are declared.
SETTINGS_FOLDERS = ("cli", "training", "data", "inference", "app")
SETTINGS_TABLES = ("DEFAULTS", "FIELDS_WITH_OPTIONS")
SHORT = 60
# Their modules travel to the Hub, and all that these import from beside them.
TRAVELLERS = {"a VideoViT": "VideoViTForVideoClassification", "its processor": "VideoClipProcessor"}
# Tokens of a line without code.
_NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


class Source:
    """A Python file of a checkout.

    Attributes:
        name: Path below the checkout.
        room: Name of its folder in the package; of the module for a file beside the folders.
        tree: What it parses to.
        num_code_lines: Lines that hold code, without docstrings.
    """

    def __init__(self, path: Path, root: Path) -> None:
        self.text = path.read_text(encoding="utf-8")
        self.name = path.relative_to(root)
        self.num_lines = len(self.text.splitlines())
        parts = self.name.with_suffix("").parts
        # The wheel installs `conversion` as a folder of the package.
        self.module = parts if parts[0] == "hf_video" else ("hf_video", *parts)
        self.room = self.module[1] if len(self.module) > 1 else "hf_video"

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, str(self.name))

    @property
    def num_code_lines(self) -> int:
        return len(_lines_of_code(self.text) - _lines_of_docstrings(self.tree))


def _lines_of_code(text: str) -> set[int]:
    tokens = [each for each in tokenize.generate_tokens(io.StringIO(text).readline) if each.type not in _NO_CODE]
    return {line for each in tokens for line in range(each.start[0], each.end[0] + 1)}


def _lines_of_docstrings(tree: ast.Module) -> set[int]:
    return {
        line
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None
        for line in range(node.body[0].lineno, node.body[0].end_lineno + 1)
    }


def read_sources(root: Path, *folders: str) -> list[Source]:
    return [Source(path, root) for folder in folders for path in sorted((root / folder).rglob("*.py"))]


def imported_rooms(source: Source, rooms: set[str]) -> Iterator[tuple[str, bool]]:
    """The folders of the package that a file imports from, and whether `except ImportError` stands behind the import.

    One row an import statement and folder. A name that the package itself exports is imported from `__init__`.
    """
    guarded = {
        id(inner)
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Try)
        and any(each.type and "ImportError" in ast.unparse(each.type) for each in node.handlers)
        for statement in node.body
        for inner in ast.walk(statement)
    }
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import):
            targets = [tuple(alias.name.split(".")) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            start = source.module[: -node.level] if node.level else ()
            stem = (*start, *(node.module.split(".") if node.module else ()))
            targets = [(*stem, alias.name) for alias in node.names]
        else:
            continue
        found = {
            path[1] if len(path) > 1 and path[1] in rooms else "__init__" for path in targets if path[0] == "hf_video"
        }
        for room in sorted(found - {source.room}):
            yield room, id(node) in guarded


def travelling(sources: list[Source], class_name: str) -> list[Source]:
    """The files that `hf_video.hub.custom_code` sends with a class: its module, and what that imports as `from .x`."""
    modules = {source.module: source for source in sources}
    waiting = [
        source
        for source in sources
        if any(isinstance(node, ast.ClassDef) and node.name == class_name for node in source.tree.body)
    ]
    found: dict[tuple[str, ...], Source] = {}
    while waiting:
        source = waiting.pop()
        found[source.module] = source
        stems = {node.module for node in ast.walk(source.tree) if isinstance(node, ast.ImportFrom) and node.level == 1}
        beside = {(*source.module[:-1], stem) for stem in stems if stem}
        waiting += [modules[each] for each in beside - found.keys() if each in modules]
    return list(found.values())


def find_layers(arrows: set[tuple[str, str]], rooms: set[str]) -> list[list[tuple[str, ...]]]:
    """Layers from the bottom to the top: each imports from layers below it alone.

    Folders that import each other, directly or in a ring, are one entry of their layer.
    """
    reached = {room: {room} for room in rooms}
    for _ in rooms:
        for importer, imported in arrows:
            reached[importer] |= reached[imported]
    rings = {tuple(sorted(other for other in reached[room] if room in reached[other])) for room in rooms}
    layers: list[list[tuple[str, ...]]] = []
    below: set[str] = set()
    while rings:
        layer = sorted(ring for ring in rings if reached[ring[0]] <= below | set(ring))
        layers.append(layer)
        rings -= set(layer)
        below |= {room for ring in layer for room in ring}
    return layers


def declared_settings(source: Source) -> Iterator[tuple[str, str, str]]:
    """Name, kind of place and text of each declaration of a setting.

    It is an option of a parser, a field with a default in a dataclass, or a key in a table of all settings.
    """
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", None) == "add_argument":
            for word in node.args:
                if isinstance(word, ast.Constant) and str(word.value).startswith("--"):
                    text = sorted(ast.unparse(keyword) for keyword in node.keywords)
                    yield word.value[2:].replace("-", "_"), "option", " ".join(text)
        elif isinstance(node, ast.ClassDef) and any("dataclass" in ast.unparse(each) for each in node.decorator_list):
            for field in node.body:
                if isinstance(field, ast.AnnAssign) and field.value is not None:
                    yield ast.unparse(field.target), "field", ast.unparse(field.annotation) + ast.unparse(field.value)
        elif isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Dict):
            target = ast.unparse(node.targets[0] if isinstance(node, ast.Assign) else node.target)
            if target in SETTINGS_TABLES:
                yield from ((key.value, target, "") for key in node.value.keys if isinstance(key, ast.Constant))


def find_repeated_settings(sources: list[Source]) -> tuple[int, list[str]]:
    """The number of names of settings, and those that are declared twice.

    That is in places of two kinds, or twice in the same words. Two commands may have options of one name that differ.
    """
    kinds, declarations = defaultdict(set), Counter()
    for source in sources:
        for name, kind, text in declared_settings(source):
            kinds[name].add(kind)
            declarations[name, kind, text] += 1
    twice = {name for name in kinds if len(kinds[name]) > 1}
    twice |= {name for (name, _, _), count in declarations.items() if count > 1}
    return len(kinds), sorted(twice)


def longest(sources: list[Source]) -> str:
    source = max(sources, key=lambda each: each.num_lines)
    return f"{source.num_lines:,} ({source.name})"


def _size(sources: list[Source]) -> str:
    return f"{len(sources):,} files, {sum(each.num_lines for each in sources):,} lines"


def describe(root: Path) -> dict[str, str]:
    """Every figure of a checkout, by what it is."""
    if not (root / "hf_video").is_dir():
        raise SystemExit(f"{root} is no checkout of this repository: it has no folder hf_video.")
    code, tests = read_sources(root, *CODE_FOLDERS), read_sources(root, "tests")
    package = [each for each in code if each.name.parts[0] in ("hf_video", "conversion")]
    figures = {}

    num_code_lines = sum(each.num_code_lines for each in package)
    figures["package"] = f"{_size(package)}, {num_code_lines:,} of them code"
    figures[f"modules of less than {SHORT} lines"] = str(sum(each.num_lines < SHORT for each in package))
    for name, class_name in TRAVELLERS.items():
        figures[f"travels with {name}"] = _size(travelling(package, class_name))

    sizes: dict[str, list[int]] = defaultdict(list)
    for source in (*code, *tests):
        parent = source.name.parent
        sizes[str(Path(*parent.parts[: 3 if parent.parts[1:2] in (("models",), ("ops",)) else 2]))].append(
            source.num_lines
        )
    for kind, members in (("code", code), ("tests", tests)):
        figures[kind] = _size(members)
        for folder in sorted({name for name in sizes if (name.split("/")[0] == "tests") == (kind == "tests")}):
            figures[f"  {folder}"] = f"{len(sizes[folder]):,} files, {sum(sizes[folder]):,} lines"

    rooms = {each.room for each in package}
    arrows: Counter[tuple[str, str]] = Counter()
    guarded: Counter[tuple[str, str]] = Counter()
    for source in package:
        for room, is_guarded in imported_rooms(source, rooms):
            arrows[source.room, room] += 1
            guarded[source.room, room] += is_guarded
    layers = find_layers(set(arrows), rooms)
    ring_of = {room: ring for layer in layers for ring in layer for room in ring}
    figures["layers"] = str(len(layers))
    for number, layer in reversed(list(enumerate(layers, 1))):
        figures[f"  layer {number}"] = " | ".join(" <-> ".join(ring) for ring in layer)
    figures["arrows between folders"] = f"{len(arrows)} ({arrows.total()} imports)"
    in_rings = sum(ring_of[importer] == ring_of[imported] for importer, imported in arrows)
    figures["arrows within rings"] = str(in_rings)
    for importer in sorted(rooms):
        row = [
            f"{imported} {count}" + (" (guarded)" if guarded[importer, imported] == count else "")
            for (start, imported), count in sorted(arrows.items())
            if start == importer
        ]
        if row:
            figures[f"  {importer} >"] = ", ".join(row)

    modeling = [each for each in package if each.name.name.startswith("modeling_")]
    figures["longest modeling file"] = longest(modeling)
    figures["longest other file"] = longest([each for each in code if each not in modeling])
    figures["longest file of tests"] = longest(tests)

    num_settings, repeated = find_repeated_settings([each for each in package if each.room in SETTINGS_FOLDERS])
    figures["settings"] = str(num_settings)
    figures["settings declared twice"] = " ".join([str(len(repeated)), *repeated])

    return figures


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("checkouts", nargs="*", type=Path, default=[ROOT], metavar="CHECKOUT")
    for checkout in parser.parse_args().checkouts:
        print(f"\n{checkout}")
        for name, value in describe(checkout.resolve()).items():
            print(f"  {name:<36} {value}")


if __name__ == "__main__":
    main()
