"""Pieces of a video have its frames, bit for bit, at its times; and a video that cannot be cut so is left whole."""

import io
import itertools
from pathlib import Path

import av
import numpy as np
import pytest

from hf_video.data.packs.video_cutting import cut_video
from hf_video.reading import VideoReadError, probe_video, read_video
from hf_video.reading.pyav_streams import open_stream
from hf_video.reading.video_decoding import VideoFileReader
from hf_video.reading.video_reading import read_timed_video

from ..video_corpus import readable_variants, write_variant
from ..video_files import encode_video, make_frames

MAX_DURATION = 0.4
WHOLE = (None, None)
CLIPS = [WHOLE, (0.1, 0.3), (0.32, None), (None, 0.64), (0.5, 0.55)]


def check_pieces(video: bytes, suffix: str = ".mp4", clips=CLIPS, max_duration: float = MAX_DURATION) -> int:
    """Compares all pieces with their source; the number of pieces of the whole video, 0 if it is not cut."""
    file = io.BytesIO(video)
    clips = [clip for clip in clips if holds_a_frame(video, clip)]
    with cut_video(file, suffix, clips, max_duration) as found:
        if found is None:
            return 0
        source = read_timed_video(video)
        for clip, pieces in zip(clips, found, strict=True):
            read = [read_timed_video(p.piece.path, start=p.start, end=p.end) for p in pieces]
            expected = read_timed_video(video, start=clip[0], end=clip[1])
            assert np.array_equal(np.concatenate([each.frames for each in read]), expected.frames), clip
            for each, place in zip(read, pieces, strict=True):
                assert place.piece.path.suffix == suffix
                lasting = place.piece.start if clip == WHOLE else expected.seconds[0] - each.seconds[0]
                length = len(each.seconds)
                of_source = source.seconds[np.searchsorted(source.seconds, each.seconds[0] + lasting - 1e-6) :]
                assert np.abs(each.seconds + lasting - of_source[:length]).max() < 1e-6
                if clip == WHOLE:
                    assert place.piece.num_frames == length and (place.start, place.end) == WHOLE
                else:
                    assert each.metadata.duration == pytest.approx(expected.metadata.duration, abs=1e-9)
                    assert each.metadata.fps == pytest.approx(expected.metadata.fps)
        whole = [piece.piece for piece in found[0]]
        assert whole[0].start == 0 and all(one.end == next.start for one, next in itertools.pairwise(whole))
        return len(whole)


def holds_a_frame(video, clip):
    try:
        probe_video(video, [clip])
    except VideoReadError:
        return False
    return True


# Number of pieces: groups of 8 frames at 25 frames a second are 0.32 s long.
CUT = {
    ("h264_b_frames", "mp4", "sound"): 3,
    ("h264_pyramid", "mp4", "sound"): 2,
    ("h264_adaptive", "mkv", "sound"): 3,
    ("h264_plain", "flv", "sound"): 3,
    # This file says that its last frame lasts 82 s.
    ("h264_intra", "mov", "sound"): 4,
    ("h264_b_frames", "ts", "late"): 3,
    ("h264_b_frames", "mp4", "variable"): 3,
    ("h264_b_frames", "fragmented.mp4", "sound"): 3,
    ("hevc_closed", "mp4", "sound"): 3,
    ("hevc_plain", "mkv", "variable"): 3,
    ("vp9", "webm", "sound"): 3,
    ("vp9", "mp4", "jump"): 3,
    # The times of its packets may have another order than its frames.
    ("h264_b_frames", "mp4", "as_decoded"): 3,
    # Frames before a key frame need the group before it, or nothing but the start is a key frame.
    ("h264_open", "mp4", "sound"): 0,
    ("hevc_open", "mkv", "sound"): 0,
    ("h264_one_key", "mp4", "sound"): 0,
    # Packets do not tell the frames, or an edit list hides a part of the first group.
    ("h264_b_frames", "avi", "sound"): 0,
    ("h264_plain", "mp4", "negative"): 0,
    ("vp8", "webm", "sound"): 0,
    ("mpeg4", "mp4", "sound"): 0,
}


@pytest.mark.parametrize(("variant", "num_pieces"), CUT.items(), ids=map(" ".join, CUT))
def test_frames_and_times_of_pieces_are_those_of_the_source(variant, num_pieces):
    video = write_variant(*variant)
    assert check_pieces(video, f".{variant[1].split('.')[-1]}") == num_pieces


@pytest.mark.slow
def test_no_video_of_the_corpus_changes_when_it_is_cut():
    num_cut = 0
    for name, video in readable_variants():
        try:
            read_video(video)
        except OSError:
            continue
        num_cut += check_pieces(video, "." + name.rsplit(".", 1)[1]) > 0
    assert num_cut > 60


@pytest.mark.parametrize(("rotation", "flips"), [(90, {}), (180, {"hflip": True})])
def test_pieces_are_as_upright_as_their_source(tmp_path, rotation, flips):
    path = encode_video(tmp_path / "v.mp4", make_frames(), rotation=rotation, flips=flips)
    with open(path, "rb") as file:
        assert check_pieces(file.read(), clips=[WHOLE, (0.7, 1.1)], max_duration=0.7) == 3


def test_all_frames_are_compared_where_their_order_is_in_doubt(tmp_path, monkeypatch):
    """A short group without B-frames among others makes it so."""
    path = Path(encode_video(tmp_path / "v.mp4", make_frames(90), codec_options={"g": "8", "bf": "3"}))
    with open_stream(str(path), path.name) as opened:
        assert VideoFileReader(str(path), path.name, opened).may_be_misordered
    assert check_pieces(path.read_bytes(), clips=[WHOLE]) == 11
    read, compared = VideoFileReader.read, []
    monkeypatch.setattr(VideoFileReader, "read", lambda *given: compared.append(len(given[1])) or read(*given))
    with cut_video(io.BytesIO(path.read_bytes()), ".mp4", [WHOLE], MAX_DURATION):
        assert sum(compared) == 2 * 90


def test_a_variable_rate_stays(tmp_path):
    times = np.cumsum(np.random.default_rng(0).integers(1, 9, 60)).tolist()
    for suffix in (".mp4", ".mkv"):
        path = encode_video(tmp_path / f"v{suffix}", make_frames(), times=times)
        with open(path, "rb") as file:
            assert check_pieces(file.read(), suffix, [WHOLE, (1.0, 3.3)], 4) == 3


def test_sound_is_left_out_and_the_same_bytes_come_again(tmp_path):
    path = tmp_path / "v.mp4"
    encode_video(path, make_frames())
    with_sound = add_sound(path)
    pieces = []
    for _ in range(2):
        with open(with_sound, "rb") as file, cut_video(file, ".mp4", [WHOLE], 0.7) as ((*places,),):
            pieces.append([place.piece.path.read_bytes() for place in places])
    assert pieces[0] == pieces[1] and len(pieces[0]) == 3
    with av.open(io.BytesIO(pieces[0][1])) as container:
        assert [stream.type for stream in container.streams] == ["video"]


def add_sound(path):
    target = path.with_name("sound.mp4")
    with av.open(str(path)) as source, av.open(str(target), "w") as container:
        video = container.add_stream_from_template(source.streams.video[0])
        sound = container.add_stream("aac", rate=16000, layout="mono")
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 16000), dtype=np.float32), "fltp", "mono")
        frame.sample_rate = 16000
        container.mux(sound.encode(frame))
        container.mux(sound.encode(None))
        for packet in source.demux(video=0):
            if packet.size:
                packet.stream = video
                container.mux(packet)
    return target


@pytest.mark.parametrize("number", [0, 21, 41])
def test_a_piece_that_is_another_is_noticed(tmp_path, monkeypatch, number):
    """As from a key frame that needs frames before it: a packet of the middle piece is damaged as it is written."""
    path = encode_video(tmp_path / "v.mp4", make_frames(), codec_options={"g": "20", "bf": "0", "preset": "ultrafast"})
    made, packet_of = [], av.Packet

    def make(data):
        made.append(data)
        return packet_of(data if len(made) != number else data[:8] + bytes(len(data) - 8))

    monkeypatch.setattr("hf_video.data.packs.video_cutting.av.Packet", make)
    with open(path, "rb") as file, cut_video(file, ".mp4", [WHOLE], 0.7) as found:
        assert (found is None) == (number > 0)
