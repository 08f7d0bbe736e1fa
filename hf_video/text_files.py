"""Reads the text files that users hand over, within limits: JSON, YAML, CSV and plain text.

Every error is one sentence that begins with the name of the file. No function waits for input: anything but a regular
file, such as a FIFO or a device, is refused before it is opened.
"""

import csv
import errno
import io
import json
import os
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from textwrap import shorten
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic import BaseModel

MAX_TEXT_BYTES = 256 * 2**20

_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def check_regular_file(path: str | os.PathLike) -> None:
    """Refuses a path that is not a regular file, without opening it. Links are followed.

    Raises:
        FileNotFoundError: the path does not exist, or is a link that leads nowhere.
        ValueError: the path is a folder, FIFO, socket or device.
        OSError: the path cannot be examined, for example because it is a link that leads to itself.
    """
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError as error:
        if os.path.islink(path):
            raise FileNotFoundError(
                f"{path} is a link to {os.readlink(os.fspath(path))}, which does not exist."
            ) from error
        raise FileNotFoundError(f"{path} does not exist.") from error
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise OSError(f"{path} is a link that leads back to itself.") from error
    if not stat.S_ISREG(mode):
        raise ValueError(f"{path} is {_KINDS.get(stat.S_IFMT(mode), 'something else')}; a file is expected.")


def read_text(path: str | os.PathLike, *, max_bytes: int = MAX_TEXT_BYTES) -> str:
    """The text of a UTF-8 file. Line ends are kept as they are; a byte order mark is dropped.

    Raises:
        FileNotFoundError, OSError: see `check_regular_file`.
        ValueError: the file is not regular, is larger than `max_bytes`, or is not UTF-8.
    """
    check_regular_file(path)
    with open(path, "rb") as file:
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        size = os.stat(path).st_size
        raise ValueError(
            f"{path} has {size:,} bytes; at most {max_bytes:,} are read of such a file. Is it the right one?"
        )
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(_not_utf8(path, content, error.start)) from error
    if (place := text.find("\0")) >= 0:
        raise ValueError(_not_utf8(path, content, len(text[:place].encode())))
    return text


def read_lines(path: str | os.PathLike, *, max_bytes: int = MAX_TEXT_BYTES) -> list[str]:
    """The lines of a text file with the line ends of any system.

    Raises:
        FileNotFoundError, OSError, ValueError: see `read_text`.
    """
    # str.splitlines also splits at characters that may be part of a name.
    return re.split(r"\r\n?|\n", read_text(path, max_bytes=max_bytes))


def read_json(path: str | os.PathLike, *, max_bytes: int = MAX_TEXT_BYTES) -> Any:
    """The content of a JSON file.

    Raises:
        FileNotFoundError, OSError: see `check_regular_file`.
        ValueError: see `read_text`; or the file is not JSON, an object has a name twice, or the nesting is too deep.
    """
    return _parse_json(path, read_text(path, max_bytes=max_bytes))


def read_object(path: str | os.PathLike, kind: "type[BaseModel] | None" = None) -> dict[str, Any]:
    """The content of a JSON file that holds one object.

    Args:
        path: the file.
        kind: a model of pydantic with the fields that the caller reads.

    Raises:
        FileNotFoundError, OSError: see `check_regular_file`.
        ValueError: see `read_json`; or the file holds no object, or a field has a value of another type.
    """
    from pydantic import ValidationError

    content = read_json(path)
    if not isinstance(content, dict):
        raise ValueError(f"{path} must hold one JSON object, got a {type(content).__name__}.")
    try:
        if kind is not None:
            kind.model_validate(content, strict=True)
    except ValidationError as error:
        wrong = error.errors(include_url=False)[0]
        place, expected = ".".join(map(str, wrong["loc"])), wrong["msg"].partition(" should ")[2]
        problem = f"must {expected}, got {shorten(repr(wrong['input']), 200)}" if expected else "is missing"
        raise ValueError(f"{path}: `{place}` {problem}.") from None
    return content


def read_json_lines(path: str | os.PathLike, *, max_bytes: int = MAX_TEXT_BYTES) -> list[tuple[int, Any]]:
    """(line number, content) for each line of a JSON Lines file that is not blank. Lines count from 1.

    Raises:
        FileNotFoundError, OSError, ValueError: see `read_json`.
    """
    lines = read_text(path, max_bytes=max_bytes).split("\n")
    return [(number, _parse_json(path, line, number)) for number, line in enumerate(lines, start=1) if line.strip()]


def read_yaml(path: str | os.PathLike, *, max_bytes: int = 2**20) -> Any:
    """The content of a YAML file as mappings, lists and strings. Numbers are strings, too, as they are written.

    Raises:
        FileNotFoundError, OSError: see `check_regular_file`.
        ValueError: see `read_text`; or the file is not YAML, has an alias, is nested too deeply, or a mapping has a
            name twice or a name that is not a word.
    """
    import yaml

    class Loader(yaml.BaseLoader):
        def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
            if self.check_event(yaml.AliasEvent):  # a small file of aliases can stand for a huge one
                raise yaml.MarkedYAMLError(None, None, "aliases are not read", self.peek_event().start_mark)
            return super().compose_node(parent, index)

        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[str, Any]:
            names = set()
            for name, _ in node.value:
                problem = "a name is expected before the colon, not a list or mapping"
                if isinstance(name, yaml.ScalarNode) and name.value not in names:
                    names.add(name.value)
                    continue
                problem = f"{name.value!r} is given twice" if isinstance(name, yaml.ScalarNode) else problem
                raise yaml.MarkedYAMLError(None, None, problem, name.start_mark)
            return super().construct_mapping(node, deep)

    try:
        return yaml.load(read_text(path, max_bytes=max_bytes), Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f" (line {mark.line + 1}, column {mark.column + 1})" if mark else ""
        raise ValueError(f"{path} cannot be read as YAML: {error.problem}{place}.") from error
    except yaml.YAMLError as error:  # a character that YAML does not have
        raise ValueError(f"{path} cannot be read as YAML: {' '.join(str(error).split())}.") from error
    except RecursionError:
        raise ValueError(f"{path} is nested too deeply.") from None


def read_csv(path: str | os.PathLike, *, max_bytes: int = MAX_TEXT_BYTES) -> Iterator[tuple[int, list[str]]]:
    """(line number, cells) for each row of a CSV file that is not blank, the header included. Lines count from 1; a
    row of several lines has the number of its last one.

    A space may stand between a comma and a quote. Line ends inside quotes are part of a cell.

    Raises:
        FileNotFoundError, OSError, ValueError: see `read_text`; or a quote is not closed.
    """
    text = read_text(path, max_bytes=max_bytes)
    # Without `strict`, a quote that is never closed would take in the rest of the file.
    rows = csv.reader(io.StringIO(text, newline=""), skipinitialspace=True, strict=True)
    first = 1
    try:
        for row in rows:
            if row:
                yield rows.line_num, row
            first = rows.line_num + 1
    except csv.Error as error:
        raise ValueError(f"{path} cannot be read as CSV: {error} in the row from line {first} on.") from error


def named_rows(
    path: str | os.PathLike, columns: Sequence[str], rows: Iterable[tuple[int, list[str]]]
) -> Iterator[tuple[int, dict[str, str]]]:
    """(line number, cells by column name) for each row of `read_csv`. Cells that a row lacks at its end are "".

    Raises:
        ValueError: two columns have the same name, or a row has more cells than there are columns.
    """
    for name in columns:
        if name and columns.count(name) > 1:
            raise ValueError(f"{path} has the column {name!r} twice. Keep one of them.")
    for line, cells in rows:
        if len(cells) > len(columns):
            raise ValueError(
                f'{path}, line {line} has more cells than the first line. Put values with a comma into quotes: "a,b".'
            )
        yield line, dict(zip_longest(columns, cells, fillvalue=""))


def _not_utf8(path: str | os.PathLike, content: bytes, place: int) -> str:
    line = content.count(b"\n", 0, place) + 1
    return f"{path} is not UTF-8: byte 0x{content[place]:02x} in line {line}. Save it with UTF-8 encoding."


def _parse_json(path: str | os.PathLike, text: str, first_line: int = 1) -> Any:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        content: dict[str, Any] = {}
        for name, value in pairs:
            if name in content:
                raise ValueError(f"{name!r} is given twice in an object")
            content[name] = value
        return content

    try:
        return json.loads(text, object_pairs_hook=unique)
    except RecursionError:
        raise ValueError(f"{path} is nested too deeply.") from None
    except json.JSONDecodeError as error:
        place = f"line {error.lineno + first_line - 1}, column {error.colno}"
        raise ValueError(f"{path} cannot be read as JSON: {error.msg} ({place}).") from error
    except ValueError as error:  # a name given twice, or a number of more digits than Python converts
        place = f", line {first_line}" if first_line > 1 else ""
        raise ValueError(f"{path}{place} cannot be read as JSON: {error}.") from error
