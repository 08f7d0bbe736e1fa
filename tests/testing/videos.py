"""Small videos for tests, encoded on the spot."""

import os
from collections.abc import Iterable
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
from PIL import Image

H264 = {"preset": "ultrafast", "g": "20", "bf": "3"}


def make_frames(num_frames: int = 60, height: int = 48, width: int = 64) -> np.ndarray:
    """(num_frames, height, width, 3) uint8: a texture that moves by a pixel a frame, so that every frame differs."""
    texture = np.random.default_rng(0).integers(0, 256, (height // 4, width // 4, 3), dtype=np.uint8)
    texture = texture.repeat(4, axis=0).repeat(4, axis=1)
    return np.stack([np.roll(texture, i, axis=1) for i in range(num_frames)])


def make_smooth_frames(num_frames: int, height: int, width: int) -> np.ndarray:
    """(num_frames, height, width, 3) uint8: blurred spots that move, so that ways to resize differ by little."""
    spots = np.random.default_rng(0).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    picture = np.asarray(Image.fromarray(spots).resize((width, height), Image.Resampling.BICUBIC))
    return np.stack([np.roll(picture, i, axis=1) for i in range(num_frames)])


def encode_video(
    path: str | os.PathLike,
    frames: np.ndarray | None = None,
    *,
    codec: str = "libx264",
    fps: int = 30,
    times: Iterable[int] | None = None,
    rotation: int = 0,
    flips: dict[str, bool] | None = None,
    codec_options: dict[str, str] | None = None,
    container_options: dict[str, str] | None = None,
) -> str:
    """Encode frames, uint8: RGB (num_frames, height, width, 3), or grey (num_frames, height, width). The container
    follows from the name of the file.

    `times` are presentation times in units of 1 / `fps`, for a variable frame rate. `rotation` is the angle in degrees
    by which players turn the video counter-clockwise; `flips` (`hflip`, `vflip`) say how they mirror it then.
    """
    frames = make_frames() if frames is None else frames
    with av.open(os.fspath(path), "w", options=dict(container_options or {})) as container:
        stream: Any = container.add_stream(
            codec, rate=fps, options=dict(H264 if codec_options is None else codec_options)
        )
        stream.height, stream.width = frames.shape[1:3]
        stream.pix_fmt = "yuv420p"
        if rotation or flips:
            stream.set_display_rotation(rotation, **(flips or {}))
        for frame, time in zip(frames, times if times is not None else range(len(frames)), strict=True):
            picture = av.VideoFrame.from_ndarray(
                np.ascontiguousarray(frame), format="gray" if frame.ndim == 2 else "rgb24"
            )
            picture.pts, picture.time_base = time, Fraction(1, fps)
            container.mux(stream.encode(picture))
        container.mux(stream.encode(None))
    return os.fspath(path)


def shift_video(path: str | os.PathLike, ticks: int) -> str:
    """A copy beside the file whose packets come `ticks` of its time base later. What then lies before time zero stays
    in the file, but an edit list hides it."""
    path = Path(path)
    shifted = path.with_name(f"shifted_{path.name}")
    with (
        av.open(os.fspath(path)) as source,
        av.open(os.fspath(shifted), "w", options={"avoid_negative_ts": "disabled"}) as container,
    ):
        stream = container.add_stream_from_template(source.streams.video[0])
        for packet in source.demux(video=0):
            if packet.size:
                packet.pts, packet.dts, packet.stream = packet.pts + ticks, packet.dts + ticks, stream
                container.mux(packet)
    return os.fspath(shifted)


def encode_sound(path: str | os.PathLike, seconds: float = 0.5) -> str:
    """Encode silence, without any picture."""
    with av.open(os.fspath(path), "w") as container:
        stream: Any = container.add_stream("aac", rate=16000, layout="mono")
        samples = av.AudioFrame.from_ndarray(np.zeros((1, int(16000 * seconds)), dtype=np.float32), "fltp", "mono")
        samples.sample_rate = 16000
        container.mux(stream.encode(samples))
        container.mux(stream.encode(None))
    return os.fspath(path)


def decode_everything(path: str | os.PathLike) -> np.ndarray:
    """(num_frames, height, width, 3) uint8: what decoding the whole file gives, upright."""
    with av.open(os.fspath(path)) as container:
        frames = [np.rot90(f.to_ndarray(format="rgb24"), round(f.rotation / 90)) for f in container.decode(video=0)]
    return np.stack(frames)


def cut_file(path: str | os.PathLike, keep: float) -> str:
    """A copy beside the file that ends after the fraction `keep` of its bytes."""
    path = Path(path)
    broken = path.with_name(f"cut_{path.name}")
    broken.write_bytes(path.read_bytes()[: int(path.stat().st_size * keep)])
    return os.fspath(broken)


def damage_frame(path: str | os.PathLike, frame_in_file: int) -> str:
    """A copy beside the file in which the data of one packet, counted in the order of the file, is overwritten."""
    path = Path(path)
    with av.open(os.fspath(path)) as container:
        packet = [packet for packet in container.demux(video=0) if packet.size][frame_in_file]
        assert packet.pos is not None
        start, stop = packet.pos, packet.pos + packet.size
    data = bytearray(path.read_bytes())
    data[start:stop] = bytes(255 for _ in range(start, stop))
    broken = path.with_name(f"damaged_{path.name}")
    broken.write_bytes(data)
    return os.fspath(broken)
