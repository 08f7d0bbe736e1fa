import gc
import gzip
import io
import os
import pickle
import sys
import tempfile
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import av
import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import v2

from hf_video.processing.plain_video_reading import read_video as read_plainly
from hf_video.reading import VideoReader, VideoReadError, probe_video, read_video
from hf_video.reading.frame_streaming import stream_frames
from tests.testing.videos import (
    H264,
    cut_file,
    damage_frame,
    decode_everything,
    encode_sound,
    encode_video,
    make_frames,
    make_smooth_frames,
    shift_video,
)

REFRESH = H264 | {"bf": "0", "x264-params": "intra-refresh=1:keyint=12"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("videos")


@pytest.fixture(scope="module")
def video(folder):
    return encode_video(folder / "video.mp4")


@pytest.fixture(scope="module")
def frames(video):
    return decode_everything(video)


def choose(*indices):
    return lambda metadata: np.array(indices)


@pytest.mark.parametrize(("name", "options"), [("b_frames.mp4", H264), ("intra_refresh.mp4", REFRESH)])
def test_every_frame_is_that_of_a_full_decode(folder, name, options):
    path = encode_video(folder / name, codec_options=options)
    expected = decode_everything(path)
    everything, metadata = read_video(path)
    assert metadata.total_num_frames == 60 and np.array_equal(everything, expected)
    generator = np.random.default_rng(0)
    for indices in [*([index] for index in range(0, 60, 3)), *generator.integers(0, 60, size=(3, 7)).tolist()]:
        assert np.array_equal(read_video(path, choose(*indices))[0], expected[indices]), indices


@pytest.mark.parametrize("ticks", [-512 * 25, -512 * 5 - 100, 512 * 7])
def test_edit_lists_and_start_offsets(video, frames, ticks):
    shifted = shift_video(video, ticks)
    expected = decode_everything(shifted)
    assert len(expected) < 60 if ticks < 0 else len(expected) == 60
    assert np.array_equal(read_video(shifted)[0], expected)
    for index in range(0, len(expected), 5):
        assert np.array_equal(read_video(shifted, choose(index))[0][0], expected[index])


@pytest.mark.parametrize("flip", [None, "hflip", "vflip"])
@pytest.mark.parametrize("rotation", [0, 90, 180, 270])
def test_turned_and_mirrored_videos_come_upright(tmp_path, rotation, flip):
    picture = np.zeros((48, 64, 3), dtype=np.uint8)
    picture[:24, :32] = 255
    flips = {} if flip is None else {flip: True}
    path = encode_video(tmp_path / "turned.mp4", picture[None].repeat(8, axis=0), rotation=rotation, flips=flips)
    # Players mirror after they turn.
    upright = np.rot90(picture, rotation // 90)
    upright = {None: upright, "hflip": upright[:, ::-1], "vflip": upright[::-1]}[flip]
    frames, metadata = read_video(path, choose(5, 0))
    assert frames.shape[1:] == upright.shape == (metadata.height, metadata.width, 3)
    for frame in (*frames, next(stream_frames(path)).image):
        assert np.abs(frame.astype(int) - upright).max() < 20


@pytest.mark.parametrize("rotation", [0, 90])
def test_frames_can_be_decoded_straight_to_a_size(tmp_path, rotation):
    path = encode_video(tmp_path / "large.mp4", make_smooth_frames(8, 240, 320), rotation=rotation)
    exact, _ = read_video(path)
    height, width = (80, 60) if rotation else (60, 80)
    with VideoReader(path) as reader:
        reader.resize((height, width))
        small = reader.read([[5, 0, 5]])
    assert small.shape == (1, 3, height, width, 3) and np.array_equal(small[0, 0], small[0, 2])
    resized = v2.functional.resize(torch.from_numpy(exact[[5, 0]]).movedim(-1, 1), [height, width], antialias=True)
    assert np.abs(small[0, :2].astype(int) - resized.movedim(1, -1).numpy()).mean() < 5


def test_frames_too_large_for_memory_are_refused_by_the_limit(tmp_path, monkeypatch):
    folder = tmp_path / "frames"
    folder.mkdir()
    Image.new("RGB", (64, 48)).save(folder / "1.png")
    video = encode_video(tmp_path / "video.mp4")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 64 * 48 // 2 - 1)
    for source in (folder, video):
        with pytest.raises(VideoReadError, match="PIL.Image.MAX_IMAGE_PIXELS, which you can set higher"):
            read_video(source)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    for source in (folder, video):
        assert read_video(source, choose(0))[0].shape == (1, 48, 64, 3)


def test_metadata_are_those_of_the_frames(folder, video):
    assert probe_video(video) == probe_video(Path(video))
    frames, metadata = read_video(video, choose(7, 3, 7))
    assert metadata.total_num_frames == 60
    assert metadata.fps == pytest.approx(30)
    assert metadata.duration == pytest.approx(2.0)
    assert (metadata.height, metadata.width) == (48, 64)
    assert metadata.video_backend == "pyav"
    assert metadata.frames_indices == [7, 3, 7]

    times = np.cumsum(1 + np.arange(60) % 3).tolist()
    variable = probe_video(encode_video(folder / "rates.mp4", times=times))
    assert variable.fps == pytest.approx(15, rel=0.02)


@pytest.mark.parametrize("name", ["no_count.mkv", "no_count.ts", "wrong_count.avi"])
def test_frame_counts_of_headers_are_not_believed(folder, name):
    path = Path(encode_video(folder / name))
    if name == "wrong_count.avi":
        data = bytearray(path.read_bytes())
        # dwTotalFrames of the main header and dwLength of the stream header.
        for place in (data.index(b"avih") + 8 + 16, data.index(b"strh") + 8 + 32):
            assert int.from_bytes(data[place : place + 4], "little") == 60
            data[place : place + 4] = (500).to_bytes(4, "little")
        path.write_bytes(data)
    with av.open(str(path)) as container:
        assert container.streams.video[0].frames != 60
    assert probe_video(path).total_num_frames == len(read_video(path)[0]) == 60


def test_indices_of_any_shape_and_order(video, frames):
    indices = np.array([[50, 3, 3], [0, 59, 20]])
    read, metadata = read_video(video, lambda metadata: indices)
    assert read.dtype == np.uint8
    assert np.array_equal(read, frames[indices])
    assert metadata.frames_indices == indices.ravel().tolist()


@pytest.mark.parametrize("start, end, first, stop", [(0.5, 1.0, 15, 30), (None, 0.1, 0, 3), (1.9, None, 57, 60)])
@pytest.mark.parametrize("name", ["video.mp4", "offset.ts", "counted.avi"])
def test_segments_count_from_their_start(folder, frames, name, start, end, first, stop):
    path = encode_video(folder / name)
    read, metadata = read_video(path, start=start, end=end)
    assert np.array_equal(read, decode_everything(path)[first:stop])
    assert metadata.total_num_frames == stop - first
    assert metadata.duration == pytest.approx((stop - first) / 30)
    assert metadata.fps == pytest.approx(30)


@pytest.mark.parametrize("start, end", [(1, 1), (2, 1), (-1, 1), (5, None), (0.001, 0.002)])
def test_segments_without_frames_are_refused(video, start, end):
    message = f"start={start}, end={end} holds no frame of .*video.mp4.*lasts 2.000 s"
    with pytest.raises(VideoReadError, match=message):
        read_video(video, start=start, end=end)


@pytest.mark.parametrize(
    ("read", "message"),
    [
        *((lambda v, x=x: read_video(v, choose(0, x)), "from 0 to 59 are expected") for x in (-1, 60)),
        (lambda v: read_video(v, choose(30), start=1), "video.mp4 from 0 to 29 are expected"),
        *((lambda v, x=x: read_video(v, choose(*x)), "Indices of frames") for x in ([], [0.5], ["a"])),
    ],
)
def test_wrong_indices_are_refused(video, read, message):
    with pytest.raises(ValueError, match=message):
        read(video)


def test_objects_that_can_be_read_are_read_or_refused_in_a_sentence(video, frames, tmp_path):
    data = Path(video).read_bytes()
    with (
        tempfile.SpooledTemporaryFile() as spooled,
        open(tmp_path / "new.mp4", "w+b") as new,
        open(video, "rb") as old,
    ):
        for file in (spooled, new):
            file.write(data)
        old.seek(100)
        for source in (data, Path(video), spooled, new, old, gzip.open(io.BytesIO(gzip.compress(data)))):
            assert np.array_equal(read_video(source, choose(33))[0][0], frames[33])
            assert len(list(stream_frames(source))) == 60
        assert not old.closed

    class Upload:
        async def read(self):
            pass

    with open(video) as text, os.fdopen(os.open("/dev/null", os.O_RDONLY)) as null:
        for file in (text, io.StringIO("text"), Upload(), null):
            with pytest.raises(VideoReadError, match="cannot be (read|opened)"), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                read_video(file)


def test_folders_of_frames_in_natural_order(tmp_path):
    pictures = make_frames(12)
    for i, picture in enumerate(pictures, start=1):
        Image.fromarray(picture).save(tmp_path / f"frame_{i}.png")
    (tmp_path / "notes.txt").write_text("not a frame")
    frames, metadata = read_video(tmp_path, choose(1, 9, 1))
    assert np.array_equal(frames, pictures[[1, 9, 1]])
    assert metadata.total_num_frames == 12
    assert metadata.fps is None and metadata.duration is None
    assert (metadata.height, metadata.width) == (48, 64)
    with pytest.raises(ValueError, match="folder of frames.*start and end"):
        read_video(tmp_path, start=1)


def test_broken_folders_name_the_file(tmp_path):
    with pytest.raises(VideoReadError, match="holds no frames"):
        read_video(tmp_path)
    Image.new("RGB", (8, 8)).save(tmp_path / "1.png")
    Image.new("RGB", (8, 9)).save(tmp_path / "2.png")
    with pytest.raises(VideoReadError, match=r"2.png is \(9, 8\).*first frame is \(8, 8\)"):
        read_video(tmp_path)
    (tmp_path / "1.png").write_bytes(b"broken")
    with pytest.raises(VideoReadError, match="1.png cannot be read as an image"):
        read_video(tmp_path)


def header_alone(folder):
    path = encode_video(folder / "header.mkv", container_options={"live": "1"})
    # These bytes begin a group of frames.
    Path(path).write_bytes(Path(path).read_bytes().partition(bytes.fromhex("1f43b675"))[0])
    return path


def written(name, text):
    return lambda folder: (folder / name, (folder / name).write_text(text))[0]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (written("empty.mp4", ""), "empty.mp4 cannot be opened as a video: it is empty"),
        (written("text.mp4", "a story\n" * 100), "text.mp4 cannot be opened as a video: it is cut off, or no video"),
        (written("text.txt", "a story\n" * 100), "text.txt cannot be opened as a video: it is a text"),
        (header_alone, "header.mkv cannot be opened as a video: it ends before its first frame"),
        (lambda folder: b"", "The video of 0 bytes cannot be opened as a video: it is empty"),
        (lambda folder: b"abcd", "The video of 4 bytes cannot be opened"),
        (lambda folder: folder / "missing.mp4", "missing.mp4 does not exist"),
        (lambda folder: "/dev/null", "/dev/null is no file"),
        (lambda folder: encode_sound(folder / "sound.mp4"), "sound.mp4 holds no video stream, only audio"),
        (
            lambda folder: encode_song(folder / "song.mp4"),
            "song.mp4 holds no video stream, only a cover picture, audio",
        ),
        (lambda folder: encode_video(folder / "no_frames.mp4", make_frames()[:0]), "no_frames.mp4"),
        (lambda folder: "data:video/mp4;base64," + "A" * 10**6, "does not exist"),
    ],
)
def test_files_that_are_no_videos(tmp_path, make, message):
    source = make(tmp_path)
    for read in (read_video, lambda source: list(stream_frames(source))):
        with pytest.raises(VideoReadError, match=message) as error:
            read(source)
        assert len(str(error.value)) < 500
    with pytest.raises(TypeError, match="not int"):
        read_video(7)


def encode_song(path):
    """Silence with a cover picture."""
    picture = io.BytesIO()
    Image.new("RGB", (16, 16)).save(picture, "PNG")
    with av.open(encode_sound(path.with_name("silence.mp4"))) as sound, av.open(str(path), "w") as song:
        audio = song.add_stream_from_template(sound.streams.audio[0])
        picture.seek(0)
        with av.open(picture) as image:
            cover = song.add_stream_from_template(image.streams.video[0])
            cover.disposition = av.stream.Disposition.attached_pic
            packet = next(image.demux(video=0))
            packet.stream = cover
            song.mux(packet)
        for packet in sound.demux(audio=0):
            if packet.size:
                packet.stream = audio
                song.mux(packet)
    return path


def test_playlists_do_not_reach_the_network(folder):
    path = folder / "playlist.mp4"
    path.write_text("#EXTM3U\n#EXT-X-TARGETDURATION:2\n#EXTINF:2,\nhttp://127.0.0.1:9/secret.ts\n#EXT-X-ENDLIST\n")
    with pytest.raises(VideoReadError, match="playlist.mp4"):
        read_video(path)


def test_a_file_that_is_cut_off_is_refused(folder):
    whole = encode_video(folder / "front.mp4", container_options={"movflags": "faststart"})
    for read in (read_video, probe_video):
        with pytest.raises(VideoReadError, match="cut_front.mp4 is cut off after [0-9]+ frames"):
            read(cut_file(whole, 0.6))


def test_frames_that_depend_on_damage_are_refused(folder):
    whole = encode_video(folder / "whole.mp4", codec_options=H264 | {"bf": "0"})
    expected = decode_everything(whole)
    damaged = damage_frame(whole, 27)
    assert probe_video(damaged).total_num_frames == 60
    for index in range(60):
        # Frames 20 to 39 share a key frame.
        if 27 <= index < 40:
            with pytest.raises(VideoReadError, match="damaged_whole.mp4 is damaged"):
                read_video(damaged, choose(index))
        else:
            assert np.array_equal(read_video(damaged, choose(index))[0][0], expected[index])
    sound = [*range(27), *range(40, 60)]
    assert np.array_equal(read_video(damaged, choose(*sound))[0], expected[sound])
    with pytest.raises(VideoReadError, match="damaged_whole.mp4 is damaged"):
        read_video(damaged)


def test_times_are_those_of_packets_where_the_rate_of_the_header_lies(tmp_path):
    """An AVI whose header counts milliseconds, as of a copied stream."""
    source = encode_video(tmp_path / "source.mkv", make_frames(100), fps=25)
    path = tmp_path / "copied.avi"
    with av.open(source) as container, av.open(str(path), "w") as copy:
        stream = copy.add_stream_from_template(container.streams.video[0])
        to_avi = av.bitstream.BitStreamFilterContext("h264_mp4toannexb", container.streams.video[0])
        for packet in container.demux(video=0):
            for each in to_avi.filter(packet) if packet.size else []:
                each.stream = stream
                copy.mux(each)
    with av.open(str(path)) as container:
        assert container.streams.video[0].average_rate > 500
    frames, metadata = read_video(path)
    assert np.array_equal(frames, decode_everything(source))
    assert (metadata.fps, metadata.duration) == pytest.approx((25, 4))
    assert np.array_equal(read_video(path, start=1, end=2)[0], frames[25:50])
    assert [frame.seconds for frame in stream_frames(path)] == pytest.approx([number / 25 for number in range(100)])


def test_the_best_stream_is_read_not_the_first(tmp_path):
    """A thumbnail of one frame stands before the video."""
    path = str(tmp_path / "thumbnail.mkv")
    with av.open(encode_video(tmp_path / "video.mkv")) as container, av.open(path, "w") as copy:
        thumbnail = copy.add_stream("libx264", rate=1, options=H264)
        thumbnail.height, thumbnail.width, thumbnail.pix_fmt = 16, 16, "yuv420p"
        stream = copy.add_stream_from_template(container.streams.video[0])
        picture = av.VideoFrame.from_ndarray(make_frames(1, 16, 16)[0], format="rgb24")
        copy.mux(thumbnail.encode(picture))
        copy.mux(thumbnail.encode(None))
        for packet in container.demux(video=0):
            if packet.size:
                packet.stream = stream
                copy.mux(packet)
    assert read_video(path)[0].shape == (60, 48, 64, 3) == read_plainly(path)[0].shape


def test_threads_read_side_by_side(video, frames):
    with ThreadPoolExecutor(8) as pool:
        for index, (read, _) in enumerate(pool.map(lambda i: read_video(video, choose(i)), range(60))):
            assert np.array_equal(read[0], frames[index])


class Videos(torch.utils.data.Dataset):
    def __init__(self, paths):
        self.paths = paths

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        return read_video(self.paths[index], choose(10, 50))[0]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows cannot fork")
def test_forked_workers(video, frames):
    read_video(video)
    loader = torch.utils.data.DataLoader(Videos([video] * 4), num_workers=2, multiprocessing_context="fork")
    for batch in loader:
        assert np.array_equal(batch[0].numpy(), frames[[10, 50]])
    broken = torch.utils.data.DataLoader(Videos(["nowhere.mp4"]), num_workers=1, multiprocessing_context="fork")
    with pytest.raises(VideoReadError, match="nowhere.mp4 does not exist"):
        next(iter(broken))


def test_files_are_closed(video):
    descriptors = Path("/proc/self/fd")
    if not descriptors.exists():
        pytest.skip("this system does not list the open files of a process")
    gc.collect()
    before, threads = len(list(descriptors.iterdir())), threading.active_count()
    for _ in range(5):
        read_video(video, choose(3, 40))
        with pytest.raises(ValueError):
            read_video(video, choose(99))
    assert len(list(descriptors.iterdir())) == before
    assert threading.active_count() == threads


def test_errors_survive_pickling(video):
    error = pickle.loads(pickle.dumps(VideoReadError("broken.mp4 is broken")))
    assert str(error) == "broken.mp4 is broken" and isinstance(error, OSError)
