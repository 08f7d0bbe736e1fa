"""A picture of what a memory holds: which frames each of its entries is made of, and what they show."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from .memory_bank import MemoryBank

# Frames shown of an entry: the first, the most common and the last of those that most token positions have in it.
IMAGES_PER_ENTRY = 3


def frames_of_entries(memory: MemoryBank, video: int = 0) -> torch.Tensor:
    """
    Where the frames of a video are in the visual bank.

    Compression joins neighbours in time, at every token position on its own. What an entry holds at a position is
    therefore a run of frames, as long as its count, which begins where the entry before ends.

    Args:
        memory ([`MemoryBank`]): of any number of videos.
        video (`int`, defaults to 0): which of them.

    Returns:
        `torch.FloatTensor` of shape `(num_entries, frames_seen)`: the share of token positions at which the entry
        holds the frame. The columns sum to 1; under the policy "fifo" to 0 for frames that are forgotten.

    Raises:
        ValueError: if the memory has no visual bank, or has seen no frame.
    """
    if memory.visual is None or not any(memory.visual.num_entries):
        raise ValueError("The memory holds no frames: it has no visual bank, or has seen none.")
    num_frames = int(memory.frames_seen[video])
    counts = memory.visual.counts[video, : memory.visual.num_entries[video]].double().cpu().round().long()
    stop = num_frames - counts.sum(0) + counts.cumsum(0)
    # Each run adds 1 where it begins and takes it away behind its end; the sum over time is the number of positions.
    changes = torch.zeros(len(counts), num_frames + 1)
    changes.scatter_add_(1, stop - counts, torch.ones(counts.shape))
    changes.scatter_add_(1, stop, -torch.ones(counts.shape))
    return changes.cumsum(1)[:, :-1] / counts.shape[1]


def draw_memory(
    memory: MemoryBank,
    path: str | os.PathLike,
    read_images: Callable[[list[int]], Sequence[Any]] | None = None,
    seconds: Sequence[float] | None = None,
    video: int = 0,
) -> None:
    """
    Draw the entries of a visual bank, oldest on top: the frames that they are made of over time and, beside them, what
    the frames show.

    Args:
        memory ([`MemoryBank`]): of any number of videos.
        path: where to write the picture; the ending says which format.
        read_images (`Callable`, *optional*): called with rising numbers of frames, as counted by the memory, returns
            their images, arrays (height, width, 3). No images by default.
        seconds (`Sequence[float]`, *optional*): when each frame was seen; the axis counts frames by default.
        video (`int`, defaults to 0): which of the videos of the memory.

    Raises:
        ImportError: if matplotlib is not installed.
        ValueError: if the memory holds no frames, or the ending of the path is that of no format.
    """
    pyplot = import_pyplot()
    check_picture_format(path)
    share = frames_of_entries(memory, video)
    num_entries, num_frames = share.shape
    width = 11 if read_images is None else 14
    figure = pyplot.figure(figsize=(width, 1.2 + 0.62 * num_entries), layout="constrained")
    columns = 0 if read_images is None else IMAGES_PER_ENTRY
    grid = figure.add_gridspec(num_entries, columns + 1, width_ratios=[1] * columns + [10])

    axes = figure.add_subplot(grid[:, columns])
    times = list(range(num_frames)) if seconds is None else list(seconds)
    step = (times[-1] - times[0]) / (num_frames - 1) if num_frames > 1 else 1.0
    extent = (times[0], times[-1] + step, num_entries + 0.5, 0.5)
    style: dict[str, Any] = {"aspect": "auto", "cmap": "Blues", "interpolation": "nearest"}
    image = axes.imshow(share.numpy(), extent=extent, vmin=0, vmax=1, **style)
    axes.set(
        xlabel="frame" if seconds is None else "seconds",
        ylabel="entry, oldest on top",
        yticks=range(1, num_entries + 1),
        title=f"{num_frames} frames in {num_entries} entries",
    )
    figure.colorbar(image, label="share of token positions\nthat hold the frame")

    if read_images is not None:
        shown = [_frames_to_show(row) for row in share]
        wanted = sorted({frame for frames in shown for frame in frames})
        images = dict(zip(wanted, read_images(wanted), strict=True))
        for entry, frames in enumerate(shown):
            for column, frame in enumerate(frames):
                thumbnail = figure.add_subplot(grid[entry, column])
                thumbnail.imshow(images[frame])
                thumbnail.set(xticks=[], yticks=[])
                label = f"{times[frame]:.4g} s" if seconds is not None else str(frame)
                thumbnail.set_xlabel(label, fontsize=7, labelpad=1)
    figure.savefig(path, dpi=100)
    pyplot.close(figure)


def import_pyplot() -> Any:
    """`matplotlib.pyplot`, or a clear error where it is not installed."""
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise ImportError("The picture needs matplotlib: pip install hf-video-models[demo].") from error
    return pyplot


def check_picture_format(path: str | os.PathLike) -> None:
    """
    See that matplotlib writes files of this ending.

    Raises:
        ImportError: if matplotlib is not installed.
        ValueError: if it does not.
    """
    endings = import_pyplot().FigureCanvasBase.get_supported_filetypes()
    if Path(path).suffix.removeprefix(".").lower() not in endings:
        raise ValueError(f"{path} should end in a format of pictures, one of .{', .'.join(sorted(endings))}.")


def _frames_to_show(share: torch.Tensor) -> list[int]:
    """Of an entry's shares `(num_frames,)`."""
    strong = (share >= 0.5 * share.max()).nonzero().flatten().tolist()
    return sorted({strong[0], strong[len(strong) // 2], strong[-1]})


__all__ = ["draw_memory", "frames_of_entries"]
