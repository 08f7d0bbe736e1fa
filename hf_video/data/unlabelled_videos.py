"""Lists videos to learn from without labels: of a folder, a list, or anything that holds labelled videos."""

import os
from pathlib import Path

from datasets import Dataset, DatasetDict, Features, Value

from hf_video.reading.sources import is_url

from .annotation_files import ANNOTATION_SUFFIXES, Clip, read_annotations
from .manifest import find_manifest
from .splits import sources_by_split
from .video_column import find_dataset
from .video_dataset import find_splits, load_video_dataset, visible_entries
from .video_listing import videos_below

_EXPECTED = (
    "Expected a folder with videos at any depth; a list of paths (CSV, .txt or JSON), with or without labels; a "
    "manifest; a pack; or a data set with a column of the feature Video."
)


def load_unlabelled_videos(data: str | os.PathLike, *, video_root: str | os.PathLike | None = None) -> DatasetDict:
    """List the training videos of a folder, a list or a data set, without their labels.

    Args:
        data: A folder with videos at any depth, of which only train/ counts if it is there; a file as for
            `load_video_dataset`, whose rows may lack labels, or a folder of such files named after splits; or a
            manifest, a pack or a data set of the `datasets` library, as for `load_video_dataset`.
        video_root: The folder that relative paths count from; see `load_video_dataset`.

    Returns:
        The split "train", with the columns of `load_video_dataset` except `label` and `labels`.

    Raises:
        FileNotFoundError: If `data`, or a file that it names, does not exist.
        ValueError: If there are no videos, or no training split; or the file is none of these.
    """
    if is_url(data) or find_manifest(data) is not None or find_dataset(data) is not None:
        splits = load_video_dataset(data, video_root=video_root)
        if "train" not in splits:
            raise ValueError(f"{data} has no training split, only {', '.join(splits)}.")
        rows = splits["train"]
        return DatasetDict(train=rows.remove_columns({"label", "labels"}.intersection(rows.column_names)))
    path = Path(data).expanduser().absolute()
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist. {_EXPECTED}")
    if path.is_file() and path.suffix.lower() not in ANNOTATION_SUFFIXES:
        raise ValueError(f"{path} is a file, but no list of videos. {_EXPECTED}")
    splits = find_splits(path)
    if "train" not in splits:
        raise ValueError(f"{path} has no training split, only {', '.join(splits)}. Add train/ or train.csv.")
    source = splits["train"]
    if source.is_dir():
        folders = (entry for entry in visible_entries(source) if entry.is_dir())
        source = sources_by_split((folder.name, folder) for folder in folders).get("train", source)
        clips = [Clip(str(video), "") for video in videos_below(source)]
    else:
        root = None if video_root is None else Path(video_root).expanduser().absolute()
        clips = read_annotations(source, root, labelled=False)
    if not clips:
        raise ValueError(f"{source} has no videos inside. {_EXPECTED}")
    features = Features({"video": Value("string"), "start": Value("float64"), "end": Value("float64")})
    columns = {name: [getattr(clip, name) for clip in clips] for name in features}
    return DatasetDict(train=Dataset.from_dict(columns, features=features, split="train"))
