"""A picture of a memory: the frames that each of its entries stands for, and what they show."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

# Images for an entry: the first, the middle and the last of the frames that most of its token positions hold.
IMAGES_PER_ENTRY = 3


def frames_of_entries(memory: Any, video: int = 0) -> torch.Tensor:
    """
    Which entries of the visual bank hold which frames of a video.

    Compression joins neighbours in time, at every token position on its own. So at one position an entry holds a run
    of frames. The run is as long as the entry's count, and begins where the run of the entry before it ends.

    Args:
        memory ([`MemoryBank`]): the memory.
        video (`int`, defaults to 0): number of the video in the memory.

    Returns:
        `torch.FloatTensor` of shape `(num_entries, frames_seen)`: share of token positions at which an entry holds a
        frame. Each column sums to 1, or to 0 for a frame that the policy has forgotten.

    Raises:
        ValueError: if the memory has no visual bank, or has seen no frame.
    """
    if memory.visual is None or not any(memory.visual.num_entries):
        raise ValueError("The memory holds no frames: it has no visual bank, or has seen none.")
    num_frames = int(memory.frames_seen[video])
    counts = memory.visual.counts[video, : memory.visual.num_entries[video]].double().cpu().round().long()
    stop = num_frames - counts.sum(0) + counts.cumsum(0)
    # Each run adds 1 at its first frame and subtracts 1 after its last. The sum over time counts the positions.
    changes = torch.zeros(len(counts), num_frames + 1)
    changes.scatter_add_(1, stop - counts, torch.ones(counts.shape))
    changes.scatter_add_(1, stop, -torch.ones(counts.shape))
    return changes.cumsum(1)[:, :-1] / counts.shape[1]


def draw_memory(
    memory: Any,
    path: str | os.PathLike,
    read_images: Callable[[list[int]], Sequence[Any]] | None = None,
    seconds: Sequence[float] | None = None,
    video: int = 0,
) -> None:
    """
    Draw the entries of a visual bank, oldest on top. Each row shows which frames the entry holds and, beside that,
    some of their images.

    Args:
        memory ([`MemoryBank`]): the memory.
        path: path of the picture; its ending gives the format.
        read_images (`Callable`, *optional*): takes numbers of frames in rising order, counted as the memory counts
            them, and returns their images, arrays (height, width, 3). By default there are no images.
        seconds (`Sequence[float]`, *optional*): time of each frame. By default the axis counts frames.
        video (`int`, defaults to 0): number of the video in the memory.

    Raises:
        ImportError: if matplotlib is not installed.
        ValueError: if the memory holds no frames, or matplotlib does not write the format.
    """
    check_picture_format(path)
    from matplotlib.figure import Figure

    share = frames_of_entries(memory, video)
    num_entries, num_frames = share.shape
    width = 11 if read_images is None else 14
    figure = Figure(figsize=(width, 1.2 + 0.62 * num_entries), layout="constrained")
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


def check_picture_format(path: str | os.PathLike) -> None:
    """
    Check that matplotlib writes files with the ending of this path.

    Raises:
        ImportError: if matplotlib is not installed.
        ValueError: if it does not write them.
    """
    try:
        from matplotlib.backend_bases import FigureCanvasBase
    except ImportError as error:
        raise ImportError("The picture needs matplotlib: pip install 'hf-video-models[demo]'.") from error
    endings = FigureCanvasBase.get_supported_filetypes()
    if Path(path).suffix.removeprefix(".").lower() not in endings:
        raise ValueError(f"{path} should end in a format of pictures, one of .{', .'.join(sorted(endings))}.")


def _frames_to_show(share: torch.Tensor) -> list[int]:
    """Numbers of the frames to show for an entry with these shares `(num_frames,)`."""
    strong = (share >= 0.5 * share.max()).nonzero().flatten().tolist()
    return sorted({strong[0], strong[len(strong) // 2], strong[-1]})


__all__ = ["draw_memory", "frames_of_entries"]
