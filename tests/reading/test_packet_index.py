"""Numbering the frames of MP4 files far away from their tables, against a pass over all packets."""

import io

import numpy as np
import pytest

from hf_video.reading import VideoReadError, packet_index, remote
from hf_video.reading.decoding import open_stream
from hf_video.reading.packet_index import read_packets
from hf_video.reading.remote import RemoteFile
from hf_video.reading.seeking import VideoFile
from tests.testing.video_corpus import damaged_variants, readable_variants


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
            return read_packets(file, "A video", *opened)[0]
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
        ours, expected = (p if isinstance(p, str) else [q._replace(is_key=False) for q in p] for p in packets)
        assert ours == expected, name
        assert frames_of(far(data)) == frames_of(io.BytesIO(data)), name
