"""`hf-video pack`: writes the videos of a data set into a few large files with an index."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from hf_video.data.video_settings import LabelledVideosSettings
from hf_video.output_folders import RunLock
from hf_video.settings import AtLeast1, Expected, Positive, Settings, setting

from .command import Command

if TYPE_CHECKING:
    from hf_video.io import StoredFolder


def _is_file_size(text: str) -> bool:
    from datasets.utils.py_utils import convert_file_size_to_int

    try:
        return convert_file_size_to_int(text) > 0
    except ValueError:
        return False


@dataclass(kw_only=True)
class PackSettings(LabelledVideosSettings, Settings):
    """Pack"""

    output: str = setting(
        help="Folder or URL for the pack, such as s3://bucket/pack: new, empty, or one that this command began.",
        metavar="DIR",
    )
    shard_size: Annotated[str, Expected("a size such as 1GB or 500MB", _is_file_size)] = setting(
        "1GB", "Size of a shard, about; a larger video has one of its own.", "SIZE"
    )
    max_duration: Positive[float] | None = setting(
        None,
        "Cut longer videos into pieces of so many seconds at most, at key frames, without encoding them again; of a "
        "segment, keep the piece around it. Pieces have no sound. By default videos are packed as they are.",
        "SECONDS",
    )
    num_workers: AtLeast1[int] | None = setting(None, "Processes that write shards; by default one a core.")


SOME_BROKEN = 1
DESCRIPTION = """\
Write the videos of a data set into tar files of about a gigabyte (the layout of WebDataset), and index.parquet, which
says where each video lies. Other commands take the folder as DATA and read videos from it by their places.

Each tar file is read back and compared after it was written. The same command continues after an interruption. A video
that cannot be read is listed at the end and left out; the exit code is then 1.
"""
EPILOG = """\
example: hf-video pack my_videos --output s3://my-bucket/my_pack
"""


def run(settings: PackSettings) -> int:
    """Prints what the pack holds, and the videos that are not in it."""
    from datasets.utils.py_utils import convert_file_size_to_int

    from hf_video.data import load_video_dataset
    from hf_video.data.packs.packing import pack_videos
    from hf_video.io import StoredFolder

    data = Path(settings.video_root or settings.data).expanduser().absolute()
    folder = StoredFolder(settings.output)
    _check_output(folder, data)
    splits = load_video_dataset(settings.data, video_root=settings.video_root)
    with RunLock() as lock:
        if folder.path is not None:
            folder.path.mkdir(parents=True, exist_ok=True)
            lock.take(folder.path)
        try:
            counts = pack_videos(
                splits,
                folder,
                base=data if data.is_dir() else data.parent,
                shard_size=convert_file_size_to_int(settings.shard_size),
                max_duration=settings.max_duration,
                num_workers=settings.num_workers or os.cpu_count() or 1,
            )
        except KeyboardInterrupt as interrupt:
            raise type(interrupt)(f"The finished shards in {folder} are kept; the same command continues.") from None
    if counts is None:
        print(f"pack {folder}\nfinished before, nothing was written")
        return 0
    print(
        f"pack {folder}\n{_count(counts.num_videos, 'video')}, {counts.num_bytes / 1e6:,.1f} MB, in "
        f"{_count(counts.num_shards, 'shard')}; {_count(counts.num_rows, 'row')} in index.parquet"
    )
    if counts.num_long:
        print(
            f"{_count(counts.num_long, 'video')} longer than {settings.max_duration:g} s: without key frames to cut "
            "at, or not to be cut with certainty"
        )
    if counts.broken:
        print(f"{len(counts.broken)} of the videos cannot be read and are not in the pack:", file=sys.stderr)
        for error in counts.broken.values():
            print(f"  {error}", file=sys.stderr)
    return SOME_BROKEN if counts.broken else 0


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _check_output(folder: StoredFolder, data: Path) -> None:
    if folder.path is None:
        return
    if os.path.lexists(folder.path) and not folder.path.is_dir():
        raise ValueError(f"--output {folder} is a file; a folder is expected.")
    if data.is_dir() and folder.path.resolve().is_relative_to(data.resolve()):
        raise ValueError(f"--output {folder} lies inside {data}, whose videos are packed: choose a folder beside it.")


COMMAND = Command(
    name="pack",
    settings=PackSettings,
    run=run,
    help="write the videos of a data set into a few large files, on a disk or in an object store",
    description=DESCRIPTION,
    epilog=EPILOG,
)
