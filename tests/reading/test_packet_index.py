"""Numbering the frames of MP4 files far away from their tables, against a pass over all packets."""

import io
import os
from pathlib import Path

import numpy as np
import pytest

from hf_video.reading import VideoReader, VideoReadError, packet_index, probe_video, remote
from hf_video.reading.decoding import open_stream
from hf_video.reading.packet_index import read_packets
from hf_video.reading.remote import RemoteFile
from hf_video.reading.seeking import VideoFile
from tests.testing.video_corpus import damaged_variants, readable_variants
from tests.testing.videos import decode_everything, encode_video, make_frames


@pytest.fixture(autouse=True)
def tables_alone_are_fetched(monkeypatch):
    monkeypatch.setattr(remote, "_PIECES", (2**8, 2**8))
    monkeypatch.setattr(remote, "SMALL_FILE", 0)


def far(data):
    return RemoteFile("A video", len(data), lambda start, end: data[start:end])


def packets_of(file):
    """The packets that number the frames, or the message of the error."""
    try:
        with open_stream(file, "A video") as opened:
            return read_packets(file, "A video", *opened)[0].tolist()
    except VideoReadError as error:
        return str(error)


def frames_of(file):
    """Some frames, or the message of the error."""
    try:
        with open_stream(file, "A video") as opened:
            reader = VideoFile(file, "A video", opened)
            return list(map(np.ndarray.tobytes, reader.read(sorted({i % len(reader.times) for i in (1, 12, 20)}))))
    except VideoReadError as error:
        return str(error)


def is_mp4(variant):
    return variant[0].endswith((".mp4", ".mov")) and "fragmented" not in variant[0]


def test_the_packets_are_those_of_a_pass(monkeypatch):
    index, found = packet_index._index_remote, []
    monkeypatch.setattr(packet_index, "_index_remote", lambda *given: found.append(index(*given)) or found[-1])
    variants = list(filter(is_mp4, readable_variants()))[::3]
    for name, data in variants:
        assert packets_of(far(data)) == packets_of(io.BytesIO(data)), name
        assert frames_of(far(data)) == frames_of(io.BytesIO(data)), name
    assert len(variants) > 10 and sum(packets is not None for packets in found) > len(variants)


def test_damaged_files_are_read_as_by_a_pass():
    for name, data in list(filter(is_mp4, damaged_variants()))[::3]:
        # Key frames are those of the tables where the packets are not read, which may differ in a damaged file.
        packets = [packets_of(file) for file in (far(data), io.BytesIO(data))]
        ours, expected = (p if isinstance(p, str) else [row[:5] + row[6:] for row in p] for p in packets)
        assert ours == expected, name
        assert frames_of(far(data)) == frames_of(io.BytesIO(data)), name


@pytest.fixture
def passes(monkeypatch):
    """The names of the files whose packets are passed over."""
    names, make_index = [], packet_index.make_index
    monkeypatch.setattr(packet_index, "_INDEXES", {})
    monkeypatch.setattr(packet_index, "make_index", lambda *given: names.append(given[1]) or make_index(*given))
    return names


@pytest.mark.parametrize("name", ["kept.mp4", "kept.avi"])
def test_packets_of_a_file_are_passed_over_once_until_it_changes(tmp_path, passes, name):
    path = encode_video(tmp_path / name)
    expected = decode_everything(path)
    assert probe_video(path) == probe_video(Path(path))
    with VideoReader(path) as reader:
        assert np.array_equal(reader.read(reader.shown_at([0.5, 0.1])), expected[[15, 3]])
    assert passes == [path]
    before = os.stat(path)
    encode_video(path, make_frames()[:30])
    assert probe_video(path).total_num_frames == 30
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    assert probe_video(path).total_num_frames == 30
    assert passes == [path] * 3


@pytest.mark.parametrize(("limit", "fewest"), [(130, 1), (500, 250)])
def test_of_many_files_the_latest_are_kept(tmp_path, passes, monkeypatch, limit, fewest):
    monkeypatch.setattr(packet_index, "MOST_PACKETS", limit)
    monkeypatch.setattr(packet_index, "_FEWEST_PACKETS", fewest)
    first, second, third = (encode_video(tmp_path / f"{limit}{i}.mp4") for i in range(3))
    for path in (first, second, first, third, first, second):
        probe_video(path)
    assert passes == [first, second, third, second]
