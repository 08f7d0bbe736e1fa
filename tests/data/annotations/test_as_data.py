"""An annotation file is data wherever a list of times is."""

import json

import numpy as np
import pytest

from hf_video.data import load_video_dataset
from hf_video.data.annotations.new import write_new_annotations
from hf_video.data.frame_labels import UNKNOWN, annotated_videos, split_videos
from hf_video.data.rows import TO_LABEL
from hf_video.evaluation import read_ground_truth, read_predictions
from hf_video.inference.segments import Segment
from tests.testing.videos import encode_video, make_frames

from .test_readers import NAMES, place


@pytest.mark.parametrize("name", NAMES)
def test_every_format_is_a_list_of_times(name, tmp_path, caplog):
    file, expected = place(name, tmp_path)
    splits = load_video_dataset(file, choices=expected.get("choices", {}) | {"point_width": 0.5})
    assert sum(map(len, splits.values())) == len(expected["rows"])
    assert len(caplog.records) >= len(expected["reports"])


def test_unknown_time_is_no_background(tmp_path, caplog):
    """Outside of the interval of an observation nobody looked."""
    file, _ = place("boris_project", tmp_path)
    rows = load_video_dataset(file, columns=["subject"])["train"]
    assert "unpaired start: media arena_01.mp4, source trial 1, subject mouse B, class walk" in caplog.text
    assert "3 points left out" in caplog.text and {*rows["subject"]} == {"mouse A", "mouse B", None}
    (video,) = (each for each in annotated_videos(rows) if each.row["video"].endswith("arena_02.mp4"))
    assert video.parts == [(1.0, 9.0)]
    assert video.labels_at(np.array([0.5, 1.2, 2.0, 9.5]), 3, background=2).tolist() == [UNKNOWN, 2, 0, UNKNOWN]
    videos, _ = split_videos({"train": rows}, 0.2, 0, "time", background="nothing")
    parts = [
        part for each in videos.values() for video in each for part in video.parts if "arena_02" in video.row["video"]
    ]
    assert min(begin for begin, _ in parts) == 1.0 and max(end for _, end in parts) == 9.0


def test_files_without_any_row(tmp_path):
    file, _ = place("via_csv", tmp_path)
    for video in tmp_path.rglob("*.mp4"):
        video.unlink()
    with pytest.raises(ValueError, match="no segment of a video that is found; .* missing media: media aviary"):
        load_video_dataset(file)


@pytest.mark.parametrize("ending", ["boris", "csv"])
def test_files_in_which_nothing_is_labelled_yet(ending, tmp_path):
    file = tmp_path / f"next.{ending}"
    video = encode_video(tmp_path / "a.mp4", make_frames(20, 16, 16), fps=10)
    if ending == "csv":
        file.write_text(f"path,start,end,label\n{video},0,1,{TO_LABEL}\n")
    else:
        row = {"media": str(video), "class": TO_LABEL, "start": 0.0, "end": 1.0, "score": 1.0}
        write_new_annotations(ending, [row], file, ["dig"])
    with pytest.raises(ValueError, match="nothing is labelled yet"):
        load_video_dataset(file)


def test_tables_and_projects_are_ground_truth(tmp_path):
    """Predictions may be the table of a timeline."""
    file, _ = place("deepethogram", tmp_path)
    truth = {"maze_1": [Segment("rear", 0.5, 1.2), Segment("dig", 1.0, 1.5), Segment("dig", 2.5, 3.0)]}
    assert read_ground_truth(file) == truth
    table = tmp_path / "times.csv"
    table.write_text("Path;Start;End;Label\nmaze_1.avi;0,5;1,2;rear\n")
    assert read_ground_truth(table) == {"maze_1": truth["maze_1"][:1]}
    table.write_text("path,label,start,end,score,class_id\n/x/maze_1.avi,rear,0.5,1.25,0.9,3\n")
    assert read_predictions(table) == {"maze_1": [Segment("rear", 0.5, 1.25, 0.9)]}
    (tmp_path / "t.json").write_text(json.dumps({"database": {"a": {"annotations": []}}}))
    assert read_ground_truth(tmp_path / "t.json") == {"a": []}
