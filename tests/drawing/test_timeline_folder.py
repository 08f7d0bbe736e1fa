"""The files of a timeline, at sizes and with names that a command's test does not reach."""

import csv
import json

import numpy as np
import pytest
import torch
from matplotlib import font_manager
from pyarrow import parquet

from hf_video.drawing import draw_timeline
from hf_video.drawing.texts import clock, font_families, one_line, shorten
from hf_video.drawing.timeline_folder import TimelineFolder, write_webvtt
from hf_video.drawing.timeline_picture import Thumbnails, save_figure
from hf_video.inference import ScoredWindow, Segment, SegmentFinder
from hf_video.processing import VideoClipProcessor


def texts_of(figure):
    return [text.get_text() for text in figure.findobj(lambda artist: hasattr(artist, "get_text"))]


@pytest.mark.parametrize(
    ("seconds", "digits", "text"),
    [(0, 0, "0:00:00"), (59.99, 0, "0:00:59"), (59.999, 2, "0:01:00.00"), (3725.25, 2, "1:02:05.25")],
)
def test_a_clock_carries_over(seconds, digits, text):
    assert clock(seconds, digits) == text


def test_subtitles_have_hours_and_hide_no_markup(tmp_path):
    path = tmp_path / "a.vtt"
    segments = [
        Segment(0, "first", 59.9996, 59.9999, 0.5),
        Segment(1, "a <b>\n\n--> c & d", 3599.9999, 7200.5, 0.994),
        Segment(2, "late", 360_000, 360_001, 1.0),
    ]
    write_webvtt(path, segments, ["why --> it\nended"])
    assert path.read_text() == (
        "WEBVTT\n\nNOTE why -> it ended\n\n00:01:00.000 --> 00:01:00.001\nfirst (50%)\n\n"
        "01:00:00.000 --> 02:00:00.500\na &lt;b&gt; --&gt; c &amp; d (99%)\n\n"
        "100:00:00.000 --> 100:00:01.000\nlate (100%)\n"
    )


def test_segments_are_in_the_file_at_once_and_sorted_in_the_end(tmp_path):
    path, finder = tmp_path / "out" / "segments.csv", SegmentFinder(["a", "x"])
    folder = TimelineFolder(tmp_path / "out", "video", finder, VideoClipProcessor())
    late, early = Segment(0, 'a, "b"\nc', 5.0, 6.0, 0.75), Segment(1, "x", 1.0, 9.0, 0.5)
    folder.add_segment(late)
    assert len(path.read_text().splitlines()) == 3
    folder.add_segment(early)
    assert folder.finish({}) == [early, late] and folder.is_complete
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))
    assert rows == [
        ["label", "start", "end", "score", "class_id"],
        ["x", "1.000", "9.000", "0.500000", "1"],
        ['a, "b"\nc', "5.000", "6.000", "0.750000", "0"],
    ]
    with pytest.raises(FileExistsError):
        TimelineFolder(tmp_path / "out", "video", finder, VideoClipProcessor())
    entries = json.loads((tmp_path / "out" / "segments.json").read_text())["results"]["video"]
    assert entries[1] == {"label": 'a, "b"\nc', "score": 0.75, "segment": [5.0, 6.0]}


def test_scores_are_a_table_and_classes_of_one_name_stay_apart(tmp_path):
    values = np.random.default_rng(0).random((5, 3), dtype=np.float32)
    folder = TimelineFolder(tmp_path / "out", "video", SegmentFinder(["run", "jump", "run"]), VideoClipProcessor())
    for number, row in enumerate(values):
        folder.add_window(ScoredWindow(number, number + 2.0, row, torch.zeros(1, 3, 8, 8)))
    folder.finish({"model": "a"})
    table = parquet.read_table(tmp_path / "out" / "scores.parquet")
    assert table.column_names == ["start", "end", "score: run (class 0)", "score: jump", "score: run (class 2)"]
    assert table["start"].to_pylist() == [0, 1, 2, 3, 4] and table["end"].to_pylist() == [2, 3, 4, 5, 6]
    np.testing.assert_array_equal(np.stack(table.columns[2:], axis=1), values)


def test_a_picture_shows_only_classes_that_occur_in_their_order(tmp_path):
    values = np.full((60, 400), 0.01, np.float32)
    values[10:20, 300], values[30:40, 7] = 0.9, 0.8
    windows = np.arange(60)[:, None] + [0, 2.0], values
    segments = [Segment(300, "c300", 10.5, 20.5, 0.9), Segment(7, "c7", 30.5, 40.5, 0.8)]
    names = [f"c{index}" for index in range(400)]
    figure = draw_timeline("match", segments, names, *windows)
    assert [label.get_text() for label in figure.axes[-1].get_yticklabels()] == ["c300", "c7"]
    assert "match\n2 segments of 2 classes in 0:01:01" in texts_of(figure)
    # Of many classes, those with the most time.
    many = [Segment(index, names[index], index, index + 1 + index / 100, 0.9) for index in range(50)]
    figure = draw_timeline("match", many, names, *windows, ending="the file is damaged")
    labels = [label.get_text() for label in figure.axes[-1].get_yticklabels()]
    assert labels == names[26:50]
    (title,) = (text for text in texts_of(figure) if text.startswith("match"))
    assert "of which 26 with the least time are left out" in title and "ends at 0:01:01: the file is damaged" in title
    # Without segments, those that come closest.
    figure = draw_timeline("match", [], names, *windows)
    assert [label.get_text() for label in figure.axes[-1].get_yticklabels()][:2] == ["c300", "c7"]
    save_figure(figure, tmp_path / "a.png")


def test_thumbnails_stay_few_and_even():
    thumbnails = Thumbnails()
    for number in range(10_000):
        if thumbnails.wants_next():
            thumbnails.add(number, np.zeros((1, 1, 3), np.uint8))
        assert len(thumbnails.pictures) < 48
    times = [seconds for seconds, _ in thumbnails.pictures]
    assert len(times) > 12 and len(set(np.diff(times))) == 1 and times[0] == 0


def test_a_font_for_chinese_follows_those_of_matplotlib(monkeypatch):
    assert font_families()[0] == "sans-serif"
    monkeypatch.setattr(font_manager, "get_font_names", lambda: ["Noto Sans CJK JP", "Tibetan Machine Uni"])
    assert font_families() == ["sans-serif", "Noto Sans CJK JP"]


def test_a_text_is_one_line_of_letters():
    assert one_line("door\n2\u202e \udcff") == "door 2 \\udcff" and shorten("door 2", 4) == "doo…"
