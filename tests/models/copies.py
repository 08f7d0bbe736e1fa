"""
Reads the copies that model families keep of each other's code.

A folder of a family travels to the Hub alone, so two families copy what both need. A comment directly above the copy,
above its decorators, names the source. The convention is that of Transformers (`utils/check_copies.py`):

    # Copied from hf_video.models.videovit.modeling_videovit.VideoViTDropPath with VideoViT->VideoMamba
    class VideoMambaDropPath(nn.Module):

Several replacements are separated by commas. They are applied to the source in their order. `VideoViT->VideoMamba`
also replaces the names of the folders, `videovit->videomamba`. Code, docstrings and comments of a copy are compared;
where lines are broken does not matter. After a change of a source, this brings its copies up to date:

    python -m tests.models.copies && ruff format hf_video
"""

import ast
import io
import re
import textwrap
import tokenize
from dataclasses import dataclass
from difflib import unified_diff
from pathlib import Path

ROOT = Path(__file__).parents[2]
COMMENT = re.compile(
    r"(?P<indentation>\s*)# Copied from (?P<source>[\w.]+)(?: with (?P<replacements>\S+->\S+(, \S+->\S+)*))?"
    r"(?:  # noqa: E501)?$"
)


@dataclass(frozen=True)
class Definition:
    """A class, a function or a method, with `name` as in `Class.method`."""

    file: Path
    line: int
    name: str
    text: str
    copied_from: re.Match | None
    is_guarded: bool

    @property
    def place(self) -> str:
        return f"{self.file}:{self.line} ({self.name})"

    @property
    def family(self) -> str:
        """Name of the folder; `processing` counts as a family."""
        return self.file.parent.name


def read_definitions(file: Path) -> list[Definition]:
    """The definitions of a file, without those inside functions. `is_guarded` is also true inside a guarded class."""
    lines = file.read_text().splitlines()

    def read(node: ast.AST, prefix: str, is_guarded: bool) -> list[Definition]:
        found = []
        for child in ast.iter_child_nodes(node):
            if not isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            first = min([child.lineno, *(decorator.lineno for decorator in child.decorator_list)])
            text = textwrap.dedent("\n".join(lines[first - 1 : child.end_lineno]))
            comment = COMMENT.match(lines[first - 2]) if first > 1 else None
            guarded = is_guarded or comment is not None
            name = prefix + child.name
            found.append(Definition(file, first, name, text, comment, guarded))
            if isinstance(child, ast.ClassDef):
                found += read(child, f"{name}.", guarded)
        return found

    return read(ast.parse("\n".join(lines)), "", False)


def folders(root: Path = ROOT) -> list[Path]:
    """The folders that travel to the Hub: one a family, and `processing`."""
    package = root / "hf_video"
    return sorted(path.parent for path in package.glob("models/*/__init__.py")) + [package / "processing"]


def all_files(root: Path = ROOT) -> list[Path]:
    return [file for folder in folders(root) for file in sorted(folder.glob("*.py"))]


def all_definitions(root: Path = ROOT) -> list[Definition]:
    return [definition for file in all_files(root) for definition in read_definitions(file)]


def normalize(text: str) -> tuple[str, str]:
    """Code and comments of a definition, without the breaks of their lines."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            node.value = " ".join(node.value.split())
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    comments = [each.string for each in tokens if each.type == tokenize.COMMENT and not COMMENT.match(each.string)]
    return ast.unparse(tree), " ".join(" ".join(comments).replace("#", " ").split())


def apply_replacements(text: str, replacements: str | None, families: list[str]) -> str:
    """The text of a source with the replacements of a comment, and those of the folders' names that follow."""
    pairs = [pair.strip().split("->") for pair in replacements.split(",")] if replacements else []
    folder_of = {family.replace("_", ""): family for family in families}
    pairs += [
        [folder_of[old.lower()], folder_of[new.lower()]]
        for old, new in pairs
        if old.lower() in folder_of and new.lower() in folder_of
    ]
    for old, new in pairs:
        text = text.replace(old, new)
    return text


def find_source(name: str, root: Path) -> Definition | None:
    """The definition with a dotted name such as `hf_video.models.x.modeling_x.Class.method`, if there is one."""
    parts = name.split(".")
    for length in range(len(parts) - 1, 0, -1):
        file = root.joinpath(*parts[:length]).with_suffix(".py")
        if file.is_file():
            wanted = ".".join(parts[length:])
            return next((each for each in read_definitions(file) if each.name == wanted), None)
    return None


def expected_text(copy: Definition, root: Path) -> str | None:
    """What the source of a copy is with the replacements; `None` if there is no such source."""
    assert copy.copied_from is not None
    source = find_source(copy.copied_from["source"], root)
    families = [folder.name for folder in folders(root)]
    return source and apply_replacements(source.text, copy.copied_from["replacements"], families)


def differing_copies(root: Path = ROOT) -> list[str]:
    """One message for each comment `# Copied from` that does not hold, with a diff from the source to the copy."""
    problems, definitions = [], all_definitions(root)
    for copy in definitions:
        if copy.copied_from is None:
            continue
        expected = expected_text(copy, root)
        if expected is None:
            problems.append(f"{copy.place}: there is no {copy.copied_from['source']}.")
        elif normalize(expected) != normalize(copy.text):
            texts = expected.splitlines(), copy.text.splitlines()
            problems.append("\n".join(unified_diff(*texts, copy.copied_from["source"], copy.place, lineterm="")))
    understood = {(copy.file, copy.line - 1) for copy in definitions if copy.copied_from is not None}
    for file in all_files(root):
        for number, line in enumerate(file.read_text().splitlines(), 1):
            if line.lstrip().startswith("# Copied from") and (file, number) not in understood:
                problems.append(
                    f"{file}:{number}: expected `# Copied from package.module.Name with Old->New, old->new` directly "
                    f"above a class or function, got `{line.strip()}`."
                )
    return problems


def overwrite_copies(root: Path = ROOT) -> None:
    """Write the text of its source over each copy that differs, and print its place."""
    for file in all_files(root):
        lines = file.read_text().splitlines()
        for copy in reversed(read_definitions(file)):
            expected = expected_text(copy, root) if copy.copied_from else None
            if expected is not None and normalize(expected) != normalize(copy.text):
                indentation = copy.copied_from["indentation"]
                end = copy.line - 1 + len(copy.text.splitlines())
                lines[copy.line - 1 : end] = textwrap.indent(expected, indentation).splitlines()
                file.write_text("\n".join(lines) + "\n")
                print(copy.place)


if __name__ == "__main__":
    overwrite_copies()
