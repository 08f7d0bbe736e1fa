"""What `load_video_dataset` makes of folders and CSV files, right and wrong ones."""

import json
from pathlib import Path

import pytest
from datasets import ClassLabel, Dataset

from hf_video.data import label_names, load_unlabelled_videos, load_video_dataset


def make_files(root: Path, *names: str) -> Path:
    for name in names:
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    return root


def make_csv(root: Path, *lines: str, name: str = "clips.csv") -> Path:
    make_files(root, "videos/a.mp4", "videos/b.mp4", "videos/c.mp4")
    file = root / name
    file.write_text("\n".join(lines), encoding="utf-8")
    return file


def test_class_folders(tmp_path):
    hidden = ("jump/.hidden.mp4", "jump/day/.hidden/a.mp4", ".git/x.mp4")
    make_files(tmp_path, "run/b.mp4", "run/a.WEBM", "jump/c.avi", "jump/notes.txt", *hidden)
    dataset = load_video_dataset(tmp_path)

    assert list(dataset) == ["train"]
    assert dataset["train"].column_names == ["video", "label", "start", "end"]
    assert dataset["train"].features["label"] == ClassLabel(names=["jump", "run"])
    assert dataset["train"]["video"][:] == [str(tmp_path / name) for name in ("jump/c.avi", "run/a.WEBM", "run/b.mp4")]
    assert dataset["train"]["label"][:] == [0, 1, 1]
    assert dataset["train"][0]["start"] is None and dataset["train"][0]["end"] is None


def test_frame_folders_are_videos(tmp_path):
    make_files(tmp_path, "run/clip1/001.jpg", "run/clip1/002.jpg", "run/clip2/1.PNG", "jump/a.mp4", "jump/empty/.keep")
    videos = load_video_dataset(tmp_path)["train"]["video"][:]
    assert [Path(video).name for video in videos] == ["a.mp4", "clip1", "clip2"]


def test_split_folders(tmp_path):
    names = [f"{split}/{label}/1.mp4" for split in ("test", "Val", "training") for label in ("run", "jump")]
    dataset = load_video_dataset(make_files(tmp_path, *names, "metadata/readme.txt"))
    assert list(dataset) == ["train", "validation", "test"]
    assert dataset["validation"][1]["video"] == str(tmp_path / "Val/run/1.mp4")
    assert str(dataset["validation"].split) == "validation"


def test_classes_named_like_splits(tmp_path):
    dataset = load_video_dataset(make_files(tmp_path, "train/1.mp4", "test/1.mp4", "bus/1.mp4"))
    assert list(dataset) == ["train"]
    assert dataset["train"].features["label"].names == ["bus", "test", "train"]


def test_csv(tmp_path):
    elsewhere = make_files(tmp_path, "elsewhere/d.mp4") / "elsewhere/d.mp4"
    file = make_csv(
        tmp_path / "data",
        "\ufeffpath,label,start,end,source",
        "videos/a.mp4,run,,,phone",
        "videos/a.mp4, jump ,1.5,3,",
        "",
        f'"{elsewhere}",run,2',
    )
    dataset = load_video_dataset(file)["train"]
    assert dataset.features["label"].names == ["jump", "run"]
    assert dataset["video"][:] == [str(file.parent / "videos/a.mp4")] * 2 + [str(elsewhere)]
    assert dataset["label"][:] == [1, 0, 1]
    assert dataset["start"][:] == [None, 1.5, 2.0]
    assert dataset["end"][:] == [None, 3.0, None]


def test_given_labels_fix_the_ids(tmp_path):
    make_files(tmp_path, "train/run/1.mp4", "train/jump/1.mp4", "test/run/1.mp4")
    dataset = load_video_dataset(tmp_path, labels=["run", "walk", "jump"])
    assert dataset["train"]["label"][:] == [2, 0]
    assert dataset["test"]["label"][:] == [0]


def test_a_split_beside_that_for_training_may_lack_a_class(tmp_path):
    dataset = load_video_dataset(make_files(tmp_path, "train/jump/1.mp4", "train/run/1.mp4", "test/run/1.mp4"))
    assert [label_names(split) for split in dataset.values()] == [["jump", "run"], ["jump", "run"]]
    assert dataset["test"]["label"][:] == [1]


@pytest.mark.parametrize(
    ("files", "named"),
    [
        ([], "empty"),
        (["a.mp4", "b.mp4"], "a.mp4, b.mp4"),
        (["run/1.mp4", "jump/1.txt"], "jump .*1.txt"),
        (["run/1.mp4", "run/more/deep/2.mp4", "jump/1.mp4"], "more/"),
        (["run/1.mp4"], "'run'"),
        (["train/run/1.mp4", "test/jump/1.mp4", "test/run/1.mp4"], "train lacks 'jump'"),
        (["train/.keep", "val/run/1.mp4", "val/jump/1.mp4"], "train/"),
        (["val/run/1.mp4", "val/jump/1.mp4", "dev/run/1.mp4"], "'validation'"),
    ],
)
def test_wrong_folders(tmp_path, files, named):
    with pytest.raises(ValueError, match=named):
        load_video_dataset(make_files(tmp_path, *files))


def test_csv_with_missing_files_names_the_first_five(tmp_path):
    rows = [f"gone{number}.mp4,run" for number in range(7)]
    file = make_csv(tmp_path, "path,label", "videos/a.mp4,jump", *rows)
    with pytest.raises(FileNotFoundError, match=r"7 of 8 .*line 3: .*gone0.*gone4.mp4; and 2 more"):
        load_video_dataset(file)


def test_class_folders_have_no_video_root(tmp_path):
    make_files(tmp_path, "run/1.mp4", "jump/2.mp4")
    with pytest.raises(FileNotFoundError, match="/nonexistent"):
        load_video_dataset(tmp_path, video_root="/nonexistent")
    with pytest.raises(ValueError, match="video_root"):
        load_video_dataset(tmp_path, video_root=tmp_path)


def names_in(data, **options):
    splits = load_unlabelled_videos(data, **options)
    assert list(splits) == ["train"]
    assert not {"label", "labels"} & set(splits["train"].column_names)
    return sorted(video.rpartition("/")[2] for video in splits["train"]["video"])


def test_a_folder_gives_videos_at_any_depth(tmp_path):
    names = ("a.mp4", "deep/b.mp4", "deep/deeper/c.webm", "notes.txt", ".hidden/d.mp4", "deep/frames/1.jpg")
    assert names_in(make_files(tmp_path, *names)) == ["a.mp4", "b.mp4", "c.webm", "frames"]


@pytest.mark.parametrize("depth", ["", "class/"])
def test_of_a_folder_with_splits_the_training_split_counts(tmp_path, depth):
    files = (f"train/{depth}a.mp4", f"test/{depth}b.mp4", f"val/{depth}c.mp4")
    assert names_in(make_files(tmp_path, *files)) == ["a.mp4"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("list.csv", "path\na b.mp4\nc.mp4\n"),
        ("list.csv", "path,start,end\na b.mp4,0,1\nc.mp4,,\n"),
        ("list.csv", "path,label\na b.mp4,one\nc.mp4,\n"),
        ("list.txt", "a b.mp4\nc.mp4\n"),
        ("list.csv", "a b.mp4,0\nc.mp4,0\n"),
        ("list.json", json.dumps([{"path": "a b.mp4"}, {"path": "c.mp4", "label": "one"}])),
        ("train.csv", "path\na b.mp4\nc.mp4\n"),
    ],
)
def test_rows_of_a_list_need_no_labels(tmp_path, name, text):
    make_files(tmp_path, "a b.mp4", "c.mp4")
    (tmp_path / name).write_text(text)
    assert names_in(tmp_path if name == "train.csv" else tmp_path / name) == ["a b.mp4", "c.mp4"]
    (tmp_path / "elsewhere").mkdir()
    moved = (tmp_path / name).rename(tmp_path / "elsewhere" / "list").rename(tmp_path / "elsewhere" / name)
    assert names_in(moved, video_root=tmp_path) == ["a b.mp4", "c.mp4"]


def test_further_columns_are_kept_where_they_are_named(tmp_path):
    rows = ["videos/a.mp4,run,anna", "videos/b.mp4,jump,", "videos/c.mp4,run,7"]
    file = make_csv(tmp_path, "path,label,person", *rows)
    assert "person" not in load_video_dataset(file)["train"].column_names
    assert load_video_dataset(file, columns=["person", "camera"])["train"].to_dict() == {
        **load_video_dataset(file)["train"].to_dict(),
        "person": ["anna", None, "7"],
        "camera": [None, None, None],
    }
    entries = [{"path": f"videos/{name}.mp4", "label": name, "person": number} for number, name in enumerate("ab")]
    (tmp_path / "clips.json").write_text(json.dumps(entries))
    assert load_video_dataset(tmp_path / "clips.json", columns=["person"])["train"]["person"][:] == ["0", "1"]
    with pytest.raises(ValueError, match="'label'"):
        load_video_dataset(file, columns=["label"])


def rows_of(path, **options):
    """Path below the folder, class, start and end of each row."""
    rows = load_video_dataset(path, **options)["train"]
    names = label_names(rows)
    return [(row["video"].rpartition("videos/")[2], names[row["label"]], row["start"], row["end"]) for row in rows]


@pytest.mark.parametrize(
    "lines",
    [
        ("\ufeffPath;Label;Start;End", "videos/a.mp4;run;0,5;1:02:03,5", "videos/b.mp4;sit;;0:51"),
        ("File Name\tAction\tStart Time\tEnd Time", "videos/a.mp4\trun\t0.5\t1:02:03.5", "videos/b.mp4\tsit\t\t51"),
        ("Video;Behaviour;Start (s);Stop", "videos/a.mp4;run;0,5;1:02:03,5", "videos/b.mp4;sit;;51"),
        ("label, PATH ,end,start", "run,videos/a.mp4,3723.5,0.5", "sit,videos/b.mp4,51,"),
    ],
)
def test_tables_as_programs_write_them(tmp_path, lines, caplog):
    assert rows_of(make_csv(tmp_path, *lines)) == [("a.mp4", "run", 0.5, 3723.5), ("b.mp4", "sit", None, 51.0)]
    assert len([record for record in caplog.records if "columns are read" in record.getMessage()]) == 1


@pytest.mark.parametrize("name", ["list.csv", "list.json"])
def test_addresses_are_no_paths(tmp_path, name):
    videos = ["https://example.com/a.mp4", "s3://bucket/b.mp4"]
    rows = [{"path": video, "label": video[:4]} for video in videos]
    text = json.dumps(rows) if name == "list.json" else "\n".join(["path,label", *(f"{v},{v[:4]}" for v in videos)])
    (tmp_path / name).write_text(text)
    assert load_video_dataset(tmp_path / name)["train"]["video"][:] == videos
    (tmp_path / name).write_text(text.replace(videos[0], "a.mp4"))
    found = load_video_dataset(tmp_path / name, video_root="https://example.com")["train"]
    assert found["video"][:] == videos


def test_the_order_of_classes_is_total(tmp_path):
    names = [f"{zeros}{number}" for number in range(1, 10) for zeros in ("0", "")]
    file = make_csv(tmp_path, "path,label", *(f"videos/a.mp4,{name}" for name in reversed(names)))
    assert label_names(load_video_dataset(file)["train"]) == names


def test_none_and_null_are_names(tmp_path):
    file = make_csv(tmp_path, "path,label", "videos/a.mp4,None", "videos/b.mp4,null", "videos/c.mp4,run")
    assert label_names(load_video_dataset(file)["train"]) == ["None", "null", "run"]


def test_labels_may_be_true_and_false(tmp_path):
    make_csv(tmp_path)
    entries = [{"path": "videos/a.mp4", "label": True}, {"path": "videos/b.mp4", "label": False}]
    (tmp_path / "list.json").write_text(json.dumps(entries))
    rows = Dataset.from_dict({"video": [str(tmp_path / entry["path"]) for entry in entries], "label": [True, False]})
    for data in (tmp_path / "list.json", rows):
        assert rows_of(data) == [("a.mp4", "True", None, None), ("b.mp4", "False", None, None)]


@pytest.mark.parametrize("separator", [" ", ","])
def test_lists_of_folders_of_frames_have_a_number_of_frames(tmp_path, separator):
    make_files(tmp_path, "videos/a b/1.jpg", "videos/c/1.jpg")
    lines = [separator.join(cells) for cells in (("videos/a b", "120", "3"), ("videos/c", "64", "10"))]
    assert rows_of(make_csv(tmp_path, *lines, name="list.txt")) == [("a b", "3", None, None), ("c", "10", None, None)]
    with pytest.raises(ValueError, match="line 1: 120 and 3"):
        load_video_dataset(make_csv(tmp_path, separator.join(("videos/a.mp4", "120", "3")), name="list.txt"))


def test_a_stream_is_refused_with_the_way_to_read_it():
    stream = Dataset.from_dict({"video": ["a.mp4"], "label": ["run"]}).to_iterable_dataset()
    for data in (stream, {"train": stream}):
        with pytest.raises(ValueError, match="load_video_stream"):
            load_video_dataset(data)


@pytest.mark.parametrize("depth", ["", "train/"])
def test_metadata_of_a_video_folder(tmp_path, depth):
    make_files(tmp_path, f"{depth}videos/a.mp4", f"{depth}videos/b.mp4")
    (tmp_path / depth / "metadata.csv").write_text("file_name,label\nvideos/a.mp4,run\nvideos/b.mp4,sit\n")
    assert rows_of(tmp_path) == [("a.mp4", "run", None, None), ("b.mp4", "sit", None, None)]


def test_another_table_beside_class_folders_is_none_of_videos(tmp_path):
    make_files(tmp_path, "run/a.mp4", "sit/b.mp4")
    (tmp_path / "metadata.csv").write_text("camera,place\n1,gym\n")
    assert len(load_video_dataset(tmp_path)["train"]) == 2


def test_a_column_of_a_list_says_the_split(tmp_path):
    rows = ["videos/a.mp4,run,train", "videos/b.mp4,sit,train", "videos/c.mp4,sit,val"]
    splits = load_video_dataset(make_csv(tmp_path, "path,label,split", *rows))
    assert {name: len(rows) for name, rows in splits.items()} == {"train": 2, "validation": 1}
