"""The reader that travels with the processor, in processes without hf_video, with its files flat as on the Hub."""

import io
import os
import shutil

import numpy as np
import pytest
from PIL import Image
from transformers.utils import is_torchcodec_usable

from hf_video.hub.custom_code import collect
from hf_video.processing.plain_video_reading import read_video as read_plainly
from hf_video.reading import read_video
from tests.testing.processes import Program, run_fresh
from tests.testing.video_corpus import readable_variants
from tests.testing.videos import encode_video, make_frames

from .plain_reading_table import OUTCOMES, compare

PROGRAM = """if True:
    import sys
    for name in {missing!r}:
        sys.modules[name] = None
    import importlib
    import numpy as np
    processing = importlib.import_module("remote.video_processing_clip")
    processor = processing.VideoClipProcessor(size=32, crop_size=32)
    read_video = processor.fetch_videos
    folder = sys.argv[1]
"""
BACKENDS = [
    pytest.param(("hf_video", "torchcodec"), id="pyav"),
    pytest.param(
        ("hf_video", "av"),
        id="torchcodec",
        marks=pytest.mark.skipif(
            not is_torchcodec_usable(decode="video"), reason="torchcodec finds no FFmpeg libraries here"
        ),
    ),
]
INDICES = np.array([[50, 3, 3], [0, 59, 20]])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Videos, and the files of the processor as custom code, which hold no import of hf_video but the guarded one."""
    folder = tmp_path_factory.mktemp("flat")
    (folder / "remote").mkdir()
    for file in collect({"AutoVideoProcessor": "VideoClipProcessor"}).files.values():
        shutil.copy(file, folder / "remote")
    encode_video(folder / "video.mp4")
    encode_video(folder / "turned.mp4", rotation=90)
    encode_video(folder / "video.webm", codec="libvpx-vp9", codec_options={"deadline": "realtime", "cpu-used": "8"})
    (folder / "frames").mkdir()
    for number, frame in enumerate(make_frames(12), start=1):
        Image.fromarray(frame).save(folder / "frames" / f"frame_{number}.png")
    return folder


def run(folder, missing, program):
    words = ["-c", PROGRAM.format(missing=missing) + program, str(folder)]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))
    }
    result = run_fresh(Program(words, environment, str(folder)))[0]
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.parametrize("missing", BACKENDS)
def test_frames_are_those_of_hf_video(folder, missing):
    run(
        folder,
        missing,
        f"""
    indices = np.array({INDICES.tolist()})
    for name in ("video.mp4", "turned.mp4", "video.webm"):
        data = open(f"{{folder}}/{{name}}", "rb").read()
        frames, metadata = read_video(f"{{folder}}/{{name}}", lambda metadata: indices)
        assert metadata.total_num_frames == 60 and metadata.frames_indices == indices.ravel().tolist()
        assert (read_video(data, lambda metadata: indices)[0] == frames).all()
        with open(f"{{folder}}/{{name}}", "rb") as file:
            assert (read_video(file, lambda metadata: indices)[0] == frames).all()
        np.save(f"{{folder}}/{{name}}.npy", frames)
    np.save(f"{{folder}}/frames.npy", read_video(f"{{folder}}/frames", lambda metadata: [1, 9, 1])[0])
    clip = processor(f"{{folder}}/video.mp4", return_tensors="pt")["pixel_values"]
    assert clip.shape == (1, 16, 3, 32, 32)
    for wrong, words in (("nowhere.mp4", "does not exist"), (b"a story", "cannot be read as a video")):
        try:
            read_video(wrong)
        except ValueError as error:
            assert words in str(error), error
        else:
            raise SystemExit(f"{{wrong}} was read.")
""",
    )
    for name in ("video.mp4", "turned.mp4", "video.webm"):
        expected, _ = read_video(folder / name, lambda metadata: INDICES)
        assert np.array_equal(np.load(folder / f"{name}.npy"), expected), name
    assert np.array_equal(np.load(folder / "frames.npy"), make_frames(12)[[1, 9, 1]])


def test_without_a_decoder_one_sentence_says_what_to_install(folder):
    program = """
    assert len(read_video(f"{folder}/frames")[0]) == 12
    try:
        read_video(f"{folder}/video.mp4")
    except ImportError as error:
        print(error)
"""
    printed = run(folder, ("hf_video", "av", "torchcodec"), program)
    assert printed == "To read video files, install PyAV: pip install av\n"


def test_what_travels_is_short():
    travels = collect({"AutoVideoProcessor": "VideoClipProcessor"}).files.values()
    files = {file.name: len(file.read_text().splitlines()) for file in travels}
    assert files["plain_video_reading.py"] <= 80 and sum(files.values()) <= 1000


# Of a seventh of the files, every codec, container and order of times has some.
@pytest.mark.parametrize("step", [pytest.param(7, id="a seventh"), pytest.param(1, id="all", marks=pytest.mark.slow)])
def test_whole_files_of_any_kind_give_the_same_frames(step):
    variants = list(readable_variants())[::step]
    other = [name for name, data in variants if compare(data) != OUTCOMES[0]]
    assert len(variants) > 40 and not other


def test_frames_of_a_folder_come_in_natural_order_and_upright(tmp_path):
    for number, name in enumerate(("z_1", "aa_1", "aa_10", "aa_2", "B3")):
        exif = Image.Exif()
        exif[0x0112] = 6 if number < 3 else 1
        size = (8, 6) if number < 3 else (6, 8)
        Image.new("RGB", size, (40 * number, 0, 0)).save(tmp_path / f"{name}.jpg", exif=exif)
    expected, _ = read_video(tmp_path)
    assert np.array_equal(read_plainly(tmp_path)[0], expected)


def test_indices_outside_the_video_are_refused(folder):
    for indices in ([60], [-1], []):
        with pytest.raises(ValueError, match="has 60 frames"):
            read_plainly(io.BytesIO((folder / "video.mp4").read_bytes()), lambda metadata, i=indices: np.array(i))


@pytest.mark.parametrize("first", ["hf_video.reading.video", pytest.param("hf_video", marks=pytest.mark.slow)])
def test_hf_video_reads_where_it_is_installed_whatever_is_imported_first(tmp_path, first):
    (tmp_path / "damaged.mp4").write_bytes(b"no video")
    program = f"import {first}, hf_video, sys; hf_video.VideoClipProcessor()(sys.argv[1])"
    done = run_fresh(Program(["-c", program, str(tmp_path / "damaged.mp4")], os.environ))[0]
    assert "hf_video.reading.sources.VideoReadError" in done.stderr
