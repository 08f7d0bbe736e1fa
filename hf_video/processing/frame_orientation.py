"""Decoded frames as upright RGB pictures."""

from typing import Any

import numpy as np


def to_rgb(frame: Any) -> np.ndarray:
    """(height, width, 3) uint8, turned upright."""
    # On small frames, starting the threads that are the default takes longer than the work.
    return turn_upright(frame.reformat(format="rgb24", threads=1).to_ndarray(), find_orientation(frame))


def find_orientation(frame: Any) -> tuple[bool, bool, bool]:
    """How the display matrix of a frame turns it: whether rows and columns change places, and whether the result is
    then mirrored left to right and top to bottom (ISO/IEC 14496-12, 6.2.2; the nearest of the eight)."""
    try:
        matrix = frame.side_data.get("DISPLAYMATRIX")
    except ValueError:
        # PyAV knows not all kinds of side data; it reads the rotation past them.
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
