"""Lists videos with questions and answers, or with captions, reads them as clips, and joins these into batches."""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import datasets
import pyarrow as pa
import torch
from transformers import ProcessorMixin

from .batches import collate_clips
from .clip_dataset import ClipDataset
from .rows import BYTES, is_stored
from .tables import Table, cell_text, only_tables, open_tables, require_videos

COLUMNS = ("video", "question", "answer", "start", "end")
MAX_WORDS = 50
_REMOVED = re.compile(r'[.!"()*#:;~]')
_EXPECTED = (
    "Expected a file .csv, .json, .jsonl or .parquet with `video` and `answer` (or `caption`) and, where they apply, "
    "`question`, `start` and `end` in seconds; a folder with such files named train, validation and test; or a data "
    "set with such columns."
)


def load_video_texts(
    data: str | os.PathLike | datasets.DatasetDict | datasets.Dataset, *, video_root: str | os.PathLike | None = None
) -> datasets.DatasetDict:
    """List the questions or captions of videos.

    Args:
        data: A file of rows, or a folder of files named after splits. CSV has a first line of names, JSON a list of
            objects, JSON Lines an object a line; UTF-8. Or a data set or table of `load_video_dataset` with these
            columns. Several answers to one question are as many rows; several captions of one video are as many rows,
            or a list.
        video_root: The folder that relative paths count from; see `load_video_dataset`.

    Returns:
        The splits found among "train", "validation" and "test"; data without splits are "train". Columns: `video`
        (absolute path or URL), `question` ("" if there is none), `answer`, `start` and `end` (float64, seconds, or
        None); if videos are stored inside the data set, `bytes` holds them and `video` is a name.

    Raises:
        FileNotFoundError: If `data`, `video_root` or a video that `data` names does not exist.
        ValueError: If there are no such files or rows, or a row lacks a video or an answer, holds a list in place of a
            text, or names a video that is neither file nor folder of frames, such as a FIFO.
    """
    tables = only_tables(open_tables(data, video_root, expected=_EXPECTED), _EXPECTED)
    rows = {name: _text_columns(table) for name, table in tables.items()}
    videos = require_videos(tables)
    made = datasets.DatasetDict()
    for name, (numbers, columns) in rows.items():
        of_rows = {"video": videos[name].take(pa.array(numbers, pa.int64())), **columns}
        made[name] = datasets.Dataset(pa.table(of_rows), split=datasets.NamedSplit(name))
        if any(is_stored(tables[name].rows)):
            stored = tables[name].rows.select_columns(BYTES).select(numbers)
            made[name] = datasets.concatenate_datasets([made[name], stored], axis=1)
    return made


def load_captions(
    data: str | os.PathLike | datasets.DatasetDict | datasets.Dataset, *, video_root: str | os.PathLike | None = None
) -> datasets.DatasetDict:
    """List the captions of videos: [`load_video_texts`] of data without questions, with the column `caption` in place
    of `answer`. A row is a caption."""
    splits = load_video_texts(data, video_root=video_root)
    if asked := next((name for name, rows in splits.items() if any(rows["question"])), None):
        raise ValueError(f"The {asked} split of {data} has questions; captions are expected.")
    return splits.remove_columns("question").rename_column("answer", "caption")


def _text_columns(table: Table) -> tuple[list[int], dict[str, pa.Array]]:
    """The columns of texts and times, and the number of the table's row that each is of: one for each caption."""
    answer = next((name for name in ("answer", "caption") if name in table), None)
    if answer is None:
        raise ValueError(
            f"{table.name} has the columns {', '.join(table.names)}: 'answer' or 'caption' is missing. {_EXPECTED}"
        )
    numbers, texts = [*range(len(table))], table.column(answer)
    if answer == "caption" and pa.types.is_list(texts.type):
        lists = [captions or [None] for captions in texts.to_pylist()]
        numbers = [number for number, captions in enumerate(lists) for _ in captions]
        texts = pa.array([each for captions in lists for each in captions], pa.string())
    table = table.select(numbers)
    columns = {
        "question": table.converted(table.column("question"), "question", _question, pa.string()),
        "answer": table.converted(texts, answer, cell_text, pa.string()),
        **table.times(),
    }
    return numbers, columns


def _question(place: str, name: str, value: Any) -> str:
    return "" if value is None or value == "" else cell_text(place, name, value)


def clean_question(text: str) -> str:
    """A question as MA-LMM reads it: in lower case, without the characters . ! " ( ) * # : ; ~, at most 50 words."""
    return _first_words(_REMOVED.sub("", text.lower()))


def clean_answer(text: str) -> str:
    """A caption or answer as MA-LMM learns it: like a question, but each of the characters becomes a space."""
    return _first_words(_REMOVED.sub(" ", text.lower()))


class VideoTextDataset(ClipDataset):
    """The clips of a data set of `load_video_texts` with their texts.

    An item is that of a [`ClipDataset`] without labels, with one view of the video. Besides it has `text`, the prompt,
    and `text_target`, the answer; both are cleaned.

    Args:
        dataset: Rows with `video`, `question`, `answer` and, optionally, `start` and `end`.
        processor: A [`MemoryBankQFormerProcessor`].
        prompt: The prompt; {} stands for the question.
        kwargs: Those of [`ClipDataset`].

    Raises:
        ValueError: If there are questions and the prompt has no {}, or the prompt has one and a row has no question;
            and for the reasons of [`ClipDataset`].
    """

    def __init__(self, dataset: datasets.Dataset, processor: ProcessorMixin, prompt: str = "{}", **kwargs: Any):
        questions = set(dataset["question"][:])
        if "{}" in prompt and "" in questions:
            raise ValueError(f"The prompt {prompt!r} has a place for questions, but some rows have no question.")
        if "{}" not in prompt and questions != {""}:
            raise ValueError(f"The data have questions, but the prompt {prompt!r} has no place {{}} for them.")
        super().__init__(dataset, processor.video_processor, **kwargs)
        self.prompt = prompt

    def make_item(self, index: int, key: tuple[int, ...]) -> Any:
        item, row = super().make_item(index, key), self.dataset[index]
        item["text"] = self.prompt.replace("{}", clean_question(row["question"]))
        item["text_target"] = clean_answer(row["answer"])
        return item


@dataclass
class VideoTextCollator:
    """
    Joins items of a [`VideoTextDataset`] into the inputs of a model that answers.

    Args:
        processor: A [`MemoryBankQFormerProcessor`].
        max_length: Largest number of tokens of a prompt, see the processor.
        max_target_length: Largest number of tokens of an answer, see the processor.
        with_targets: Whether the inputs have the answers, to train on; otherwise they are inputs to generate from.
    """

    processor: ProcessorMixin
    max_length: int | None = None
    max_target_length: int | None = None
    with_targets: bool = True

    def __call__(self, items: Sequence[Mapping[str, Any] | None]) -> dict[str, torch.Tensor]:
        """
        Args:
            items: Items of the data set. None stands for a video that could not be read, and is left out.

        Raises:
            ValueError: If no item is left, the clips differ in their shapes, or have several views.
        """
        readable = [item for item in items if item is not None]
        texts = {
            name: [item[name] for item in readable]
            for name in ("text", *(("text_target",) if self.with_targets else ()))
        }
        clips = [{name: item[name] for name in item if name not in ("text", "text_target")} for item in readable]
        batch = collate_clips(clips)
        if len(batch["pixel_values"]) != len(readable) or batch["pixel_values"].ndim != 5:
            raise ValueError(
                "A video to answer about has one view: use num_clips=1, num_crops=1, num_augmentations=1."
            )
        inputs = self.processor(
            **texts, max_length=self.max_length, max_target_length=self.max_target_length, return_tensors="pt"
        )
        return {"pixel_values": batch["pixel_values"], **inputs}


def _first_words(text: str) -> str:
    return " ".join(text.split()[:MAX_WORDS])
