import json
import os
import random
import shutil
import signal
import time

import numpy as np
import pytest
import torch
from datasets import load_dataset
from safetensors.torch import load_file

from hf_video import VideoClipProcessor
from hf_video.data.video_listing import list_videos
from hf_video.inference import extract_window_features
from hf_video.io import read_own_json
from hf_video.jobs import ExtractTask, extract_to_folder, feature_folder
from tests.training.tiny import make_model
from tests.video_files import damage_frame, encode_video, make_frames

WINDOWS = {"num_frames": 2, "stride": 1}


@pytest.fixture(scope="module")
def processor():
    return VideoClipProcessor(
        num_frames=2, frame_sampling_rate=1, size={"shortest_edge": 16}, crop_size={"height": 16, "width": 16}
    )


@pytest.fixture(scope="module")
def videos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("videos")
    (folder / "day").mkdir()
    encode_video(folder / "a.mp4", make_frames(9))
    encode_video(folder / "day" / "zürich.mp4", make_frames(5), fps=25)
    encode_video(folder / "z.mp4", make_frames(6))
    return folder


def extract(processor, videos, folder, model=None, **options):
    options = {**WINDOWS, "progress": False, **options}
    return extract_to_folder(model or make_model(), processor, list_videos([str(videos)]), folder, **options)


def files_of(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_code_for_temporal_localisation_finds_what_it_needs(processor, videos, tmp_path):
    """A moment of the video falls into the window that a reader of such features computes from the summary."""
    extract(processor, videos, tmp_path, num_frames=4, stride=2, model=make_model(num_frames=4))
    summary = json.loads((tmp_path / "features.json").read_text())
    assert (summary["feat_stride"], summary["num_frames"], summary["default_fps"]) == (2, 4, None)
    for name, fps in {"a": 30, "day/zürich": 25, "z": 30}.items():
        features = np.load(tmp_path / f"{name}{summary['file_ext']}")
        record = summary["videos"][name]
        assert features.dtype == np.float32
        assert features.shape == (len(record["starts"]), summary["input_dim"]) == (record["num_windows"], 24)
        assert record["fps"] == fps
        for index, (start, frame) in enumerate(zip(record["starts"], record["start_frames"], strict=True)):
            middle = start + summary["num_frames"] / fps / 2
            assert (middle * fps - summary["num_frames"] / 2) / summary["feat_stride"] == pytest.approx(index)
            assert frame == index * 2


def test_with_a_rate_of_samples_frames_are_those_of_the_resampled_video(processor, videos, tmp_path):
    records = extract(processor, videos, tmp_path, fps=10)
    summary = json.loads((tmp_path / "features.json").read_text())
    assert (summary["feat_stride"], summary["num_frames"], summary["default_fps"]) == (1, 2, 10)
    assert records["a"]["start_frames"] == [0, 1] and records["a"]["starts"] == pytest.approx([0, 0.1])


def test_frames_are_those_of_the_rate_that_the_processor_has(videos, tmp_path):
    processor = VideoClipProcessor(
        fps=10, sampling_strategy="dense", size={"shortest_edge": 16}, crop_size={"height": 16, "width": 16}
    )
    record = extract(processor, videos, tmp_path)["a"]
    assert (record["fps"], record["start_frames"]) == (10, [0, 1]) and record["starts"] == pytest.approx([0, 0.1])


@pytest.mark.parametrize("last", ["pad", "shift"])
def test_frames_of_windows_are_counted_whatever_their_times_and_distance(processor, tmp_path, last):
    encode_video(tmp_path / "steady.mp4", make_frames(10), fps=25)
    # The second half is three times slower.
    encode_video(tmp_path / "varying.mp4", make_frames(10), times=[0, 1, 2, 3, 4, 7, 10, 13, 16, 19])
    for rate, num_frames, starts, ends in [
        (1, 4, [0, 3, 6], [4, 7, 10]),
        (3, 2, [0, 6], [6, 10]),
        # A single window, of three samples and a repeated one.
        (4, 4, [0], [10]),
    ]:
        sizes = {"num_frames": num_frames, "stride": min(num_frames, 3), "frame_sampling_rate": rate, "last": last}
        records = extract(processor, tmp_path, tmp_path / f"out{rate}", make_model(num_frames=num_frames), **sizes)
        for record in records.values():
            assert (record["start_frames"], record["end_frames"]) == (starts, ends)
        assert (records["steady"]["fps"], records["varying"]["fps"]) == (25, pytest.approx(9 / 19 * 30))


def test_every_format_holds_the_same(processor, videos, tmp_path):
    model = make_model()
    for file_format in ("npy", "safetensors", "parquet"):
        records = extract(processor, videos, tmp_path / file_format, model, file_format=file_format)
    expected = extract_window_features(model, processor, str(videos / "a.mp4"), **WINDOWS)
    array = np.load(tmp_path / "npy" / "a.npy")
    np.testing.assert_array_equal(array, expected.features)
    assert records["a"]["starts"] == expected.starts and records["a"]["ends"] == expected.ends
    tensors = load_file(tmp_path / "safetensors" / "a.safetensors")
    np.testing.assert_array_equal(tensors["features"].numpy(), array)
    assert (tensors["starts"].tolist(), tensors["ends"].tolist()) == (expected.starts, expected.ends)
    rows = load_dataset(
        "parquet", data_files=str(tmp_path / "parquet" / "a.parquet"), cache_dir=str(tmp_path), split="train"
    )
    np.testing.assert_array_equal(rows.with_format("numpy")["feature"][:], array)
    assert set(rows["video"]) == {"a"} and rows["start"][:] == expected.starts and rows["end"][:] == expected.ends


@pytest.mark.parametrize("file_format", ["npy", "parquet"])
def test_all_tokens_of_a_window(processor, videos, tmp_path, file_format):
    records = extract(processor, videos, tmp_path / "out", file_format=file_format, pooling="none")
    if file_format == "npy":
        assert np.load(tmp_path / "out" / "a.npy").shape == (8, 4, 24)
    else:
        path = str(tmp_path / "out" / "a.parquet")
        rows = load_dataset("parquet", data_files=path, cache_dir=str(tmp_path), split="train")
        assert rows.with_format("numpy")["feature"][:].shape == (8, 4, 24)
    assert records["a"]["num_windows"] == 8


def test_finished_videos_are_not_computed_again_and_changed_ones_are(processor, videos, tmp_path, monkeypatch):
    data, out = shutil.copytree(videos, tmp_path / "videos"), tmp_path / "out"
    extract(processor, data, out)
    before = files_of(out)
    read = []
    original = ExtractTask.read
    monkeypatch.setattr(
        ExtractTask,
        "read",
        lambda self, source: read.append(os.path.basename(source.name)) or original(self, source),
    )
    extract(processor, data, out)
    assert read == [] and files_of(out) == before
    encode_video(data / "z.mp4", make_frames(7))
    (out / "a.npy").unlink()
    records = extract(processor, data, out)
    assert read == ["a.mp4", "z.mp4"] and records["z"]["num_windows"] == 6 and np.load(out / "z.npy").shape == (6, 24)
    assert (out / "a.npy").read_bytes() == before["a.npy"]
    # A video that has become unreadable has no features, and those of the others stay.
    (data / "z.mp4").write_bytes(b"not a video")
    assert "error" in extract(processor, data, out)["z"]
    assert not (out / "z.npy").exists() and (out / "a.npy").exists()


def test_a_machine_without_memory_is_no_broken_video(processor, videos, tmp_path, monkeypatch):
    def encode(*args):
        raise torch.OutOfMemoryError("the accelerator is full")

    monkeypatch.setattr(ExtractTask, "encode", encode)
    with pytest.raises(torch.OutOfMemoryError):
        extract(processor, videos, tmp_path / "out")


def test_features_of_a_video_that_is_out_of_reach_stay(processor, videos, tmp_path):
    data, out = shutil.copytree(videos, tmp_path / "videos"), tmp_path / "out"
    extract(processor, data / "a.mp4", out)
    before = files_of(out)
    (data / "a.mp4").rename(data / "elsewhere")
    assert "does not exist" in extract(processor, data / "a.mp4", out)["a"]["error"]
    assert files_of(out) == before


def test_features_before_damage_are_not_those_of_the_video(processor, videos, tmp_path):
    data = shutil.copytree(videos, tmp_path / "videos")
    damage_frame(data / "a.mp4", 7)
    records = extract(processor, data, tmp_path / "out", batch_size=1)
    assert {name for name, record in records.items() if "error" in record} == {"damaged_a"}
    assert "damaged_a.mp4" in records["damaged_a"]["error"]
    assert json.loads((tmp_path / "out" / "features.json").read_text())["videos"]["damaged_a"] == records["damaged_a"]
    assert sorted(path for path in files_of(tmp_path / "out") if "damaged" in path) == []


def test_other_settings_never_share_a_folder(processor, videos, tmp_path):
    extract(processor, videos, tmp_path / "out")
    before = files_of(tmp_path / "out")
    other = make_model()
    torch.nn.init.zeros_(other.videovit.embeddings.patch_embeddings.projection.weight)
    for options, told in [
        ({"stride": 2}, "stride 1, not 2"),
        ({"pooling": "mean"}, "pooling 'head', not 'mean'"),
        ({"file_format": "parquet"}, "format 'npy', not 'parquet'"),
        ({"model": other}, "other weights"),
    ]:
        with pytest.raises(ValueError, match=f"has features of other settings .*{told}"):
            extract(processor, videos, tmp_path / "out", **options)
    assert files_of(tmp_path / "out") == before
    with pytest.raises(ValueError, match="has other files .a.mp4, day, z.mp4.: choose another folder"):
        extract(processor, videos, videos)
    with pytest.raises(ValueError, match="is a file; a folder is expected"):
        extract(processor, videos, videos / "a.mp4")


def test_another_video_of_the_same_name_is_refused(processor, videos, tmp_path):
    extract(processor, videos / "a.mp4", tmp_path / "out")
    shutil.copy(videos / "z.mp4", tmp_path / "a.mp4")
    with pytest.raises(ValueError, match="has features of .* under the name 'a', which .*/a.mp4 would overwrite"):
        extract(processor, tmp_path / "a.mp4", tmp_path / "out")
    assert sorted(extract(processor, videos / "z.mp4", tmp_path / "out")) == ["z"]
    assert sorted(json.loads((tmp_path / "out" / "features.json").read_text())["videos"]) == ["a", "z"]


def test_a_full_disk_ends_the_run_and_names_the_file(processor, videos, tmp_path, monkeypatch):
    def full(path, video, shape):
        raise OSError(28, "No space left on device")

    monkeypatch.setitem(feature_folder.WRITERS, "npy", full)
    with pytest.raises(OSError, match="No space left on device.*a.npy"):
        extract(processor, videos, tmp_path)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 10))])
def test_killed_at_any_moment_the_next_run_gives_the_same_files(processor, videos, tmp_path, seed):
    model, generator = make_model(), random.Random(seed)

    def begin(folder):
        if process := os.fork():
            return process
        status = 1
        try:
            extract(processor, videos, folder, model)
            status = 0
        finally:
            os._exit(status)

    start = time.perf_counter()
    assert os.waitpid(begin(tmp_path / "whole"), 0)[1] == 0
    seconds = time.perf_counter() - start
    for _ in range(3):
        process = begin(tmp_path / "parts")
        time.sleep(generator.uniform(0, seconds))
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
    extract(processor, videos, tmp_path / "parts", model)
    found = {name: content for name, content in files_of(tmp_path / "parts").items() if not name.endswith(".partial")}
    assert found == files_of(tmp_path / "whole")


def test_a_journal_that_was_cut_off_keeps_its_whole_lines(processor, videos, tmp_path):
    extract(processor, videos, tmp_path)
    whole = files_of(tmp_path)
    summary = read_own_json(tmp_path / "features.json")
    lines = [json.dumps([name, record]) for name, record in summary["videos"].items()]
    (tmp_path / "features.json").write_text(json.dumps(summary | {"videos": {}}))
    (tmp_path / feature_folder.JOURNAL_FILE).write_text(f"{lines[0]}\n{lines[1][:-20]}")
    (tmp_path / "a.npy").write_bytes(b"kept")
    extract(processor, videos, tmp_path)
    assert files_of(tmp_path) == whole | {"a.npy": b"kept"}
