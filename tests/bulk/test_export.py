"""Features in files for code of temporal localisation, which are those of one video, content and model."""

import json
import os
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from hf_video import VideoClipProcessor
from hf_video.bulk.export import extract_to_folder
from hf_video.bulk.tasks import extract_task
from hf_video.data.video_listing import list_videos
from hf_video.inference import extract_window_features, video_search
from hf_video.inference.windows import choose_windows
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


@pytest.fixture
def read(monkeypatch):
    """The names of the videos that were read."""
    found, read_clips = [], video_search.read_clips

    def counted(processor, source, *args, **options):
        found.append(os.path.basename(source))
        return read_clips(processor, source, *args, **options)

    monkeypatch.setattr(video_search, "read_clips", counted)
    return found


def extract(processor, videos, folder, model=None, pooling=None, batch_size=8, **options):
    windows = choose_windows(processor, **WINDOWS | options) | {"last": "pad", "source_fps": None}
    model = model or make_model(num_frames=windows["num_frames"])
    task = extract_task(model, processor, windows, SimpleNamespace(pooling=pooling, layer=None))
    return extract_to_folder(task, model, list_videos([str(videos)]), folder, windows, batch_size)


def test_code_for_temporal_localisation_finds_what_it_needs(processor, videos, tmp_path):
    """A moment of the video falls into the window that a reader of such features computes from the summary."""
    extract(processor, videos, tmp_path, num_frames=4, stride=2)
    summary = json.loads((tmp_path / "features.json").read_text())
    assert (summary["feat_stride"], summary["num_frames"], summary["default_fps"]) == (2, 4, None)
    for name, fps in {"a": 30, "day/zürich": 25, "z": 30}.items():
        features = np.load(tmp_path / f"{name}{summary['file_ext']}")
        record = summary["videos"][name]
        assert features.dtype == np.float32
        assert features.shape == (len(record["starts"]), summary["input_dim"]) == (record["num_windows"], 24)
        assert record["fps"] == pytest.approx(fps)
        for index, start in enumerate(record["starts"]):
            middle = start + summary["num_frames"] / fps / 2
            assert (middle * fps - summary["num_frames"] / 2) / summary["feat_stride"] == pytest.approx(index)
    records = extract(processor, videos, tmp_path / "rate", fps=10)
    summary = json.loads((tmp_path / "rate" / "features.json").read_text())
    assert (summary["feat_stride"], summary["num_frames"], summary["default_fps"]) == (1, 2, 10)
    assert records["a"]["starts"] == pytest.approx([0, 0.1])


def test_features_are_those_of_the_function_and_tokens_have_their_shape(processor, videos, tmp_path):
    model = make_model()
    (record,) = extract(processor, videos / "a.mp4", tmp_path / "out", model).values()
    expected = extract_window_features(model, processor, str(videos / "a.mp4"), **WINDOWS)
    np.testing.assert_allclose(np.load(tmp_path / "out" / "a.npy"), expected.features, rtol=0, atol=1e-6)
    assert (record["starts"], record["ends"]) == (expected.starts, expected.ends)
    extract(processor, videos / "a.mp4", tmp_path / "tokens", model, pooling="none")
    assert np.load(tmp_path / "tokens" / "a.npy").shape == (8, 4, 24)


def test_finished_videos_are_not_computed_again_and_changed_ones_are(processor, videos, tmp_path, read):
    data, out = shutil.copytree(videos, tmp_path / "videos"), tmp_path / "out"
    extract(processor, data, out)
    before = files_of(out)
    read.clear()
    extract(processor, data, out)
    assert read == [] and files_of(out) == before
    encode_video(data / "z.mp4", make_frames(7))
    (out / "a.npy").unlink()
    records = extract(processor, data, out)
    assert read == ["a.mp4", "z.mp4"] and records["z"]["num_windows"] == 6 and np.load(out / "z.npy").shape == (6, 24)
    assert (out / "a.npy").read_bytes() == before["a.npy"]
    # A video that has become unreadable has no features; those of one that is out of reach stay.
    (data / "z.mp4").write_bytes(b"not a video")
    assert "error" in extract(processor, data, out)["z"]
    assert not (out / "z.npy").exists() and (out / "a.npy").exists()
    (data / "a.mp4").rename(data / "elsewhere")
    before = files_of(out)
    assert "does not exist" in extract(processor, data / "a.mp4", out)["a"]["error"]
    assert files_of(out) == before


def test_features_before_damage_are_not_those_of_the_video(processor, videos, tmp_path):
    data = shutil.copytree(videos, tmp_path / "videos")
    damage_frame(data / "a.mp4", 7)
    records = extract(processor, data, tmp_path / "out", batch_size=1)
    assert {name for name, record in records.items() if "error" in record} == {"damaged_a"}
    assert "damaged_a.mp4" in records["damaged_a"]["error"]
    assert json.loads((tmp_path / "out" / "features.json").read_text())["videos"]["damaged_a"] == records["damaged_a"]
    assert [path for path in files_of(tmp_path / "out") if "damaged" in path] == []


def test_other_settings_and_other_videos_never_share_a_folder(processor, videos, tmp_path):
    extract(processor, videos, tmp_path / "out")
    before = files_of(tmp_path / "out")
    other = make_model()
    torch.nn.init.zeros_(other.videovit.embeddings.patch_embeddings.projection.weight)
    for options, told in [({"stride": 2}, "stride 1, not 2"), ({"model": other}, "other weights")]:
        with pytest.raises(ValueError, match=f"has features of other settings .*{told}"):
            extract(processor, videos, tmp_path / "out", **options)
    encode_video(tmp_path / "a.mp4", make_frames(4))
    with pytest.raises(ValueError, match="has features of .* under the name 'a', which .*/a.mp4 would overwrite"):
        extract(processor, tmp_path / "a.mp4", tmp_path / "out")
    assert files_of(tmp_path / "out") == before
    assert sorted(extract(processor, videos / "z.mp4", tmp_path / "out")) == ["z"]
    assert sorted(json.loads((tmp_path / "out" / "features.json").read_text())["videos"]) == ["a", "day/zürich", "z"]
