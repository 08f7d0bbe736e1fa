"""Find the people of videos and what each of them does, at a key frame every second. VIDEO is a file, a URL, a
folder of frames, a folder with videos inside, a list of videos (CSV, list or JSON), or a data set.

For each key frame there are the second, and for each person its box in pixels of the video, the scores of being a
person and of its actions, and a track: a number that it keeps as long as its boxes overlap from one key frame to the
next. JSON has an object with all key frames; CSV has a row for each action of each person.

With a folder, the same command continues after an interruption, and adds videos. A video that fails is reported, and
the others are done; the exit code is then 1. With --engine, for millions of videos, Parquet files have a row for each
key frame, with its persons, whose boxes are in shares of width and height.

examples:
  hf-video detect street.mp4 --model my_detector --output street.json --annotate
  hf-video detect my_videos --model my_detector --output found --format csv --every 0.5 --action-threshold 0.3
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass

from hf_video.inference.inference_settings import DetectSettings
from hf_video.settings import setting
from hf_video.texts import count

from .command import command
from .printing import print_failed, print_rows, say


@dataclass(kw_only=True)
class DetectCommandSettings(DetectSettings):
    """Output"""

    annotate: bool = setting(
        False, "Also write NAME.annotated.mp4, the video with boxes, actions and scores, without sound."
    )


@command(help="find the people of videos, and what they do")
def run(settings: DetectCommandSettings) -> int:
    """Prints how many persons there are, and the videos that failed."""
    if settings.annotate and importlib.util.find_spec("matplotlib") is None:
        raise ImportError("--annotate draws with matplotlib: pip install 'hf-video-models[demo]'.")

    from hf_video.bulk import RowsResult, detect
    from hf_video.drawing import annotate_detections

    found = detect(settings, annotate_detections if settings.annotate else None)
    if isinstance(found, RowsResult):
        return print_rows(found)
    print(f"detections {found.place}")
    print(
        f"{count(found.num_persons, 'person')} at {count(found.num_key_frames, 'key frame')} of "
        f"{count(found.num_new, 'video')}; {count(found.num_videos - found.num_new, 'video')} done before"
    )
    if found.num_key_frames and not found.num_persons:
        highest, threshold = f"{found.highest:.3g}", f"{found.person_threshold:g}"
        say(f"No person was found: the highest score is {highest}, and --person-threshold {threshold}.")
    return print_failed(found.errors, found.num_videos + len(found.errors))
