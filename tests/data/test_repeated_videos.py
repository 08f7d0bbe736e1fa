"""Videos that are found again by path and time: within a data set, and among those of a training."""

import json

import pytest
from datasets import Dataset

from hf_video.data import load_video_dataset
from hf_video.data.repeated_videos import (
    TRAINED_VIDEOS_FILE,
    Overlap,
    count_trained,
    find_overlaps,
    find_repeated_clips,
    repetition_warnings,
    tell_overlaps,
    write_trained_videos,
)
from hf_video.data.video_texts import load_video_texts


@pytest.fixture
def folder(tmp_path):
    for name in "abcd":
        (tmp_path / f"{name}.mp4").touch()
    return tmp_path


def load(folder, **splits):
    for name, lines in splits.items():
        columns = ["path,labels"] if ";" in "".join(lines) else ["path,label,start,end"]
        (folder / f"{name}.csv").write_text("\n".join([*columns, *lines]))
    return load_video_dataset(folder)


def find(folder, **splits):
    return find_repeated_clips(load(folder, **splits))


def test_different_clips_are_no_repetition(folder):
    train = ["a.mp4,run", "b.mp4,sit", "c.mp4,run,0,1", "c.mp4,sit,1,2", "a.mp4,run"]
    assert find(folder, train=train, test=["d.mp4,run", "c.mp4,run,2,3"]) == []


def test_one_clip_with_two_labels(folder):
    (clip,) = find(folder, train=["a.mp4,run,,2", "b.mp4,sit", "a.mp4,sit,0,2.0", "a.mp4,run,1,2"])
    assert (clip.video, clip.start, clip.end) == (str(folder / "a.mp4"), None, 2.0)
    assert (clip.splits, clip.labels) == (("train",), ("run", "sit"))
    (sentence,) = repetition_warnings([clip])
    assert "1 clip " in sentence and f"{folder / 'a.mp4'}, 0.0 s to 2.0 (train: run or sit)" in sentence


def test_several_labels_are_compared_without_order(folder):
    assert find(folder, train=["a.mp4,run;sit", "a.mp4,sit;run"]) == []
    (clip,) = find(folder, train=["a.mp4,run;sit", "a.mp4,run"])
    assert clip.labels == ("run;sit", "run")


def test_one_clip_in_two_splits(folder):
    train, test = ["a.mp4,run", "b.mp4,sit"], ["c.mp4,sit", "a.mp4,run"]
    (clip,) = find(folder, train=train, validation=["b.mp4,sit,0,1"], test=test)
    assert (clip.splits, clip.labels) == (("train", "test"), ("run",))


def test_videos_with_texts_repeat_in_other_splits_alone(folder):
    (folder / "train.csv").write_text("video,question,answer\na.mp4,who,I\na.mp4,what,tea\nb.mp4,who,you\n")
    (folder / "val.csv").write_text("video,question,answer\nc.mp4,who,I\nb.mp4,what,milk\n")
    (clip,) = find_repeated_clips(load_video_texts(folder))
    assert clip.video == str(folder / "b.mp4") and clip.splits == ("train", "validation")


def test_many_are_counted_and_three_are_shown(folder):
    rows = []
    for number in range(5):
        (folder / f"{number}.mp4").touch()
        rows += [f"{number}.mp4,run", f"{number}.mp4,sit"]
    (sentence,) = repetition_warnings(find(folder, train=rows))
    assert sentence.startswith("5 clips ") and "2 more" in sentence
    assert [f"{number}.mp4" in sentence for number in range(5)] == [True] * 3 + [False] * 2


def test_splits_that_share_no_second_do_not_overlap(folder):
    train = ["a.mp4,run,0,2", "a.mp4,sit,1,3", "b.mp4,sit"]
    assert find_overlaps(load(folder, train=train, validation=["a.mp4,run,3,4", "c.mp4,run"])) == []


def test_rows_of_two_splits_that_share_seconds_are_named(folder):
    train = ["a.mp4,run,0,9", "a.mp4,sit,2,3", "b.mp4,sit,1,", "c.mp4,run"]
    others = {"validation": ["b.mp4,sit,0,", "a.mp4,run,8,20"], "test": ["c.mp4,run"]}
    found = find_overlaps(load(folder, train=train, **others))
    assert found == [
        Overlap(str(folder / "a.mp4"), 8.0, 9.0, ("train", "validation"), (1, 2)),
        Overlap(str(folder / "b.mp4"), 1.0, None, ("validation", "train"), (1, 3)),
        Overlap(str(folder / "c.mp4"), 0.0, None, ("test", "train"), (1, 4)),
    ]
    sentence = tell_overlaps(found)
    assert "3 pairs of rows" in sentence and "a.mp4, 8 s to 9 s (train row 1 and validation row 2)" in sentence


def test_rows_that_share_seconds_with_those_of_a_training_are_counted(folder, tmp_path):
    splits = load(folder, train=["a.mp4,run,0,4", "b.mp4,sit"], validation=["a.mp4,run,5,"])
    write_trained_videos(tmp_path, splits)
    kept = json.loads((tmp_path / TRAINED_VIDEOS_FILE).read_text())
    assert kept["columns"] == ["path", "start", "end"]
    assert kept["splits"]["train"] == [[str(folder / "a.mp4"), 0.0, 4.0], [str(folder / "b.mp4"), None, None]]
    rows = ["a.mp4,run,1,2", "a.mp4,run,6,7", "a.mp4,run,4,5", "a.mp4,sit", "b.mp4,sit,2,3", "c.mp4,sit"]
    (folder / "asked.csv").write_text("\n".join(["path,label,start,end", *rows]))
    asked = load_video_dataset(folder / "asked.csv")["train"]
    for place in (tmp_path, tmp_path / "checkpoint-3"):
        assert count_trained(place, asked) == {"train": 3, "validation": 2}


def test_videos_inside_a_data_set_have_no_path_and_a_file_of_the_user_says_nothing(tmp_path):
    stored = Dataset.from_dict({"video": ["train[0]"], "bytes": [b"1"], "start": [None], "end": [None]})
    write_trained_videos(tmp_path, {"train": stored})
    assert json.loads((tmp_path / TRAINED_VIDEOS_FILE).read_text())["splits"] == {}
    assert count_trained(tmp_path, stored) is None
    (tmp_path / TRAINED_VIDEOS_FILE).write_text("[1]")
    assert count_trained(tmp_path, stored.remove_columns("bytes")) is None
    assert count_trained(tmp_path / "other", stored.remove_columns("bytes")) is None
