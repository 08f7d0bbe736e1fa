"""Of a file, only what the wanted frames need is decoded."""

from hf_video.reading import VideoReader, packet_index, seeking
from hf_video.reading.decoding import decode_packet
from tests.testing.videos import encode_video, make_frames


def test_only_the_frames_that_matter_are_decoded(tmp_path, monkeypatch):
    path = encode_video(tmp_path / "long.mp4", make_frames(400))
    decoded = []

    def count(stream, packet):
        decoded.append(packet)
        return decode_packet(stream, packet)

    for module in (packet_index, seeking):
        monkeypatch.setattr(module, "decode_packet", count)
    with VideoReader(path) as reader:
        reader.read([5, 399])
    # The first frame while indexing, and at most one group of pictures for each frame.
    assert len(decoded) < 60
