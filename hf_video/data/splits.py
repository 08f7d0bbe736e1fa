"""Finds splits by the names that `datasets` knows: training, val, eval, ..."""

from collections.abc import Iterable
from pathlib import Path

from datasets.data_files import SPLIT_KEYWORDS

SPLITS = tuple(map(str, SPLIT_KEYWORDS))


def split_of(name: str) -> str | None:
    """The split, "train", "validation" or "test", that a name stands for; None if it stands for none."""
    return next((str(split) for split, words in SPLIT_KEYWORDS.items() if name.lower() in words), None)


def sources_by_split(names: Iterable[tuple[str, Path]]) -> dict[str, Path]:
    """The file or folder of each split, in the order train, validation, test.

    Args:
        names: pairs of a name and its file or folder; names of no split are left out.

    Raises:
        ValueError: two names stand for one split.
    """
    found: dict[str, Path] = {}
    for name, source in names:
        split = split_of(name)
        if split is None:
            continue
        if split in found:
            raise ValueError(f"{found[split]} and {source.name} both name the split {split!r}. Keep one of them.")
        found[split] = source
    return {str(split): found[split] for split in SPLIT_KEYWORDS if split in found}
