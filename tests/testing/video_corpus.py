"""Odd video files for tests, the same ones in every run: streams are encoded once, then written into containers with
other times, and damaged byte by byte."""

import io
import random
from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import cache
from itertools import product
from typing import Any

import av
import numpy as np

NUM_FRAMES, HEIGHT, WIDTH = 24, 48, 64

_X264 = {"preset": "veryfast", "g": "8", "bf": "3"}
_X265 = {"preset": "ultrafast"}
# Encoder and options of each stream, named after its groups of pictures.
STREAMS = {
    "h264_b_frames": ("libx264", _X264 | {"x264-params": "b-adapt=0:b-pyramid=none:scenecut=0"}),
    "h264_pyramid": ("libx264", _X264 | {"g": "12", "x264-params": "b-adapt=0:b-pyramid=normal:scenecut=0:ref=4"}),
    "h264_adaptive": ("libx264", _X264 | {"x264-params": "b-adapt=1:slices=2"}),
    "h264_open": ("libx264", _X264 | {"x264-params": "open-gop=1:keyint=8:min-keyint=8:b-adapt=0"}),
    "h264_plain": ("libx264", _X264 | {"bf": "0"}),
    "h264_intra": ("libx264", _X264 | {"g": "1"}),
    "h264_one_key": ("libx264", _X264 | {"g": "1000", "x264-params": "b-adapt=0:scenecut=0"}),
    "hevc_open": ("libx265", _X265 | {"x265-params": "keyint=8:open-gop=1:bframes=3:b-adapt=0:log-level=none"}),
    "hevc_closed": ("libx265", _X265 | {"x265-params": "keyint=8:open-gop=0:bframes=3:b-adapt=0:log-level=none"}),
    "hevc_plain": ("libx265", _X265 | {"x265-params": "keyint=8:bframes=0:log-level=none"}),
    "vp9": ("libvpx-vp9", {"deadline": "realtime", "cpu-used": "8", "g": "8"}),
    "vp8": ("libvpx", {"deadline": "realtime", "cpu-used": "8", "g": "8"}),
    "mpeg4": ("mpeg4", {"g": "8", "bf": "2"}),
    "mpeg2": ("mpeg2video", {"g": "8", "bf": "2"}),
    "motion_jpeg": ("mjpeg", {"strict": "unofficial"}),
}
# Format and options of each container.
CONTAINERS = {
    "mp4": ("mp4", {}),
    "fragmented.mp4": ("mp4", {"movflags": "frag_keyframe+empty_moov"}),
    "mov": ("mov", {}),
    "mkv": ("matroska", {}),
    "webm": ("webm", {}),
    "ts": ("mpegts", {}),
    "flv": ("flv", {}),
    "avi": ("avi", {}),
}
_CONTAINERS_OF = {
    "h264": ("mp4", "fragmented.mp4", "mkv", "ts", "flv", "avi"),
    "hevc": ("mp4", "mkv", "ts"),
    "vp9": ("webm", "mkv", "mp4"),
    "vp8": ("webm", "mkv"),
    "mpeg4": ("avi", "mp4", "mkv"),
    "mpeg2": ("ts", "mkv"),
    "motion": ("avi", "mkv", "mov"),
}
# Presentation and decoding time of a packet, in frames, by its place in the file and its sound times.
TIMES: dict[str, Callable[[int, int, int], tuple[int | None, int]]] = {
    "sound": lambda place, pts, dts: (pts, dts),
    "late": lambda place, pts, dts: (pts + 9, dts + 9),
    # An edit list hides what comes before zero in MP4.
    "negative": lambda place, pts, dts: (pts - 5, dts - 5),
    # As in an AVI that became an MP4.
    "as_decoded": lambda place, pts, dts: (place, place),
    "half_as_decoded": lambda place, pts, dts: (place, place) if place >= NUM_FRAMES // 2 else (pts, dts),
    "variable": lambda place, pts, dts: (pts * (pts + 5), dts * abs(dts + 5)),
    "jump": lambda place, pts, dts: (pts + 100 * (place >= 16), dts + 100 * (place >= 16)),
    "jump_back": lambda place, pts, dts: (pts - 6 * (place >= 16), place - 40),
    "equal": lambda place, pts, dts: (max(pts // 2 * 2, dts), dts),
    "missing": lambda place, pts, dts: (None if place % 3 else pts, dts),
}


def make_pictures() -> np.ndarray:
    """(num_frames, height, width, 3) uint8: noise in which every frame differs from all others."""
    generator = np.random.default_rng(0)
    scene = (
        generator.integers(0, 256, (HEIGHT // 4, WIDTH // 4, 3), dtype=np.uint8).repeat(4, axis=0).repeat(4, axis=1)
    )
    pictures = np.stack([np.roll(scene, (i // 3, i), axis=(0, 1)) for i in range(NUM_FRAMES)])
    # A bar counts in binary.
    for i in range(NUM_FRAMES):
        for bit in range(5):
            pictures[i, :8, 8 * bit : 8 * bit + 8] = 255 * (i >> bit & 1)
    return pictures


@cache
def _encode(name: str) -> bytes:
    """The stream in a NUT file with sound times."""
    codec, options = STREAMS[name]
    file = io.BytesIO()
    with av.open(file, "w", format="nut") as container:
        stream: Any = container.add_stream(codec, rate=25, options=options)
        stream.height, stream.width = HEIGHT, WIDTH
        stream.pix_fmt = "yuvj420p" if codec == "mjpeg" else "yuv420p"
        stream.codec_context.thread_count = 1
        for i, picture in enumerate(make_pictures()):
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            frame.pts, frame.time_base = i, Fraction(1, 25)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return file.getvalue()


@cache
def write_variant(stream_name: str, container_name: str, times_name: str) -> bytes | None:
    """A stream with the given times in a container; `None` where the container does not take them."""
    format_name, options = CONTAINERS[container_name]
    file = io.BytesIO()
    try:
        with (
            av.open(io.BytesIO(_encode(stream_name))) as source,
            av.open(file, "w", format=format_name, options=options | {"avoid_negative_ts": "disabled"}) as container,
        ):
            stream: Any = container.add_stream_from_template(source.streams.video[0])
            packets = [packet for packet in source.demux(video=0) if packet.size]
            first = packets[0].pts
            for place, packet in enumerate(packets):
                frames = packet.time_base * 25
                # Containers without decoding times leave them out at the start.
                dts = place - 2 if packet.dts is None else round((packet.dts - first) * frames)
                packet.time_base = Fraction(1, 25)
                packet.pts, packet.dts = TIMES[times_name](place, round((packet.pts - first) * frames), dts)
                packet.stream = stream
                container.mux(packet)
    except (av.FFmpegError, ValueError):
        return None
    return file.getvalue()


def readable_variants() -> Iterator[tuple[str, bytes]]:
    """Name and bytes of every combination that can be written."""
    for stream_name in STREAMS:
        for container_name, times_name in product(_CONTAINERS_OF[stream_name.split("_")[0]], TIMES):
            data = write_variant(stream_name, container_name, times_name)
            if data is not None:
                yield f"{stream_name}, {times_name}.{container_name}", data


# Files that are damaged, and how often in each of the ways.
_DAMAGED_FILES = (
    ("h264_b_frames", "mp4"),
    ("h264_pyramid", "mkv"),
    ("h264_adaptive", "mp4"),
    ("h264_open", "ts"),
    ("h264_plain", "flv"),
    ("hevc_open", "mp4"),
    ("vp9", "webm"),
    ("mpeg4", "avi"),
)
_DAMAGED_TIMES = 6


def damaged_variants() -> Iterator[tuple[str, bytes]]:
    """Name and bytes of files with damage in frames, in their headers or in the index, and of files that break off."""
    for stream_name, container_name in _DAMAGED_FILES:
        whole = write_variant(stream_name, container_name, "sound")
        assert whole is not None
        with av.open(io.BytesIO(whole)) as container:
            spans = [(packet.pos, packet.size) for packet in container.demux(video=0) if packet.size and packet.pos]
        covered = {place for start, size in spans for place in range(start, start + size)}
        beside = [place for place in range(len(whole)) if place not in covered]
        for way, seed in product(("frame", "header", "index", "cut", "zeros"), range(_DAMAGED_TIMES)):
            chance = random.Random(f"{stream_name} {way} {seed}")
            data = bytearray(whole)
            start, size = chance.choice(spans)
            if way == "cut":
                data = data[: chance.randrange(len(data) // 4, len(data))]
            elif way == "zeros":
                data[start : start + size] = bytes(size)
            else:
                for _ in range(1 + seed % 3):
                    place = {
                        "frame": start + chance.randrange(size),
                        "header": start + chance.randrange(min(size, 12)),
                        "index": chance.choice(beside),
                    }[way]
                    data[place] ^= 1 << chance.randrange(8)
            yield f"{stream_name}, {way} {seed}.{container_name}", bytes(data)
