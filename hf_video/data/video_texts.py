"""Lists videos with questions and answers, or with captions."""

import os
import re
from pathlib import Path
from typing import Any

import datasets

from hf_video.io import check_regular_file, named_rows, read_csv, read_json, read_json_lines

from .annotation_files import cell_text, segment
from .places import require_root, sources_by_split

SUFFIXES = (".csv", ".json", ".jsonl")
COLUMNS = ("video", "question", "answer", "start", "end")
MAX_WORDS = 50
_REMOVED = re.compile(r'[.!"()*#:;~]')
_EXPECTED = (
    "Expected a file .csv, .json or .jsonl with `video` and `answer` (or `caption`) and, where they apply, "
    "`question`, `start` and `end` in seconds; or a folder with such files named train, validation and test."
)


def load_video_texts(data: str | os.PathLike, *, video_root: str | os.PathLike | None = None) -> datasets.DatasetDict:
    """List the questions or captions of videos.

    Args:
        data: A file of rows, or a folder of files named after splits. CSV has a first line of names, JSON a list of
            objects, JSON Lines an object a line; UTF-8. Several answers to one question are as many rows; several
            captions of one video are as many rows, or a list.
        video_root: The folder that relative paths count from; by default that of the file.

    Returns:
        The splits found among "train", "validation" and "test"; a file is "train". Columns: `video` (absolute path),
        `question` ("" if there is none), `answer`, `start` and `end` (float64, seconds, or None).

    Raises:
        FileNotFoundError: If `data`, `video_root` or a video that `data` names does not exist.
        ValueError: If there are no such files or rows, or a row lacks a video or an answer, holds a list in place of a
            text, or names a video that is neither file nor folder, such as a FIFO.
    """
    path = Path(data).expanduser().absolute()
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist. {_EXPECTED}")
    require_root(video_root)
    files = _split_files(path) if path.is_dir() else {"train": path}
    splits = {split: _read_rows(file, video_root) for split, file in files.items()}
    features = {name: datasets.Value("float64" if name in ("start", "end") else "string") for name in COLUMNS}
    return datasets.DatasetDict(
        {
            split: datasets.Dataset.from_list(rows, features=datasets.Features(features), split=split)
            for split, rows in splits.items()
        }
    )


def clean_question(text: str) -> str:
    """A question as MA-LMM reads it: in lower case, without the characters . ! " ( ) * # : ; ~, at most 50 words."""
    return _first_words(_REMOVED.sub("", text.lower()))


def clean_answer(text: str) -> str:
    """A caption or answer as MA-LMM learns it: like a question, but each of the characters becomes a space."""
    return _first_words(_REMOVED.sub(" ", text.lower()))


def _first_words(text: str) -> str:
    return " ".join(text.split()[:MAX_WORDS])


def _split_files(folder: Path) -> dict[str, Path]:
    files = sources_by_split((f.stem, f) for f in sorted(folder.iterdir()) if f.suffix.lower() in SUFFIXES)
    if not files:
        raise ValueError(f"{folder} holds no such file. {_EXPECTED}")
    return files


def _read_rows(file: Path, video_root: str | os.PathLike | None) -> list[dict[str, Any]]:
    root = file.parent if video_root is None else Path(video_root).expanduser().absolute()
    suffix = file.suffix.lower()
    if suffix == ".csv":
        rows = read_csv(file)
        _, columns = next(rows, (0, []))
        found = [row for _, row in named_rows(file, columns, rows)]
    elif suffix == ".json":
        found = read_json(file)
    elif suffix == ".jsonl":
        found = [row for _, row in read_json_lines(file)]
    else:
        raise ValueError(f"{file} has another ending. {_EXPECTED}")
    if not found or not isinstance(found, list) or not all(isinstance(row, dict) for row in found):
        raise ValueError(f"{file} has no rows. {_EXPECTED}")
    return [
        _read_row(row, f"{file}, row {number}", root)
        for number, given in enumerate(found, start=1)
        for row in _one_caption_each(given)
    ]


def _one_caption_each(row: dict[str, Any]) -> list[dict[str, Any]]:
    captions = row.get("caption")
    return [row | {"caption": each} for each in captions] if captions and isinstance(captions, list) else [row]


def _read_row(row: dict[str, Any], place: str, root: Path) -> dict[str, Any]:
    question, answer = row.get("question"), row.get("answer", row.get("caption"))
    if not row.get("video") or answer in (None, "", []):
        raise ValueError(f"{place} lacks a video or an answer: {row}. {_EXPECTED}")
    for name, value in {"question": question, "answer": answer}.items():
        if isinstance(value, (list, dict)):
            raise ValueError(f"{place}: the {name} is one text, got {value!r}. Give several answers as many rows.")
    video = root / Path(cell_text(place, "video", row["video"])).expanduser()
    if not video.is_dir():
        try:
            check_regular_file(video)
        except (OSError, ValueError) as error:
            raise type(error)(f"{place}: {error}") from error
    start, end = segment(place, row.get("start"), row.get("end"))
    return {
        "video": str(video),
        "question": "" if question in (None, "") else cell_text(place, "question", question),
        "answer": cell_text(place, "answer", answer),
        "start": start,
        "end": end,
    }
