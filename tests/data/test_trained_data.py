"""The rows of a training are found again among others."""

import json

from datasets import Dataset, DatasetDict

from hf_video.data import load_video_dataset
from hf_video.data.trained_data import (
    TRAINED_VIDEOS_FILE,
    check_same_data,
    count_trained,
    describe_data,
    parts_by_file,
    was_split_by,
    write_trained_videos,
)


def test_rows_that_share_seconds_with_those_of_a_training_are_counted(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    for name in "abc":
        (folder / f"{name}.mp4").touch()
    for split, rows in {"train": ["a.mp4,run,0,4", "b.mp4,sit"], "validation": ["a.mp4,run,5,"]}.items():
        (folder / f"{split}.csv").write_text("\n".join(["path,label,start,end", *rows]))
    splits = load_video_dataset(folder)
    write_trained_videos(tmp_path, splits)
    kept = json.loads((tmp_path / TRAINED_VIDEOS_FILE).read_text())
    assert kept["columns"] == ["path", "start", "end"]
    assert kept["splits"]["train"] == [[str(folder / "a.mp4"), 0.0, 4.0], [str(folder / "b.mp4"), 0.0, None]]
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


def test_the_same_files_by_another_name_are_split_as_the_training_split_them(tmp_path):
    folder, table = tmp_path / "data", tmp_path / "table.csv"
    for name in ("run/a", "run/b", "sit/c", "sit/d", "sit/broken"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.mp4").touch()
    rows = load_video_dataset(folder)["train"]
    videos = [video.removeprefix(f"{folder}/") for video in rows["video"]]
    # What could not be read is in neither part.
    held_out = rows.select([videos.index("sit/d.mp4")])
    trained = rows.select([videos.index(name) for name in ("run/a.mp4", "run/b.mp4", "sit/c.mp4")])
    write_trained_videos(tmp_path, {"train": trained}, {"validation": held_out})
    assert count_trained(tmp_path, rows) == {"train": 3}, "the validation chose nothing"
    table.write_text("\n".join(["path,label", *(f"{folder / video},{video[:3]}" for video in reversed(videos))]))
    for data in (folder, table):
        parts = parts_by_file(tmp_path / "checkpoint-3", load_video_dataset(data))
        assert {name: {*part["video"]} for name, part in parts.items()} == {
            "train": {*trained["video"]},
            "validation": {*held_out["video"]},
        }
    some = parts_by_file(
        tmp_path, DatasetDict(train=rows.select([videos.index("run/a.mp4"), videos.index("sit/d.mp4")]))
    )
    assert {name: part["video"][:] for name, part in some.items()} == {
        "train": [f"{folder}/run/a.mp4"],
        "validation": held_out["video"][:],
    }, "of some of the rows, too"
    for part in (trained, held_out):
        assert parts_by_file(tmp_path, DatasetDict(train=part)) is None, "one part alone is measured as it is"
    assert parts_by_file(tmp_path, DatasetDict(train=rows, test=trained)) is None, "data with splits keep them"
    write_trained_videos(tmp_path, {"train": trained, "validation": trained})
    assert parts_by_file(tmp_path, load_video_dataset(folder)) is None, "a video that is in both parts"


def test_other_videos_of_the_same_names_are_not_those_of_a_training(tmp_path):
    def write(place, text):
        for name in ("run/1.mp4", "sit/1.mp4"):
            (tmp_path / place / name).parent.mkdir(parents=True)
            (tmp_path / place / name).write_text(f"{name} {text}")
        return load_video_dataset(tmp_path / place)

    trained, names = write("monday", "one"), ["run", "sit"]
    training = {"data": describe_data("monday", trained, names), "validation_fraction": 0.5}
    assert was_split_by(training, trained, names)
    assert was_split_by(training, write("moved", "one"), names)
    assert not was_split_by(training, write("tuesday", "others"), names)
    check_same_data(describe_data("tuesday", load_video_dataset(tmp_path / "tuesday"), names), training["data"])
