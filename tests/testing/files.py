"""What is in a folder, and things in the place of a file: folders, FIFOs and broken links."""

from pathlib import Path


def files_of(folder: Path) -> dict[str, bytes]:
    """The contents of all files in a folder, by their paths below it."""
    files = sorted(path for path in Path(folder).rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}
