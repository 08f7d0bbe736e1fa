"""Slide windows over videos of any length, and write what a model sees in each: one file for each video, and
features.json with the times of all windows and the settings of temporal localisation (feat_stride, num_frames,
default_fps).

VIDEO is a file, a URL, a folder of frames, a folder with videos inside, a list of videos (CSV, list or JSON), or a
data set. Features of videos in a folder or list keep their paths from there. Each frame is decoded once.

The same command continues after an interruption, and adds videos to a folder. A video that fails is reported, and
listed once more at the end; the exit code is then 1.

With --engine, for millions of videos, Parquet files have a row for each window, with its features or an error.

example: hf-video extract my_videos --model my_model --output my_features --window 16 --stride 8
"""

from pathlib import Path

from hf_video.inference.inference_settings import ExtractSettings
from hf_video.texts import count

from .command import command
from .printing import print_failed, print_rows


@command(help="write features of the sliding windows of videos")
def run(settings: ExtractSettings) -> int:
    """Prints how many windows there are, and the videos that failed."""
    from hf_video.bulk import extract

    records = extract(settings)
    if not isinstance(records, dict):
        return print_rows(records)
    failed = [(record["source"], record["error"]) for record in records.values() if "error" in record]
    num_windows = sum(record.get("num_windows", 0) for record in records.values() if "error" not in record)
    print(f"features {Path(settings.output).expanduser().absolute()}")
    print(f"{count(num_windows, 'window')} of {count(len(records) - len(failed), 'video')}, see features.json")
    return print_failed(failed, len(records))
