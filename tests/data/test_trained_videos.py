"""What a training keeps of its videos, and how many of them an evaluation finds again."""

import json
import shutil

import datasets
import pytest

from hf_video.cli.main import main
from hf_video.data import load_video_dataset, repeated_videos
from hf_video.data.manifest import content_digest
from hf_video.data.repeated_videos import TRAINED_VIDEOS_FILE, TrainedVideos, count_trained, write_trained_videos
from tests.video_files import encode_video, make_frames


@pytest.fixture
def videos(tmp_path):
    """Six different videos of two classes."""
    for number in range(6):
        (tmp_path / "data" / "ab"[number % 2]).mkdir(parents=True, exist_ok=True)
        encode_video(tmp_path / "data" / "ab"[number % 2] / f"{number}.mp4", make_frames(4 + number))
    return tmp_path / "data"


def rows_of(data):
    return load_video_dataset(data)["train"]


def test_copies_are_found_again_under_other_names_and_no_name_is_kept(videos, tmp_path):
    rows = rows_of(videos)
    write_trained_videos(tmp_path, {"train": rows.select(range(4)), "validation": rows.select(range(4, 6))})
    kept = (tmp_path / TRAINED_VIDEOS_FILE).read_text()
    assert "mp4" not in kept and str(tmp_path) not in kept
    copies = tmp_path / "copies"
    for number, video in enumerate(rows["video"][:5]):
        (copies / "xy"[number % 2]).mkdir(parents=True, exist_ok=True)
        shutil.copy(video, copies / "xy"[number % 2] / f"copy{number}.mp4")
    encode_video(copies / "x" / "other.mp4", make_frames(30))
    (copies / "x" / "broken.mp4").symlink_to(tmp_path / "nowhere")
    assert count_trained(tmp_path, rows_of(copies)) == TrainedVideos({"train": 4, "validation": 1}, is_least=False)
    assert count_trained(tmp_path / "checkpoint-3", rows_of(copies)) == count_trained(tmp_path, rows_of(copies))
    assert count_trained(tmp_path / "other", rows) is None


def test_manifests_packs_and_stored_videos_have_the_same_digests(videos, tmp_path):
    assert main(["inspect", str(videos), "--output", str(tmp_path / "videos.parquet"), "--num-workers", "1"]) == 0
    assert main(["pack", str(videos), "--output", str(tmp_path / "pack")]) == 0
    rows = rows_of(videos)
    stored = {"video": [{"bytes": open(video, "rb").read(), "path": None} for video in rows["video"]]}
    features = datasets.Features({"video": datasets.Video(), "label": datasets.ClassLabel(names=["a", "b"])})
    datasets.Dataset.from_dict(stored | {"label": rows["label"][:]}, features=features).save_to_disk(tmp_path / "disk")
    write_trained_videos(tmp_path, {"train": rows})
    kept = (tmp_path / TRAINED_VIDEOS_FILE).read_text()
    for source in ("videos.parquet", "pack", "disk"):
        assert count_trained(tmp_path, rows_of(tmp_path / source)) == TrainedVideos({"train": 6}, is_least=False)
        write_trained_videos(tmp_path, {"train": rows_of(tmp_path / source)})
        assert (tmp_path / TRAINED_VIDEOS_FILE).read_text() == kept


def test_a_manifest_spares_the_reading_and_of_many_files_a_sample_is_read(videos, tmp_path, monkeypatch):
    assert main(["inspect", str(videos), "--output", str(tmp_path / "videos.parquet"), "--num-workers", "1"]) == 0
    read = []
    monkeypatch.setattr(
        "hf_video.data.manifest.content_digest", lambda path: read.append(path) or content_digest(path)
    )
    write_trained_videos(tmp_path, {"train": rows_of(tmp_path / "videos.parquet")})
    assert count_trained(tmp_path, rows_of(tmp_path / "videos.parquet")).by_split == {"train": 6} and not read
    monkeypatch.setattr(repeated_videos, "MAX_READ", 3)
    write_trained_videos(tmp_path, {"train": rows_of(videos)})
    assert len(read) == 3 and len(json.loads((tmp_path / TRAINED_VIDEOS_FILE).read_text())["digests"]["train"]) == 3
    assert count_trained(tmp_path, rows_of(tmp_path / "videos.parquet")) == TrainedVideos({"train": 3}, is_least=True)


def test_a_file_of_the_user_says_nothing(videos, tmp_path):
    (tmp_path / TRAINED_VIDEOS_FILE).write_text("[1]")
    assert count_trained(tmp_path, rows_of(videos)) is None
