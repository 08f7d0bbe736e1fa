"""Numbering the frames of MP4 files from their tables, against a pass over all packets."""

import io
import os
import random
import struct
import time
from pathlib import Path

import av
import numpy as np
import pytest

from hf_video.reading import VideoReadError, mp4_index, read_video, video_decoding
from hf_video.reading.pyav_streams import open_stream
from hf_video.reading.ranges import RangeFile
from hf_video.reading.sources import describe
from tests.testing.video_corpus import damaged_variants, readable_variants, write_variant
from tests.testing.videos import H264, encode_video, make_frames

# Damage that a test of a table writes in the place of one of its numbers.
NUMBERS = (0, 1, 2, 63, 2**24, 2**28, 2**31 - 1, 2**31, 2**32 - 1)


class FetchedFile(RangeFile):
    def __init__(self, data):
        super().__init__("A video", len(data))
        self._data = data

    def fetch_range(self, start, end):
        return self._data[start:end]


@pytest.fixture
def indexed(monkeypatch):
    """The numbers of packets that tables were found to tell."""
    found = []

    def record(*given):
        packets = mp4_index.index_packets(*given)
        found.append(None if packets is None else len(packets))
        return packets

    monkeypatch.setattr(video_decoding, "index_packets", record)
    return found


def packets_of(file):
    """The packets that number the frames, or the message of the error."""
    try:
        with open_stream(file, "A video") as opened:
            return video_decoding.read_packets(file, "A video", *opened)[0]
    except VideoReadError as error:
        return str(error)


def outcome(file, indices):
    """Frames and metadata, or the cause of the error."""
    try:
        frames, metadata = read_video(file, lambda metadata: np.array(indices) % metadata.total_num_frames)
    except VideoReadError as error:
        return str(error).replace(describe(file), "A video")
    return frames.tobytes(), metadata


def check(data, indices=(1, 12, 20)):
    expected, packets = packets_of(io.BytesIO(data)), packets_of(FetchedFile(data))
    assert packets == expected
    assert outcome(FetchedFile(data), indices) == outcome(io.BytesIO(data), indices)


def check_damaged(data):
    """Key frames are those of the tables where the packets are not read, which may differ in a damaged file."""
    packets = [packets_of(file) for file in (FetchedFile(data), io.BytesIO(data))]
    plain, expected = (p if isinstance(p, str) else [q._replace(is_keyframe=False) for q in p] for p in packets)
    assert plain == expected
    assert outcome(FetchedFile(data), (1, 12, 20)) == outcome(io.BytesIO(data), (1, 12, 20))


def is_mp4(variant):
    return variant[0].endswith((".mp4", ".mov")) and "fragmented" not in variant[0]


@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.slow) for part in (1, 2))])
def test_the_packets_are_those_of_a_pass(indexed, part):
    variants = list(filter(is_mp4, readable_variants()))[part::3]
    for _, data in variants:
        check(data)
    assert len(variants) > 40 and sum(found is not None for found in indexed) > len(variants)


ENCODINGS = {
    "moov_first.mp4": {"container_options": {"movflags": "faststart"}},
    "negative_offsets.mp4": {"container_options": {"movflags": "negative_cts_offsets"}},
    "no_edit_list.mp4": {"container_options": {"use_editlist": "0"}},
    "variable_rate.mp4": {"times": np.cumsum(1 + np.arange(60) % 3).tolist()},
    "rotated.mp4": {"rotation": 90},
    "pyramid.mov": {"codec_options": H264 | {"preset": "medium", "x264-params": "b-pyramid=normal:ref=4"}},
    "refresh.mp4": {"codec_options": H264 | {"bf": "0", "x264-params": "intra-refresh=1:keyint=12"}},
    "one_frame.mp4": {"frames": make_frames(1)},
    "av1.mp4": {"codec": "libsvtav1", "codec_options": {"preset": "12", "g": "20"}},
}


@pytest.fixture
def usual_priority():
    """SVT-AV1 gives its thread real-time priority where it may. A test that waits busily would stop the machine."""
    policy, parameters = os.sched_getscheduler(0), os.sched_getparam(0)
    yield
    os.sched_setscheduler(0, policy, parameters)


@pytest.mark.parametrize("name", ENCODINGS)
def test_what_these_encoders_write_is_certain(indexed, tmp_path, name, usual_priority):
    check(Path(encode_video(tmp_path / name, **ENCODINGS[name])).read_bytes(), (0, 33, 41))
    assert indexed and None not in indexed


def with_sound(path):
    """Two streams, packet by packet in turn."""
    with av.open(str(path), "w") as container:
        picture = container.add_stream("libx264", rate=30, options=H264)
        picture.height, picture.width, picture.pix_fmt = 48, 64, "yuv420p"
        sound = container.add_stream("aac", rate=16000, layout="mono")
        for frame in make_frames():
            container.mux(picture.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
            samples = av.AudioFrame.from_ndarray(np.zeros((1, 533), dtype=np.float32), "fltp", "mono")
            samples.sample_rate = 16000
            container.mux(sound.encode(samples))
        container.mux(picture.encode(None))
        container.mux(sound.encode(None))
    return Path(path)


def test_sound_between_the_pictures(indexed, tmp_path):
    check(with_sound(tmp_path / "sound.mp4").read_bytes(), (5, 33))
    assert indexed and None not in indexed


def test_key_frames_that_the_tables_leave_out(tmp_path):
    """Other writers list only frames that refresh the decoder, the packets show more."""
    path = encode_video(
        tmp_path / "open.mp4",
        codec_options=H264 | {"x264-params": "open-gop=1:keyint=12:min-keyint=12:b-adapt=0"},
    )
    data = bytearray(Path(path).read_bytes())
    place = data.index(b"stss")
    count = int.from_bytes(data[place + 8 : place + 12])
    assert count > 2
    data[place + 8 : place + 12] = (1).to_bytes(4)
    check_damaged(bytes(data))


@pytest.mark.parametrize("name", ["fragmented.mp4", "vp9.mp4", "mpeg4.mp4"])
def test_what_is_not_certain_is_read_by_a_pass(indexed, tmp_path, name):
    options = {
        "fragmented.mp4": {"container_options": {"movflags": "frag_keyframe+empty_moov"}},
        "vp9.mp4": {"codec": "libvpx-vp9", "codec_options": {"deadline": "realtime", "cpu-used": "8"}},
        "mpeg4.mp4": {"codec": "mpeg4", "codec_options": {}},
    }
    check(Path(encode_video(tmp_path / name, **options[name])).read_bytes())
    assert not any(indexed)


def test_damaged_and_broken_files_are_read_as_by_a_pass():
    for _, data in filter(is_mp4, damaged_variants()):
        check_damaged(data)


def find_tables(data):
    start = data.rindex(b"moov")
    kinds = (b"mdhd", b"tkhd", b"elst", b"stsd", b"stts", b"ctts", b"stss", b"stsc", b"stsz", b"stco")
    return {kind: data.index(kind, start) for kind in kinds if kind in data[start:]}


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 10))])
def test_damaged_tables_change_nothing(seed):
    chance = random.Random(seed)
    sources = [
        write_variant("h264_b_frames", "mp4", "sound"),
        write_variant("hevc_open", "mp4", "variable"),
        write_variant("motion_jpeg", "mov", "sound"),
    ]
    for _ in range(150):
        data = bytearray(chance.choice(sources))
        table = chance.choice(list(find_tables(data).values()))
        for _ in range(chance.choice((1, 1, 2))):
            # The number of bytes of the table, its version, its number of entries, or an entry.
            place = table + 4 * chance.choice((-1, 1, 2, 3, 4, 5, 6))
            if place + 4 <= len(data):
                struct.pack_into(">I", data, place, chance.choice((*NUMBERS, chance.randrange(2**32))))
        start = time.monotonic()
        check_damaged(bytes(data))
        assert time.monotonic() - start < 20


@pytest.mark.parametrize("size", [0, 1, 7, 2**31, 2**32 - 1])
def test_boxes_that_lead_nowhere_are_left(size):
    data = struct.pack(">I4s", size, b"free") + struct.pack(">I4s", 8, b"ftyp") * 10
    assert mp4_index.fetch_moov(FetchedFile(data)) is None
    assert mp4_index.fetch_moov(FetchedFile(struct.pack(">I4sQ", 1, b"free", 2**64 - 1) + data)) is None
    assert mp4_index.fetch_moov(FetchedFile(struct.pack(">I4s", 8, b"free") * 1000)) is None
    assert mp4_index.fetch_moov(FetchedFile(b"")) is None
