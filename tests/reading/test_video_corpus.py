"""Reading single frames of odd and damaged files against decoding them from start to end."""

import io
from itertools import pairwise

import av
import numpy as np
import pytest

from hf_video.reading import VideoReadError, read_video
from hf_video.reading.frame_streaming import stream_frames
from tests.testing.video_corpus import NUM_FRAMES, STREAMS, damaged_variants, readable_variants


def choices(num_frames):
    """Which frames to read: each of some alone, a rising set, all, and some twice out of order."""
    yield from ([i] for i in range(0, num_frames, 7))
    yield [1, num_frames // 2, num_frames - 1]
    yield list(range(num_frames))
    yield [num_frames - 1, 0, num_frames // 3, 0]


def read(data, indices):
    return read_video(data, lambda metadata: np.array(indices))[0]


def decode(data):
    """What the decoder gives for a whole file in its order, whether their times rise, and whether it reports damage:
    without our code."""
    pictures, times, is_damaged = [], [], False
    with av.open(io.BytesIO(data)) as container:
        for packet in container.demux(video=0):
            is_damaged = is_damaged or packet.is_corrupt
            try:
                frames = packet.decode()
            except av.FFmpegError:
                frames, is_damaged = [], True
            is_damaged = is_damaged or any(frame.is_corrupt for frame in frames)
            times += [frame.pts for frame in frames]
            pictures += [frame.to_ndarray(format="rgb24") for frame in frames]
    does_rise = None not in times and all(earlier < later for earlier, later in pairwise(times))
    return pictures, does_rise, is_damaged


# From this damage, which it does not notice, the decoder makes pictures that depend on what its memory holds: two full
# decodes differ, with threads and without. There is nothing to compare with.
UNSTEADY = ("hevc_open, frame 2.mp4",)

# Of a seventh of the files, every codec, container, order of times and kind of damage has some; the whole is slow.
SHARES = [pytest.param(7, id="a seventh"), pytest.param(1, id="all", marks=pytest.mark.slow)]


@pytest.fixture(scope="module")
def readable():
    variants = list(readable_variants())
    assert len(variants) >= 300
    return variants


@pytest.mark.parametrize("stream_name", STREAMS)
@pytest.mark.parametrize("step", SHARES)
def test_odd_files_give_the_frames_of_a_full_decode(readable, stream_name, step):
    wrong, num_refused, num_files = [], 0, 0
    for name, data in [row for row in readable if row[0].startswith(f"{stream_name}, ")][::step]:
        expected, does_rise, is_damaged = decode(data)
        assert not is_damaged, name
        num_files += 1
        # Frames whose times fall where those of packets do not say so are refused at worst.
        may_be_refused = not does_rise and "as_decoded" not in name
        for indices in choices(len(expected)):
            try:
                if not np.array_equal(read(data, indices), [expected[i] for i in indices]):
                    wrong.append((name, indices))
            except VideoReadError as error:
                num_refused += may_be_refused
                if not may_be_refused:
                    wrong.append((name, indices, str(error)))
    assert num_files and num_refused < num_files
    assert not wrong, f"{len(wrong)}: {wrong[:20]}"


@pytest.mark.parametrize("step", SHARES)
def test_damaged_files_give_the_frames_of_a_full_decode_or_an_error(tmp_path, step):
    variants = list(damaged_variants())
    assert len(variants) >= 200
    variants = [(name, data) for name, data in variants[::step] if name not in UNSTEADY]
    wrong, num_read = [], 0
    for name, data in variants:
        path = tmp_path / "damaged"
        path.write_bytes(data)
        try:
            streamed, is_whole = [], False
            for frame in stream_frames(path):
                streamed.append(frame.image)
            is_whole = True
        except VideoReadError:  # allowed, if readings by number give what came before it
            pass
        try:
            pictures = streamed if is_whole else decode(data)[0]
        except (av.FFmpegError, IndexError):
            pictures = []
        place = {picture.tobytes(): i for i, picture in reversed(list(enumerate(pictures)))}
        seen = {}
        for indices in choices(NUM_FRAMES):
            try:
                frames = read(data, indices)
            except (VideoReadError, ValueError) as error:
                assert isinstance(error, VideoReadError) or "Indices of frames" in str(error), name
                continue
            for i, frame in zip(indices, frames, strict=True):
                num_read += 1
                # Without an error, frames are those of the stream by number. Else they are frames of it in its order,
                # and every reading gives the same.
                found = place.get(frame.tobytes())
                if found is None or (is_whole and found != i) or seen.setdefault(i, found) != found:
                    wrong.append((name, i, indices, found))
        in_order = [found for i, found in sorted(seen.items()) if found is not None]
        if in_order != sorted(in_order):
            wrong.append((name, seen))
    assert not wrong, f"{len(wrong)} in {len({row[0] for row in wrong})} files: {wrong[:20]}"
    assert num_read > len(variants)
