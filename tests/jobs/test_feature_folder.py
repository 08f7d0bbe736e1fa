import json
import os
import shutil

import numpy as np
import pytest
import torch
from datasets import load_dataset

from hf_video import VideoClipProcessor
from hf_video.data.video_listing import list_videos
from hf_video.inference import extract_window_features
from hf_video.jobs import ExtractTask, extract_to_folder
from tests.testing.files import files_of
from tests.testing.trainers import make_model
from tests.testing.videos import damage_frame, encode_video, make_frames

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


def test_frames_of_windows_are_counted_whatever_their_times_and_distance(processor, tmp_path):
    # The second half is three times slower.
    encode_video(tmp_path / "varying.mp4", make_frames(10), times=[0, 1, 2, 3, 4, 7, 10, 13, 16, 19])
    for rate, num_frames, starts, ends in ((1, 4, [0, 3, 6], [4, 7, 10]), (3, 2, [0, 6], [6, 10])):
        sizes = {"num_frames": num_frames, "stride": min(num_frames, 3), "frame_sampling_rate": rate}
        video, model = tmp_path / "varying.mp4", make_model(num_frames=num_frames)
        (record,) = extract(processor, video, tmp_path / f"out{rate}", model, **sizes).values()
        assert (record["start_frames"], record["end_frames"]) == (starts, ends)
        assert record["fps"] == pytest.approx(9 / 19 * 30)


def rows_of(path, cache):
    return load_dataset("parquet", data_files=str(path), cache_dir=str(cache), split="train")


def test_every_format_holds_the_same(processor, videos, tmp_path):
    model, video = make_model(), videos / "a.mp4"
    extract(processor, video, tmp_path / "npy", model)
    (record,) = extract(processor, video, tmp_path / "parquet", model, file_format="parquet").values()
    expected = extract_window_features(model, processor, str(video), **WINDOWS)
    np.testing.assert_array_equal(np.load(tmp_path / "npy" / "a.npy"), expected.features)
    assert record["starts"] == expected.starts and record["ends"] == expected.ends
    rows = rows_of(tmp_path / "parquet" / "a.parquet", tmp_path)
    np.testing.assert_array_equal(rows.with_format("numpy")["feature"][:], expected.features)
    assert set(rows["video"]) == {"a"} and rows["start"][:] == expected.starts


def test_all_tokens_of_a_window(processor, videos, tmp_path):
    for file_format in ("npy", "parquet"):
        extract(processor, videos / "a.mp4", tmp_path / file_format, file_format=file_format, pooling="none")
    array = np.load(tmp_path / "npy" / "a.npy")
    assert array.shape == (8, 4, 24)
    rows = rows_of(tmp_path / "parquet" / "a.parquet", tmp_path)
    np.testing.assert_array_equal(rows.with_format("numpy")["feature"][:], array)


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


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("full"), OSError(28, "No space left on device")])
def test_a_machine_without_room_is_no_broken_video(processor, videos, tmp_path, monkeypatch, error):
    def encode(*args):
        raise error

    monkeypatch.setattr(ExtractTask, "encode", encode)
    with pytest.raises(type(error)):
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


def test_a_killed_run_is_continued_by_the_files_that_are_complete(processor, videos, tmp_path, monkeypatch):
    extract(processor, videos, tmp_path / "whole")
    read, original = [], ExtractTask.read

    def stopping(self, source):
        read.append(os.path.basename(source.name))
        if len(read) == 2:
            # Nothing of the run comes after this, as of a killed one.
            raise SystemExit
        return original(self, source)

    monkeypatch.setattr(ExtractTask, "read", stopping)
    with pytest.raises(SystemExit):
        extract(processor, videos, tmp_path / "parts")
    assert (tmp_path / "parts" / "a.npy").is_file()
    assert json.loads((tmp_path / "parts" / "features.json").read_text())["videos"] == {}
    extract(processor, videos, tmp_path / "parts")
    assert read == ["a.mp4", "z.mp4", "z.mp4", "zürich.mp4"]
    assert files_of(tmp_path / "parts") == files_of(tmp_path / "whole")
