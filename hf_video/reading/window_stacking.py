"""Windows as arrays that overlap in memory, so that each image is written once."""

import sys
from collections import deque
from collections.abc import Sequence

import numpy as np

from .frame_streaming import StreamedFrame
from .video_opening import VideoReadError

_PROBE = [np.empty(0)]
# References to an array that only a list holds.
_IDLE = sys.getrefcount(_PROBE[0])


class WindowStacker:
    """
    Stacks the images of windows that follow each other. Each image is written as soon as its frame comes, so that the
    decoder has the memory of the frame back, and its threads go on meanwhile.

    A window is a view of an array with room for the images that come next. The array ends where a window ends, and
    the images that the next window shares are then moved to another array. Fresh memory takes longer than writing to
    it, so an array whose windows nobody holds any more is used again. In a loop over windows two arrays take turns.

    Args:
        name: name of the source in messages.
        num_frames: images in a window.
        stride: images from the start of a window to the start of the next.
    """

    def __init__(self, name: str, num_frames: int, stride: int):
        self._name = name
        self._num_frames = num_frames
        self._num_fresh = min(stride, num_frames)
        # The last one is in use.
        self._arrays: list[np.ndarray] = []
        # The row behind the last image.
        self._stop = 0
        # The last frames as they came, and as they were returned.
        self._source: StreamedFrame | None = None
        self._stacked: deque[StreamedFrame] = deque(maxlen=int(num_frames))

    def add(self, frame: StreamedFrame) -> StreamedFrame:
        """
        Writes the next image of a window. A frame that comes again at once is not converted again.

        Returns:
            `StreamedFrame`: the frame, with its image in the array.

        Raises:
            `VideoReadError`: if the image has not the size of those before.
        """
        is_repeated = frame is self._source
        image = self._stacked[-1].image if is_repeated else frame.view_image()
        if self._arrays and image.shape != self._arrays[-1].shape[1:]:
            raise VideoReadError(
                f"{self._name}: frame {frame.number} is {image.shape[:2]} (height, width), "
                f"the frames before are {self._arrays[-1].shape[1:3]}."
            )
        if not self._arrays or self._stop == len(self._arrays[-1]):
            self._change_array(image.shape)
        row = self._arrays[-1][self._stop]
        row[:] = image
        self._stop += 1
        stacked = self._stacked[-1] if is_repeated else StreamedFrame(frame.number, frame.seconds, row, frame.duration)
        self._source = frame
        self._stacked.append(stacked)
        return stacked

    def stack(self, frames: Sequence[StreamedFrame]) -> np.ndarray:
        """
        Args:
            frames (`Sequence[StreamedFrame]`):
                The frames of a window. Only if they are not the last ones that were added, they are copied.

        Returns:
            `np.ndarray`: (num_frames, height, width, 3) uint8, read-only.
        """
        if len(frames) <= self._stop and list(self._stacked) == list(frames):
            window = self._arrays[-1][self._stop - len(frames) : self._stop]
        else:
            window = np.stack([frame.view_image() for frame in frames])
        window.flags.writeable = False
        return window

    def _change_array(self, shape: tuple[int, ...]) -> None:
        """Goes on in an array that begins with the images that the next window shares."""
        free = [i for i in range(len(self._arrays) - 1) if sys.getrefcount(self._arrays[i]) == _IDLE]
        # Room for two windows: more would take memory, less would move images more often.
        num_rows = self._num_frames + self._num_fresh * -(-self._num_frames // self._num_fresh)
        array = self._arrays[free[0]] if free else np.empty((num_rows, *shape), np.uint8)
        num_kept = self._num_frames - self._num_fresh if self._arrays else 0
        if num_kept:
            array[:num_kept] = self._arrays[-1][self._stop - num_kept :]
        self._arrays = [*self._arrays[-1:], array]
        self._stop = num_kept
