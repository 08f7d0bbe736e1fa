"""What folders of rows and folders of files share: refusals, and texts."""

from collections.abc import Sequence
from typing import Any


def reason_of(error: Exception) -> str:
    """The error in words."""
    return str(error) or type(error).__name__


def as_utf8(text: str) -> str:
    """The text for a column. Names of files, and messages with them, may have bytes that are not UTF-8."""
    return text.encode(errors="backslashreplace").decode()


def require_no_files(place: str, is_file: bool, names: Sequence[str]) -> None:
    """Raises `ValueError` if a place that no run has begun is a file, or a folder with files."""
    visible = sorted(name for name in names if not name.startswith("."))
    if is_file:
        raise ValueError(f"{place} is a file; a folder is expected.")
    if visible:
        listed = ", ".join(visible[:3]) + (", ..." if len(visible) > 3 else "")
        raise ValueError(f"{place} has other files ({listed}): choose another folder for the results.")


def require_same_settings(place: str, contents: str, known: dict[str, Any], key: dict[str, Any]) -> None:
    """Raises `ValueError` if what a place has follows from another key: outputs of different settings are never
    mixed."""

    def difference(name: str) -> str:
        values = known.get(name), key.get(name)
        is_short = not isinstance(values[1], dict) and sum(len(str(value)) for value in values) < 60
        return f"{name} {values[0]!r}, not {values[1]!r}" if is_short else f"other {name}"

    if differing := sorted(name for name in key.keys() | known.keys() if known.get(name) != key.get(name)):
        raise ValueError(
            f"{place} has {contents} of other settings ({'; '.join(map(difference, differing))}), which are never "
            "mixed: choose another folder, or the same settings."
        )
