"""Reads the segments of untrimmed videos in the two JSON layouts of ActivityNet: predictions and ground truth.

Source: the evaluation kit of ActivityNet, https://github.com/activitynet/ActivityNet/tree/master/Evaluation.
"""

import math
import os
from typing import Any, NamedTuple

from hf_video.settings import closest
from hf_video.text_files import read_json


class LabelledSegment(NamedTuple):
    """What happens in a part of a video.

    Attributes:
        label: name of the class.
        start: begin in seconds.
        end: end in seconds.
        score: confidence of a prediction; 1 for an annotation.
    """

    label: str
    start: float
    end: float
    score: float = 1.0


def read_predictions(path: str | os.PathLike) -> dict[str, list[LabelledSegment]]:
    """The predicted segments of each video, in the order of the file.

    Args:
        path: a file `{"results": {VIDEO: [{"label": ..., "score": ..., "segment": [start, end]}, ...]}}`; other keys
            are not read.

    Raises:
        FileNotFoundError, OSError, ValueError: see `read_json`; or a part of the file is not of this layout, a number
            is not finite, or a segment ends before it starts.
    """
    results = _read_videos(path, "results", "predictions")
    found = {}
    for video, entries in results.items():
        where = f"{path}, results of {video!r}"
        found[video] = [_read_segment(entry, where, has_score=True) for entry in _list(entries, where)]
    for video, segments in found.items():
        for segment in segments:
            if segment.end < segment.start:
                raise ValueError(
                    f"{path}, results of {video!r}: a segment of {segment.label!r} ends at {segment.end:g} s, before "
                    f"it starts at {segment.start:g} s. Write [start, end]."
                )
    return found


def read_ground_truth(path: str | os.PathLike, subset: str | None = None) -> dict[str, list[LabelledSegment]]:
    """The annotated segments of each video, in the order of the file. A segment may be empty or end before it starts,
    since published annotations have such mistakes.

    Args:
        path: a file `{"database": {VIDEO: {"subset": ..., "annotations": [{"label": ..., "segment": [start, end]},
            ...]}}}`; other keys are not read.
        subset: only videos of this subset, such as "validation"; by default all videos.

    Raises:
        FileNotFoundError, OSError, ValueError: see `read_json`; or a part of the file is not of this layout, a number
            is not finite, or no video is of the subset.
    """
    database = _read_videos(path, "database", "ground truth")
    found, subsets = {}, set()
    for video, entry in database.items():
        where = f"{path}, video {video!r}"
        if not isinstance(entry, dict):
            raise ValueError(f'{where}: {_shown(entry)} stands in the place of an object with "annotations".')
        subsets.add(str(entry.get("subset")))
        if subset is not None and entry.get("subset") != subset:
            continue
        if "annotations" not in entry:
            raise ValueError(f'{where} has no "annotations". A video in which nothing happens has an empty list.')
        found[video] = [_read_segment(one, where, has_score=False) for one in _list(entry["annotations"], where)]
    if not found and subset is not None:
        hint = closest(subset, subsets)
        others = ", ".join(sorted(subsets)) or "none"
        raise ValueError(f"{path} has no video of the subset {subset!r}, only of {others}. {hint}".rstrip())
    return found


def _read_videos(path: str | os.PathLike, key: str, what: str) -> dict[str, Any]:
    content = read_json(path)
    if not isinstance(content, dict) or not isinstance(content.get(key), dict):
        other = {"results": "database", "database": "results"}[key]
        swapped = isinstance(content, dict) and other in content
        hint = " Are the two files in the wrong order?" if swapped else ""
        raise ValueError(
            f'{path} is not a file of {what}: an object with "{key}", an object of videos, is expected.{hint}'
        )
    return content[key]


def _list(entries: Any, where: str) -> list[Any]:
    if not isinstance(entries, list):
        raise ValueError(f"{where}: {_shown(entries)} stands in the place of a list of segments.")
    return entries


def _read_segment(entry: Any, where: str, has_score: bool) -> LabelledSegment:
    if not isinstance(entry, dict):
        raise ValueError(f"{where}: {_shown(entry)} stands in the place of a segment, an object.")
    for name in ("label", "segment", *(["score"] if has_score else [])):
        if name not in entry:
            raise ValueError(f'{where}: the segment {_shown(entry)} has no "{name}".')
    label, times, score = entry["label"], entry["segment"], entry["score"] if has_score else 1.0
    if not isinstance(label, str):
        raise ValueError(f"{where}: the label {_shown(label)} is no text.")
    if not (isinstance(times, list) and len(times) == 2 and all(map(_is_finite, times))):
        raise ValueError(f"{where}: the segment {_shown(times)} of {label!r} is not [start, end], numbers of seconds.")
    if not _is_finite(score):
        raise ValueError(f"{where}: the score {_shown(score)} of a segment of {label!r} is no finite number.")
    return LabelledSegment(label, float(times[0]), float(times[1]), float(score))


def _is_finite(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number beyond the range of floats
        return False


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
