"""Videos that are found again by their content: within a data set, and among those of a training."""

import json
import os
import shutil

import datasets
import pytest
from datasets import ClassLabel, Dataset, DatasetDict, Features, Video

from hf_video.cli.main import main
from hf_video.data import load_video_dataset, repeated_videos
from hf_video.data.repeated_videos import (
    TRAINED_VIDEOS_FILE,
    Overlap,
    TrainedVideos,
    count_trained,
    find_overlaps,
    find_repeated_clips,
    repetition_warnings,
    tell_overlaps,
    write_trained_videos,
)
from hf_video.data.stored_videos import content_digest
from hf_video.data.video_texts import load_video_texts
from tests.video_files import encode_video, make_frames


@pytest.fixture
def folder(tmp_path):
    for name in "abcd":
        (tmp_path / f"{name}.mp4").write_bytes(os.urandom(1000))
    return tmp_path


def find(folder, **splits):
    for name, lines in splits.items():
        columns = ["path,labels"] if ";" in "".join(lines) else ["path,label,start,end"]
        (folder / f"{name}.csv").write_text("\n".join([*columns, *lines]))
    return find_repeated_clips(load_video_dataset(folder))


def test_different_clips_are_no_repetition(folder):
    train = ["a.mp4,run", "b.mp4,sit", "c.mp4,run,0,1", "c.mp4,sit,1,2", "a.mp4,run"]
    assert find(folder, train=train, test=["d.mp4,run", "c.mp4,run,2,3"]) == []


def test_one_clip_with_two_labels(folder):
    train = ["a.mp4,run,,2", "b.mp4,sit", "a.mp4,sit,0,2.0", "a.mp4,run,1,2"]
    (clip,) = find(folder, train=train)
    assert (clip.videos, clip.start, clip.end) == ((str(folder / "a.mp4"),), None, 2.0)
    assert (clip.splits, clip.labels) == (("train",), ("run", "sit"))
    (sentence,) = repetition_warnings([clip])
    assert sentence == (
        f"1 clip is listed with different labels: {folder / 'a.mp4'}, 0.0 s to 2.0 (train: run or sit)."
    )


def test_several_labels_are_compared_without_order(folder):
    assert find(folder, train=["a.mp4,run;sit", "a.mp4,sit;run"]) == []
    (clip,) = find(folder, train=["a.mp4,run;sit", "a.mp4,run"])
    assert clip.labels == ("run;sit", "run")


def test_one_clip_in_two_splits(folder):
    train, test = ["a.mp4,run", "b.mp4,sit"], ["c.mp4,sit", "a.mp4,run"]
    (clip,) = find(folder, train=train, validation=["b.mp4,sit,0,1"], test=test)
    assert (clip.splits, clip.labels) == (("train", "test"), ("run",))
    assert repetition_warnings([clip])[0].startswith("1 clip is in several splits")


@pytest.mark.parametrize("copy", [os.symlink, os.link, shutil.copy])
def test_links_and_copies_are_the_same_clip(folder, copy):
    (folder / "other").mkdir()
    copy(folder / "a.mp4", folder / "other" / "x.mkv")
    (clip,) = find(folder, train=["a.mp4,run", "b.mp4,sit"], validation=["other/x.mkv,sit"])
    assert clip.videos == (str(folder / "a.mp4"), str(folder / "other" / "x.mkv"))
    assert clip.splits == ("train", "validation") and clip.labels == ("run", "sit")
    assert len(repetition_warnings([clip])) == 2


def test_the_same_size_is_not_the_same_content_and_empty_files_are_nothing(folder):
    for name in "ab":
        (folder / f"{name}.mp4").write_bytes(b"")
    (folder / "c.mp4").unlink()
    (folder / "c.mp4").symlink_to("d.mp4")
    assert [clip.videos for clip in find(folder, train=["a.mp4,run", "b.mp4,sit", "c.mp4,run", "d.mp4,sit"])] == [
        (str(folder / "c.mp4"), str(folder / "d.mp4"))
    ]


def test_only_files_of_one_size_are_opened(folder, monkeypatch):
    opened = []
    monkeypatch.setattr(
        "hf_video.data.repeated_videos.content_digest", lambda path: opened.append(path) or content_digest(path)
    )
    for number, name in enumerate("abc"):
        (folder / f"{name}.mp4").write_bytes(bytes(number + 1))
    (folder / "d.mp4").write_bytes(bytes(3))
    (clip,) = find(folder, train=["a.mp4,run", "b.mp4,sit", "c.mp4,run", "d.mp4,sit"])
    assert opened == [str(folder / "c.mp4"), str(folder / "d.mp4")] and list(clip.videos) == opened


def test_files_that_are_stored_in_a_data_set(folder):
    names = ["a", "b", "c"]
    content = [(folder / f"{name}.mp4").read_bytes() for name in names]
    features = Features({"video": Video(decode=False), "label": ClassLabel(names=["run", "sit"])})

    def make(*rows):
        videos = [{"bytes": content[number], "path": None} for number, _ in rows]
        return Dataset.from_dict({"video": videos, "label": [label for _, label in rows]}, features=features)

    splits = load_video_dataset(DatasetDict(train=make((0, 0), (1, 1)), test=make((2, 0), (1, 0))))
    (clip,) = find_repeated_clips(splits)
    assert clip.videos == ("train[1]", "test[1]") and clip.labels == ("sit", "run")


def test_videos_with_texts_repeat_in_other_splits_alone(folder):
    (folder / "train.csv").write_text("video,question,answer\na.mp4,who,I\na.mp4,what,tea\nb.mp4,who,you\n")
    (folder / "val.csv").write_text("video,question,answer\nc.mp4,who,I\nb.mp4,what,milk\n")
    (clip,) = find_repeated_clips(load_video_texts(folder))
    assert clip.videos == (str(folder / "b.mp4"),) and clip.splits == ("train", "validation")
    assert str(clip) == f"{folder / 'b.mp4'} (train, validation)"


def overlaps(folder, **splits):
    find(folder, **splits)
    return find_overlaps(load_video_dataset(folder))


def test_splits_that_share_no_second_do_not_overlap(folder):
    shutil.copy(folder / "a.mp4", folder / "copy.mp4")
    train = ["a.mp4,run,0,2", "a.mp4,sit,1,3", "b.mp4,sit"]
    assert overlaps(folder, train=train, validation=["a.mp4,run,3,4", "c.mp4,run"], test=["copy.mp4,run,0,2"]) == []


def test_rows_of_two_splits_that_share_seconds_are_named(folder):
    train = ["a.mp4,run,0,9", "a.mp4,sit,2,3", "b.mp4,sit,1,", "c.mp4,run"]
    found = overlaps(folder, train=train, validation=["b.mp4,sit,0,", "a.mp4,run,8,20"], test=["c.mp4,run"])
    assert found == [
        Overlap(str(folder / "a.mp4"), 8.0, 9.0, ("train", "validation"), (1, 2)),
        Overlap(str(folder / "b.mp4"), 1.0, None, ("validation", "train"), (1, 3)),
        Overlap(str(folder / "c.mp4"), 0.0, None, ("test", "train"), (1, 4)),
    ]
    sentence = tell_overlaps(found)
    assert "in 3 pairs of rows: " in sentence and "a.mp4, 8 s to 9 s (train row 1 and validation row 2); " in sentence
    assert "b.mp4, 1 s to its end (validation row 1 and train row 3)" in sentence


def test_many_are_counted_and_three_are_shown(folder):
    (folder / "x").mkdir()
    rows = []
    for number in range(5):
        (folder / "x" / f"{number}.mp4").write_bytes(os.urandom(100 + number))
        rows += [f"x/{number}.mp4,run", f"x/{number}.mp4,sit"]
    (sentence,) = repetition_warnings(find(folder, train=rows))
    assert sentence.startswith("5 clips are listed with different labels: ") and sentence.endswith("; and 2 more.")
    assert [f"{number}.mp4" in sentence for number in range(5)] == [True] * 3 + [False] * 2


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
        "hf_video.data.stored_videos.content_digest", lambda path: read.append(path) or content_digest(path)
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


def test_of_a_video_in_two_splits_the_seconds_are_compared(folder, tmp_path):
    find(folder, train=["a.mp4,run,0,4", "b.mp4,sit,0,1"], validation=["a.mp4,run,5,"])
    write_trained_videos(tmp_path, load_video_dataset(folder))
    rows = ["a.mp4,run,1,2", "a.mp4,run,6,7", "a.mp4,run,4,5", "a.mp4,sit", "b.mp4,sit,2,3", "c.mp4,sit"]
    (folder / "asked.csv").write_text("\n".join(["path,label,start,end", *rows]))
    asked = rows_of(folder / "asked.csv")
    assert count_trained(tmp_path, asked) == TrainedVideos({"train": 3, "validation": 2}, is_least=False)
