"""What in a video speaks for a class: a video and a picture with heat maps on the frames."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hf_video.drawing import draw_heat_maps, write_heat_map_video
from hf_video.drawing.texts import clock
from hf_video.drawing.timeline_picture import save_figure
from hf_video.inference import explain, frame_shares, predict_scores, read_clip
from hf_video.inference.explanation import top_frames

from .loaded_models import LoadedModel
from .visitors import Ticket


@dataclass(frozen=True)
class HeatMap:
    """
    A heat map as files.

    Attributes:
        video: MP4 of the frames with their heat maps.
        picture: PNG of all frames, without and with heat, in which those that counted most are marked.
        sentence: what was explained, and which frames counted most.
    """

    video: Path
    picture: bytes
    sentence: str


def draw_heat_map(
    model: LoadedModel,
    video: Path,
    class_name: str | None,
    folder: Path,
    ticket: Ticket,
    start: float | None = None,
    end: float | None = None,
) -> HeatMap:
    """
    The evidence for a class in the clip that the model sees.

    Args:
        model: a classifier.
        video: the file.
        class_name: name of the class; None for the predicted one.
        folder: an empty folder, for the video.
        ticket: ends the work between its steps.
        start, end: seconds of the part of the video that the clip is taken from; by default all of it.

    Raises:
        VideoReadError: the video cannot be read.
        ValueError: the model cannot be explained.
        ImportError: what explains or draws is not installed.
        Cancelled: the work was cancelled.
    """
    clip = read_clip(model.processor, str(video), start=start, end=end)
    ticket.check()
    with model.lock:
        scores = predict_scores(model.network, clip.pixel_values)[0]
        class_id = int(scores.argmax()) if class_name is None else model.class_names.index(class_name)
        heat_maps = explain(model.network, clip.pixel_values, class_id)[0].numpy()
    ticket.check()
    label, times = model.class_names[class_id], clip.times.tolist()
    title = f"{video.name}\nwhat speaks for {label} ({scores[class_id]:.1%})"
    picture, moving = folder / "heat_map.png", folder / "heat_map.mp4"
    save_figure(draw_heat_maps(clip.images, heat_maps, times, title), picture)
    ticket.check()
    write_heat_map_video(moving, clip.images, heat_maps, times, clip.end)
    return HeatMap(moving, picture.read_bytes(), _describe(label, float(scores[class_id]), heat_maps, times))


def _describe(label: str, score: float, heat_maps: np.ndarray, times: list[float]) -> str:
    top = [clock(times[frame], 2) for frame in top_frames(frame_shares(heat_maps))]
    if not top:
        return f"Nothing in these frames speaks for {label} ({score:.1%})."
    return f"For {label} ({score:.1%}) the frames at {', '.join(top)} counted most."
