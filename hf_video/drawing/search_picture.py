"""A picture of what a search found."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hf_video.inference.video_search import Hit
from hf_video.reading.video_reading import read_timed_video

from .report_pictures import ShownClip, plot_clips
from .texts import clock

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_hits(hits: Sequence[Hit], title: str) -> "Figure":
    """The frame in the middle of each hit, with its video, times and scores.

    Raises:
        ValueError: there are no hits.
        VideoReadError: a video cannot be read.
    """
    if not hits:
        raise ValueError("There are no hits to draw.")
    shown = []
    for hit in hits:
        # A folder of frames has no times: its end is 0.
        segment = {"start": hit.start, "end": hit.end} if hit.end > hit.start else {}
        frames = read_timed_video(hit.path, lambda metadata: [metadata.total_num_frames // 2], **segment).frames
        match = "" if hit.match is None else f"match {hit.match:.3f}, "
        times = f"{clock(hit.start, 2)} to {clock(hit.end, 2)}"
        shown.append(ShownClip((Path(hit.path).name, f"{times}, {match}score {hit.score:.3f}"), frames))
    return plot_clips(shown, title)
