"""Heat maps of videos: how they lie on the frames, and which frames they say counted."""

import numpy as np

_COLOR_MAP = "plasma"
# Share of the colour at the highest evidence; the rest is the frame. The exponent makes half of it well seen.
_OPACITY, _EXPONENT = 0.85, 0.75


def overlay_heat_maps(images: np.ndarray, heat_maps: np.ndarray) -> np.ndarray:
    """
    Frames with heat maps on them. The colours are matplotlib's "plasma", in which equal steps look equal, from blue to
    yellow. The colour is the more opaque the higher the value, so that a value of 0 leaves a pixel as it is.

    Args:
        images: (T, H, W, 3) uint8.
        heat_maps: (T, H, W) in [0, 1].

    Returns:
        (T, H, W, 3) uint8.

    Raises:
        ImportError: matplotlib is not installed.
        ValueError: shapes do not agree, or a value is outside of [0, 1].
    """
    heat_maps = np.asarray(heat_maps, dtype=np.float32)
    if images.shape != (*heat_maps.shape, 3):
        raise ValueError(f"Heat maps of the shape {heat_maps.shape} do not fit images of the shape {images.shape}.")
    if not (heat_maps.min() >= 0 and heat_maps.max() <= 1):
        raise ValueError(f"Heat maps lie in [0, 1], got values from {heat_maps.min():g} to {heat_maps.max():g}.")
    from matplotlib import colormaps

    colors = (colormaps[_COLOR_MAP](np.arange(256))[:, :3] * 255).astype(np.float32)
    mixed = np.empty(images.shape, dtype=np.uint8)
    # A frame at a time: as numbers, a long clip would need many times the memory of its pixels.
    for image, heat, result in zip(images, heat_maps, mixed, strict=True):
        opacity = _OPACITY * heat[..., None] ** _EXPONENT
        result[:] = np.rint((1 - opacity) * image + opacity * colors[np.rint(heat * 255).astype(np.uint8)])
    return mixed


def frame_shares(heat_map: np.ndarray) -> np.ndarray:
    """
    The share of the evidence that lies on each frame.

    Args:
        heat_map: (T, H, W), 0 or more.

    Returns:
        (T,) float64 with the sum 1; all 0 if there is no evidence.
    """
    evidence = np.asarray(heat_map, dtype=np.float64).sum(axis=(1, 2))
    return evidence / (evidence.sum() or 1.0)


def top_frames(shares: np.ndarray, count: int = 3) -> list[int]:
    """
    The frames that counted most, the first one most: at most `count`, each with at least an even share. Of neighbours
    with the same share the first one counts: a model that joins frames to tubelets has one value for all of them.

    Args:
        shares: (T,), see [`frame_shares`].
        count: most frames.
    """
    # The highest of some numbers may be below their mean by a rounding error.
    even = shares.mean() * (1 - 1e-9)
    is_first = np.append(True, ~np.isclose(shares[1:], shares[:-1], rtol=1e-6, atol=0))
    ranked = np.argsort(-shares, kind="stable").tolist()
    return [frame for frame in ranked if is_first[frame] and shares[frame] > 0 and shares[frame] >= even][:count]
