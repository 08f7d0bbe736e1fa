"""Lists of key frames: AVA's form, one's own, data sets with columns, and what is wrong in them."""

import datasets
import pytest
from datasets import ClassLabel, List, Value, Video

from hf_video.data import load_detections
from hf_video.data.boxes import action_names, read_label_map

from .detection_files import AVA, LABEL_MAP, OWN, write_annotations, write_videos


@pytest.fixture(scope="module")
def videos(tmp_path_factory):
    return write_videos(tmp_path_factory.mktemp("videos"))


@pytest.fixture
def label_map(tmp_path):
    (tmp_path / "labels.pbtxt").write_text(LABEL_MAP)
    return tmp_path / "labels.pbtxt"


def test_rows_with_equal_boxes_are_one_person(videos, tmp_path):
    write_annotations(tmp_path, train=OWN)
    data = load_detections(tmp_path / "train.csv", video_root=videos)
    assert list(data) == ["train"]
    rows = data["train"]
    assert action_names(rows) == ["talk, loudly", "turn left", "walk"]
    assert rows[0] == {
        "video": str(videos / "a.mp4"),
        "second": 1.0,
        "boxes": [[0.1, 0.2, 0.5, 0.9], [0.6, 0.2, 0.9, 0.9]],
        "actions": [[2, 0], []],
    }
    assert rows["second"][:] == [1, 1.5, 0]


def test_rows_with_one_name_of_a_person_are_one_person(videos, tmp_path):
    text = """video,second,x1,y1,x2,y2,action,person
a.mp4,1,0.1,0.2,0.5,0.9,walk,anna
a.mp4,1,0.10,0.20,0.50,0.90,talk,anna
a.mp4,1,0.1,0.2,0.5,0.9,talk,
a.mp4,1,0.1,0.2,0.5,0.9,walk,ben
"""
    write_annotations(tmp_path, train=text)
    (row,) = load_detections(tmp_path / "train.csv", video_root=videos)["train"]
    assert row["boxes"] == [[0.1, 0.2, 0.5, 0.9]] * 3 and row["actions"] == [[1, 0], [0], [1]]
    write_annotations(tmp_path, train=text + "a.mp4,2,0,0,1,1,walk,anna\na.mp4,1,0.1,0.2,0.6,0.9,run,anna\n")
    with pytest.raises(ValueError, match="row 6: the person 'anna' has another box at this second in a row before"):
        load_detections(tmp_path / "train.csv", video_root=videos)


def test_ava_names_videos_without_suffix_and_actions_by_their_ids(videos, label_map, tmp_path):
    write_annotations(tmp_path, **{"ava_train_v2.2": AVA, "ava_val_v2.2": AVA[: AVA.index("b,")]})
    write_annotations(tmp_path, **{"ava_val_excluded_timestamps_v2.2": "a,0902\r\n"})
    options = {"video_root": videos, "first_second": 900}
    data = load_detections(
        tmp_path, label_map=label_map, exclude=tmp_path / "ava_val_excluded_timestamps_v2.2.csv", **options
    )
    assert list(data) == ["train", "validation"]
    assert action_names(data["train"]) == ["walk", "2", 'watch (e.g., "TV")'] == action_names(data["validation"])
    assert [(row["second"], row["actions"]) for row in data["train"]] == [(1, [[2, 0]]), (0, [[1]])]
    unnamed = load_detections(tmp_path, **options)
    assert action_names(unnamed["validation"]) == ["1", "2", "3"]
    assert unnamed["validation"]["second"][:] == [1, 2]


@pytest.mark.parametrize("is_stored", [False, True])
@pytest.mark.parametrize("inner", [Value("string"), ClassLabel(names=["walk", "run"])])
def test_a_data_set_with_columns_has_the_same_rows(is_stored, inner, videos, tmp_path):
    file = videos / "a.mp4"
    columns = {
        "video": [{"bytes": file.read_bytes(), "path": None} if is_stored else str(file)] * 2,
        "second": [0.0, 1.0],
        "boxes": [[], [[0, 0, 0.5, 1], [0.5, 0, 1, 1]]],
        "actions": [[], [["walk", "run"], []]],
    }
    features = datasets.Features(
        {
            "video": Video() if is_stored else Value("string"),
            "second": Value("float64"),
            "boxes": List(List(Value("float32"))),
            "actions": List(List(inner)),
        }
    )
    datasets.Dataset.from_dict(columns, features).save_to_disk(tmp_path / "saved")
    (row,) = rows = load_detections(tmp_path / "saved")["train"]
    names = action_names(rows)
    assert names == (["walk", "run"] if isinstance(inner, ClassLabel) else ["run", "walk"])
    assert row["second"] == 1 and row["boxes"] == [[0, 0, 0.5, 1], [0.5, 0, 1, 1]]
    assert [[names[each] for each in person] for person in row["actions"]] == [["walk", "run"], []]
    assert (row["bytes"] == file.read_bytes()) if is_stored else (row["video"] == str(file))


HEADER = "video,second,x1,y1,x2,y2,action\n"


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("", ValueError, "empty"),
        (HEADER, ValueError, "no rows"),
        ("video,second,x1,y1,x2,action\na,1,0,0,1,walk\n", ValueError, "y2"),
        (HEADER + "a,1,0,0,1,1,walk\na,1,0,0,1.2,1,walk\n", ValueError, "row 2: the box is 0, 0, 1.2, 1"),
        (HEADER + "a,1,0.5,zero,0.6,1,walk\n", ValueError, "row 1: y1 is 'zero'"),
        (HEADER + "a,nan,0.5,0,0.6,1,walk\n", ValueError, "row 1: second is 'nan'"),
        (HEADER + ",,,,,,\na,nan,0.5,0,0.6,1,walk\n", ValueError, "^[^\n]*row 2: second is 'nan'"),
        (HEADER + "a,1,0,0,1,1,\n", ValueError, "no action"),
        (HEADER + "a,-1,0,0,1,1,walk\n", ValueError, "row 1: second is -1"),
        (HEADER + "a,1,0,0,1,1,walk\nc,1,0,0,1,1,walk\n", FileNotFoundError, "row 2: .*c"),
        ("a,0901,0,0,1,1\n", ValueError, "'a,0901,0,0,1,1'"),
        ("a,0901,0,0,1,1,walk,1\n", ValueError, "row 1: the action is 'walk'"),
    ],
)
def test_tells_what_is_wrong_in_a_file(text, error, message, videos, tmp_path):
    write_annotations(tmp_path, train=text)
    with pytest.raises(error, match=message):
        load_detections(tmp_path, video_root=videos)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (AVA + "a,0902,0,0,1,1,4,1\n", "row 5: the action '4' is unknown; the label map has the ids 1 to 3"),
        (HEADER + "a,900,0,0,1,1,wlak\n", "row 1: the action 'wlak' is unknown.*Did you mean walk?"),
        ("a,0899,0,0,1,1,1,1\n", "row 1: second is 899; at least first_second=900"),
    ],
)
def test_tells_what_does_not_fit_the_label_map(text, message, videos, label_map, tmp_path):
    write_annotations(tmp_path, train=text)
    with pytest.raises(ValueError, match=message):
        load_detections(tmp_path / "train.csv", video_root=videos, label_map=label_map, first_second=900)


def test_everything_may_not_be_excluded(videos, tmp_path):
    write_annotations(tmp_path, train=HEADER + "a,1,0,0,1,1,walk\n", excluded="a.mp4,1\n")
    with pytest.raises(ValueError, match="The train split has no key frame"):
        load_detections(tmp_path, video_root=videos, exclude=tmp_path / "excluded.csv")


def test_a_name_of_two_videos_is_refused(videos, tmp_path):
    write_annotations(tmp_path, train=AVA)
    for name in ("a.mp4", "a.mkv", "b.mp4"):
        (tmp_path / name).touch()
    with pytest.raises(ValueError, match="'a' stands for a.mkv, a.mp4. Keep one"):
        load_detections(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"boxes": None}, "'boxes'"),
        ({"boxes": [[[0, 0, 1]]]}, r"train\[0\] has 1 boxes"),
        ({"boxes": [[[0, 0, 1, 2]]]}, r"train\[0\]: the box is 0, 0, 1, 2"),
        ({"actions": [[["a"], ["b"]]]}, r"train\[0\] has 1 boxes and 2 lists"),
        ({"actions": [[[1]]]}, "int64"),
        ({"second": [None]}, r"train\[0\]: second is None"),
    ],
)
def test_tells_what_is_wrong_in_a_data_set(changes, message):
    columns = {"video": ["a.mp4"], "second": [1.0], "boxes": [[[0.0, 0, 1, 1]]], "actions": [[["walk"]]]} | changes
    rows = datasets.Dataset.from_dict({name: values for name, values in columns.items() if values is not None})
    with pytest.raises(ValueError, match=message):
        load_detections(rows)


@pytest.mark.parametrize(
    "text", ["", 'label { name: "walk" id: 0 }', 'label { name: "walk" id: 1 } label { name: "walk" id: 2 }']
)
def test_tells_what_is_no_label_map(text, label_map):
    label_map.write_text(text)
    with pytest.raises(ValueError, match="labels.pbtxt"):
        read_label_map(label_map)
