"""What `hold_out` holds out: whole videos, values of a column, or the last seconds of each class."""

from pathlib import Path

import pytest

from hf_video.data import hold_out, load_video_dataset
from tests.testing.videos import encode_video, make_frames


def make_rows(folder, head, *rows, **options):
    """The rows of a CSV file; its videos are empty files unless they are there."""
    for row in rows:
        (folder / row.partition(",")[0]).touch()
    (folder / "clips.csv").write_text("\n".join([head, *rows]))
    return load_video_dataset(folder / "clips.csv", **options)["train"]


def make_segments(folder, *segments):
    """Segments (class, start, end) of a recording of 300 s."""
    encode_video(folder / "rec.mp4", make_frames(300, 16, 16), fps=1)
    return make_rows(folder, "path,label,start,end", *(f"rec.mp4,{label},{a},{b}" for label, a, b in segments))


def times(dataset):
    """Class, start and end of each row."""
    names = dataset.features["label"].names
    columns = (dataset[name][:] for name in ("label", "start", "end"))
    return [(names[label], start, end) for label, start, end in zip(*columns, strict=True)]


def described(held_out):
    return held_out.info.description


def test_a_share_of_the_videos_of_each_class(tmp_path):
    rows = [f"run{i}.mp4,run" for i in range(10)] + [f"jump{i}.mp4,jump" for i in range(5)] + ["rare.mp4,rare"]
    dataset = make_rows(tmp_path, "path,label", *rows)
    train, held_out = hold_out(dataset, 0.2, seed=1)

    assert sorted([*train["video"], *held_out["video"]]) == sorted(dataset["video"])
    assert sorted(name for name, _, _ in times(held_out)) == ["jump", "run", "run"]
    assert train.features == held_out.features == dataset.features
    assert hold_out(dataset, 0.2, seed=1)[1]["video"][:] == held_out["video"][:]
    assert hold_out(dataset, 0.2, seed=2)[1]["video"][:] != held_out["video"][:]
    assert "3 of 16 videos" in described(held_out) and "'rare'" in described(held_out)
    assert "--split-by time" not in described(held_out)


def test_the_segments_of_a_video_stay_together(tmp_path):
    segments = (("run", 0), ("jump", 1), ("run", 2))
    rows = [f"{name}.mp4,{label},{start},{start + 1}" for name in "abc" for label, start in segments]
    dataset = make_rows(tmp_path, "path,label,start,end", *rows)
    train, held_out = hold_out(dataset, 0.3, seed=0)
    assert len(held_out) == 3
    assert not set(train["video"]) & set(held_out["video"])
    assert "1 of 3 videos" in described(held_out) and "--split-by time" in described(held_out)


def test_exact_copies_stay_together(tmp_path):
    rows = [f"{name}{number}.mp4,{name}" for name in ("run", "jump") for number in range(4)]
    dataset = make_rows(tmp_path, "path,label", *rows)
    for name in ("run", "jump"):
        for number in range(4):
            (tmp_path / f"{name}{number}.mp4").write_text(f"{name}{number // 2}")
    for seed in range(8):
        train, held_out = hold_out(dataset, 0.2, seed)
        assert len(held_out) == 4
        contents = [{Path(path).read_text() for path in rows["video"]} for rows in (train, held_out)]
        assert not contents[0] & contents[1]


def test_the_values_of_a_column_stay_together(tmp_path):
    rows = [f"{person}{i}.mp4,{label},{person}" for person in ("anna", "ben", "7") for i, label in enumerate("xyxy")]
    dataset = make_rows(tmp_path, "path,label,person", *rows, columns=["person"])
    train, held_out = hold_out(dataset, 0.2, seed=0, split_by="person")
    (person,) = {*held_out["person"]}
    assert person not in train["person"][:] and len(held_out) == 4 and len(train) == 8
    assert f"1 of 3 values of person ({person})" in described(held_out)
    assert hold_out(dataset, 0.2, seed=0, split_by="person")[1]["video"][:] == held_out["video"][:]


def test_a_column_has_a_value_in_each_row(tmp_path):
    dataset = make_rows(tmp_path, "path,label,person", "a.mp4,run,anna", "b.mp4,jump,", columns=["person", "camera"])
    with pytest.raises(ValueError, match="no column 'person' to split by, or not in each row"):
        hold_out(dataset, 0.2, seed=0, split_by="person")
    for column in ("camera", "size"):
        with pytest.raises(ValueError, match=f"'{column}'"):
            hold_out(dataset, 0.2, seed=0, split_by=column)


def test_one_recording_is_split_by_time(tmp_path):
    dataset = make_segments(tmp_path, *(("abc"[i % 3], 3 * i, 3 * i + 2) for i in range(60)))
    train, held_out = hold_out(dataset, 0.2, seed=0)
    assert times(train) + times(held_out) == times(dataset) and len(held_out) == 12
    assert held_out["start"][0] == 144
    assert "the last 20 % of the seconds of each class of rec.mp4" in described(held_out)
    assert train.features == dataset.features
    with pytest.raises(ValueError, match="1 in all"):
        hold_out(dataset, 0.2, seed=0, split_by="video")


def test_long_segments_are_cut(tmp_path):
    train, held_out = hold_out(make_segments(tmp_path, ("a", 0, 100), ("b", 100, 200)), 0.2, seed=0)
    assert times(train) == [("a", 0, 78), ("b", 100, 178)]
    assert times(held_out) == [("a", 80, 100), ("b", 180, 200)]


def test_an_end_after_that_of_the_video_does_not_count(tmp_path):
    train, held_out = hold_out(make_segments(tmp_path, ("a", 0, 100), ("b", 100, 9999)), 0.2, seed=0)
    assert times(train)[1] == ("b", 100, 258) and times(held_out)[1] == ("b", 260, 9999)


def test_a_gap_shortens_a_segment_or_takes_it(tmp_path):
    windows = [("a", i, i + 4) for i in range(0, 80, 4)] + [("b", i, i + 1) for i in range(80, 180)]
    train, held_out = hold_out(make_segments(tmp_path, *windows), 0.2, seed=0)
    assert ("a", 60, 62) in times(train) and ("a", 64, 68) in times(held_out)
    assert ("b", 157, 158) in times(train) and ("b", 160, 161) in times(held_out)
    assert len(train) + len(held_out) == len(windows) - 2


@pytest.mark.parametrize(
    ("segments", "held"),
    [
        ([(0, 4), (4, 8)], (4, 8)),  # whole segments, as near as possible
        ([(0, 1), (10, 11)], (10, 11)),
        ([(0, 1), (1, 101)], (80.8, 101)),  # most of the class would be held out
        ([(0, 100), (100, 101)], (80.8, 101)),  # almost nothing would be
        ([(0, 50), (40, 100)], (78, 100)),  # they overlap: the seconds of both count
    ],
)
def test_what_is_held_out_of_a_class(tmp_path, segments, held):
    dataset = make_segments(tmp_path, *(("a", *each) for each in segments), ("b", 200, 300))
    held_out = [row for row in times(hold_out(dataset, 0.2, seed=0)[1]) if row[0] == "a"]
    assert (held_out[0][1], held_out[-1][2]) == pytest.approx(held)


def test_a_class_without_seconds_to_train_on_is_an_error(tmp_path):
    dataset = make_segments(tmp_path, ("a", 0, 100), ("b", 100, 200), ("c", 85, 87))
    with pytest.raises(ValueError, match="'c'"):
        hold_out(dataset, 0.2, seed=0)


def test_no_second_is_in_both_parts(tmp_path):
    rows = ["rec.mp4,x;y,0,60", "rec.mp4,x,20,100", "rec.mp4,y,90,150", "rec.mp4,,0,200", "rec.mp4,x;y,150,190"]
    encode_video(tmp_path / "rec.mp4", make_frames(200, 16, 16), fps=1)
    dataset = make_rows(tmp_path, "path,labels,start,end", *rows)
    train, held_out = hold_out(dataset, 0.2, seed=0)
    for labels, start, end in zip(train["labels"], train["start"], train["end"], strict=True):
        for others, first, last in zip(held_out["labels"], held_out["start"], held_out["end"], strict=True):
            gap = 2 if {*labels} & {*others} else 0
            assert end <= first - gap or start >= last + gap


def test_whole_videos_are_split_by_their_durations(tmp_path):
    for index, name in enumerate("ab"):
        encode_video(tmp_path / f"{name}.mp4", make_frames(100, 16, 16)[:, :, :: 1 - 2 * index], fps=10)
    train, held_out = hold_out(make_rows(tmp_path, "path,label", "a.mp4,run", "b.mp4,sit"), 0.2, seed=0)
    assert times(train) == [("run", None, 7.8), ("sit", None, 7.8)]
    assert times(held_out) == [("run", 8, None), ("sit", 8, None)]
    both = make_rows(tmp_path, "path,label,start,end", "a.mp4,run,,", "b.mp4,run,0,10", "b.mp4,sit,0,10")
    assert len(hold_out(both, 0.2, seed=0)[1]) == 1
    assert len(hold_out(both, 0.2, seed=0, split_by="time")[1]) == 3


def test_what_cannot_be_split(tmp_path):
    dataset = make_segments(tmp_path, ("a", 0, 1), ("b", 1, 2))
    with pytest.raises(ValueError, match="1 in all"):
        hold_out(dataset, 0.5, seed=0)
