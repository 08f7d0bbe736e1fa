"""`hf-video pack`: writes the videos of a data set into a few large files with an index."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from .command_line import add_flags
from .output_folder import RunLock

if TYPE_CHECKING:
    from hf_video.io import StoredFolder

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


def add_parser(commands: argparse._SubParsersAction) -> argparse.ArgumentParser:
    """Declares the command."""
    return commands.add_parser(
        "pack",
        help="write the videos of a data set into a few large files, on a disk or in an object store",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declares its options."""
    from .command_settings import PACK

    add_flags(parser, PACK, positional="data")


def run(args: argparse.Namespace) -> int:
    """Prints what the pack holds, and the videos that are not in it."""
    from datasets.utils.py_utils import convert_file_size_to_int

    from hf_video.data import load_video_dataset
    from hf_video.data.packs.packing import pack_videos
    from hf_video.io import StoredFolder

    data = Path(args.video_root or args.data).expanduser().absolute()
    folder = StoredFolder(args.output)
    _check_output(folder, data)
    splits = load_video_dataset(args.data, video_root=args.video_root)
    with RunLock() as lock:
        if folder.path is not None:
            folder.path.mkdir(parents=True, exist_ok=True)
            lock.take(folder.path)
        try:
            counts = pack_videos(
                splits,
                folder,
                base=data if data.is_dir() else data.parent,
                shard_size=convert_file_size_to_int(args.shard_size),
                max_duration=args.max_duration,
                num_workers=args.num_workers or os.cpu_count() or 1,
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
            f"{_count(counts.num_long, 'video')} longer than {args.max_duration:g} s: without key frames to cut at, "
            "or not to be cut with certainty"
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
