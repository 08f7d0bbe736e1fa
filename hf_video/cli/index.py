"""Write a vector for each video, or for each window of it with --window, so that `hf-video search` finds clips by
words or by a video. VIDEO is a file, a URL, a folder of frames, a folder with videos inside, a list of videos
(CSV, list, JSON or Parquet), or a data set.

MODEL compares videos with texts: a model of this package, X-CLIP or VideoPrism. With any other encoder of videos,
clips are found by a video.

The same command continues after an interruption, adds videos, and does changed ones again; --prune removes those that
are not named. A video that fails is a row with its error; the exit code is then 1.

example: hf-video index my_videos --model my_model --output my_index --window 8 --fps 2
"""

from hf_video.inference.inference_settings import IndexSettings

from .command import command
from .printing import print_rows


@command(help="make an index of videos, to search them by words or by a video")
def run(settings: IndexSettings) -> int:
    """Prints how many clips there are, and the videos that failed."""
    from hf_video.bulk import build_index

    return print_rows(build_index(settings))
