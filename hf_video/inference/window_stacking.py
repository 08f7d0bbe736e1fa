"""Windows as arrays that overlap in memory, so that each image is written once."""

import sys
from collections.abc import Sequence

import numpy as np

from hf_video.processing.frame_streaming import StreamedFrame
from hf_video.processing.video_opening import VideoReadError

_PROBE = [np.empty(0)]
# References to an array that only a list holds.
_IDLE = sys.getrefcount(_PROBE[0])


class WindowStacker:
    """
    Stacks the images of windows that follow each other.

    A window is a view of an array with room for the images that come next. When it is full, the images that the next
    window shares are moved to another array. Fresh memory takes longer than writing to it, so an array whose windows
    nobody holds any more is used again. In a loop over windows two arrays take turns.

    Args:
        name: name of the source in messages.
    """

    def __init__(self, name: str):
        self._name = name
        # The last one is in use.
        self._arrays: list[np.ndarray] = []
        self._previous: Sequence[StreamedFrame] = ()
        # The row behind the last image.
        self._stop = 0

    def __call__(self, frames: Sequence[StreamedFrame]) -> np.ndarray:
        """
        Args:
            frames (`Sequence[StreamedFrame]`):
                The frames of the next window. If they begin with the last ones of the window before, only the others
                are written.

        Returns:
            `np.ndarray`: (num_frames, height, width, 3) uint8, read-only.

        Raises:
            `VideoReadError`: if the images have not all one size.
        """
        num_shared = _num_shared(self._previous, frames)
        before = self._previous[-1] if num_shared else None
        for place in range(num_shared, len(frames)):
            if frames[place] is before:
                image = self._arrays[-1][self._stop - 1]
            else:
                before, image = frames[place], frames[place].view_image()
            if self._arrays and image.shape != self._arrays[-1].shape[1:]:
                size, expected = image.shape[:2], self._arrays[-1].shape[1:3]
                raise VideoReadError(
                    f"{self._name}: frame {frames[place].number} is {size} (height, width), "
                    f"the frames before are {expected}."
                )
            if not self._arrays or self._stop == len(self._arrays[-1]):
                self._change_array(image.shape, len(frames), num_kept=place)
            self._arrays[-1][self._stop] = image
            self._stop += 1
        self._previous = frames
        window = self._arrays[-1][self._stop - len(frames) : self._stop]
        window.flags.writeable = False
        return window

    def _change_array(self, shape: tuple[int, ...], num_frames: int, num_kept: int) -> None:
        """Goes on in an array that begins with the last `num_kept` images."""
        free = [i for i in range(len(self._arrays) - 1) if sys.getrefcount(self._arrays[i]) == _IDLE]
        # Room for two windows: more would take memory, less would move images more often.
        array = self._arrays[free[0]] if free else np.empty((2 * num_frames, *shape), np.uint8)
        if num_kept:
            array[:num_kept] = self._arrays[-1][self._stop - num_kept : self._stop]
        self._arrays = [*self._arrays[-1:], array]
        self._stop = num_kept


def _num_shared(before: Sequence[StreamedFrame], after: Sequence[StreamedFrame]) -> int:
    """The largest number of frames at the end of one window with which another begins."""
    for num_shared in range(min(len(before), len(after)), 0, -1):
        if all(a is b for a, b in zip(before[len(before) - num_shared :], after, strict=False)):
            return num_shared
    return 0
