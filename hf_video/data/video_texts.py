"""Lists videos with questions and answers, or with captions."""

import os
import re
from typing import Any

import datasets
import pyarrow as pa

from .tables import Table, cell_text, open_tables, require_videos

MAX_WORDS = 50
_REMOVED = re.compile(r'[.!"()*#:;~]')
_EXPECTED = (
    "Expected a file .csv, .json, .jsonl or .parquet with `video` and `answer` (or `caption`) and, where they apply, "
    "`question`, `start` and `end` in seconds; a folder with such files named train, validation and test; or a data "
    "set with such columns."
)


def load_video_texts(
    data: str | os.PathLike | datasets.DatasetDict | datasets.Dataset,
    *,
    video_root: str | os.PathLike | None = None,
    **options: Any,
) -> datasets.DatasetDict:
    """List the questions or captions of videos.

    Data are a file of rows (CSV with a first line of names, JSON, JSON Lines), a folder of files named after splits,
    or a data set or table of `load_video_dataset` with these columns. Several answers to one question are as many
    rows; several captions of one video are as many rows, or a list. For the options see `load_video_dataset`.

    Returns the splits found among "train", "validation" and "test"; data without splits are "train". Columns: `video`
    (absolute path or URL), `question` ("" if there is none), `answer`, `start` and `end` (float64, seconds, or None);
    if videos are stored inside the data set, `bytes` holds them and `video` is a name. Raises `FileNotFoundError` for
    data, a folder or a video that do not exist, `ValueError` for a row without a video or an answer."""
    tables = open_tables(data, video_root, expected=_EXPECTED, **options)
    texts = {name: _texts(table) for name, table in tables.items()}
    videos = require_videos(tables)
    made = datasets.DatasetDict()
    for name, (rows, columns) in texts.items():
        found = pa.table({"video": videos[name].take(pa.array(rows, pa.int64())), **columns})
        made[name] = tables[name].with_files(datasets.Dataset(found, split=datasets.NamedSplit(name)), rows)
    return made


def load_captions(data: Any, **options: Any) -> datasets.DatasetDict:
    """List the captions of videos: [`load_video_texts`] of data without questions, with the column `caption` in place
    of `answer`."""
    splits = load_video_texts(data, **options)
    if asked := next((name for name, rows in splits.items() if any(rows["question"])), None):
        raise ValueError(f"The {asked} split of {data} has questions; captions are expected.")
    return splits.remove_columns("question").rename_column("answer", "caption")


def _texts(table: Table) -> tuple[list[int], dict[str, pa.Array]]:
    """The number of the row of each text, which for several captions comes several times, and the columns."""
    answer = "answer" if "answer" in table else "caption"
    if answer not in table:
        raise ValueError(
            f"{table.name} has the columns {', '.join(table.rows.column_names)}: 'answer' or 'caption' is missing. "
            f"{_EXPECTED}"
        )
    rows, texts = [*range(len(table))], table.column(answer)
    if answer == "caption" and pa.types.is_list(texts.type):
        lists = [captions or [None] for captions in texts.to_pylist()]
        rows = [row for row, captions in enumerate(lists) for _ in captions]
        texts = pa.array([each for captions in lists for each in captions], pa.string())
    table = table.select(rows)
    questions = table.converted(table.column("question"), "question", _question, pa.string())
    answers = table.converted(texts, answer, cell_text, pa.string())
    return rows, {"question": questions, "answer": answers, **table.times()}


def _question(place: str, name: str, value: Any) -> str:
    return "" if value is None or value == "" else cell_text(place, name, value)


def clean_question(text: str) -> str:
    """A question as MA-LMM reads it: in lower case, without the characters . ! " ( ) * # : ; ~, at most 50 words."""
    return " ".join(_REMOVED.sub("", text.lower()).split()[:MAX_WORDS])


def clean_answer(text: str) -> str:
    """A caption or answer as MA-LMM learns it: like a question, but each of the characters becomes a space."""
    return clean_question(_REMOVED.sub(" ", text))
