"""Decoded frames as upright RGB pictures."""

from typing import Any

import numpy as np

try:
    import av
    from av.sidedata.sidedata import SideDataContainer
except ImportError:
    av = None  # type: ignore[assignment]


class RgbConverter:
    """Makes (height, width, 3) uint8, turned upright, of frames. The frames of a video share a converter: its tables
    take longer to make than a small frame to convert."""

    def __init__(self) -> None:
        self._reformatter = av.video.reformatter.VideoReformatter()

    def __call__(self, frame: Any) -> np.ndarray:
        picture = self._reformat(frame).to_ndarray()
        return turn_upright(picture, find_orientation(frame))

    def view(self, frame: Any) -> np.ndarray:
        """The picture in FFmpeg's memory, read-only: for who copies it at once."""
        plane = self._reformat(frame).planes[0]
        rows = np.frombuffer(plane, dtype=np.uint8).reshape(plane.height, plane.line_size)
        rows.flags.writeable = False
        return turn_upright(rows[:, : plane.width * 3].reshape(plane.height, plane.width, 3), find_orientation(frame))

    def _reformat(self, frame: Any) -> Any:
        # One thread: for small frames, starting the default number of threads takes longer than the work.
        return self._reformatter.reformat(frame, format="rgb24", threads=1)


def find_orientation(frame: Any) -> tuple[bool, bool, bool]:
    """How the display matrix of a frame turns it (ISO/IEC 14496-12, 6.2.2): whether rows and columns change places,
    whether the result is then mirrored left to right, and whether it is mirrored top to bottom. Of these eight ways
    the nearest to the matrix is taken."""
    # `frame.side_data` would keep the frame in a reference cycle, and so in memory until the garbage collector runs.
    side_data = SideDataContainer(frame)  # type: ignore[call-arg]
    if not len(side_data):
        return False, False, False
    try:
        matrix = side_data.get("DISPLAYMATRIX")
    except ValueError:
        # The frame has side data that PyAV does not know. The rotation can still be read.
        turns = round(frame.rotation / 90) % 4
        return turns % 2 == 1, turns in (2, 3), turns in (1, 2)
    if matrix is None:
        return False, False, False
    # x' = a x + c y and y' = b x + d y
    a, b, _, c, d = np.frombuffer(bytes(matrix), dtype=np.int32)[:5].tolist()
    if abs(b) + abs(c) > abs(a) + abs(d):
        return True, c < 0, b < 0
    return False, a < 0, d < 0


def turn_upright(picture: np.ndarray, orientation: tuple[bool, bool, bool]) -> np.ndarray:
    """Turn (..., height, width, 3) as `find_orientation` says."""
    swapped, left_to_right, top_to_bottom = orientation
    if swapped:
        picture = np.swapaxes(picture, -3, -2)
    if left_to_right:
        picture = picture[..., ::-1, :]
    return picture[..., ::-1, :, :] if top_to_bottom else picture
