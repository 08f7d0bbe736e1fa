from types import SimpleNamespace

from hf_video.reading.decoding import demux


def test_empty_packets_repeat_a_frame_and_only_the_last_drains_the_decoder():
    """No encoder at hand makes them."""
    packets = [SimpleNamespace(size=size) for size in (3, 0, 4, 0)]
    for number, expected in ((4, [0, 2, 3]), (3, [0, 2]), (2, [0, 1])):
        container = SimpleNamespace(demux=lambda stream, number=number: iter(packets[:number]))
        assert list(demux(container, None)) == [packets[place] for place in expected]
