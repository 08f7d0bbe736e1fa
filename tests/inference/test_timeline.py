"""The files of a timeline, at sizes and with names that a command's test does not reach."""

import csv
import json
import tracemalloc

import numpy as np
from pyarrow import parquet

from hf_video.inference import ScoredWindow, Segment, SegmentFinder, Timeline
from hf_video.inference.timeline import write_webvtt


def test_subtitles_have_hours_and_hide_no_markup(tmp_path):
    path = tmp_path / "a.vtt"
    segments = [
        Segment("first", 59.9996, 59.9999, 0.5, 0),
        Segment("a <b>\n\n--> c & d", 3599.9999, 7200.5, 0.994, 1),
        Segment("late", 360_000, 360_001, 1.0, 2),
    ]
    write_webvtt(path, segments, ["why --> it\nended"])
    assert path.read_text() == (
        "WEBVTT\n\nNOTE why -> it ended\n\n00:01:00.000 --> 00:01:00.001\nfirst (50%)\n\n"
        "01:00:00.000 --> 02:00:00.500\na &lt;b&gt; --&gt; c &amp; d (99%)\n\n"
        "100:00:00.000 --> 100:00:01.000\nlate (100%)\n"
    )


def test_segments_are_in_the_file_at_once_and_sorted_in_the_end(tmp_path):
    path, finder = tmp_path / "out" / "segments.csv", SegmentFinder(['a, "b"\nc', "x"])
    timeline = Timeline(finder, "v", tmp_path / "out", path="/videos/v.mp4")
    scores = [[0.9, 0.9], [0.1, 0.9], [0.1, 0.1], [0.9, 0.1]]
    for second, each in enumerate(scores):
        timeline.add(ScoredWindow(second, second + 1, np.array(each, np.float32)))
        # The first line has the names of the columns, and a name takes two lines.
        assert len(path.read_text().splitlines()) == (1, 3, 4, 4)[second]
    timeline.finish()
    timeline.write({"model": "m"})
    assert timeline.num_segments == 3
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))
    assert rows[0] == ["path", "label", "start", "end", "score", "class_id"]
    assert rows[1][:2] == ["/videos/v.mp4", 'a, "b"\nc']
    assert [float(row[2]) for row in rows[1:]] == [0, 0, 3] and [row[5] for row in rows[1:]] == ["0", "1", "0"]
    kept = json.loads((tmp_path / "out" / "segments.json").read_text())
    assert [entry["segment"][1] for entry in kept["results"]["v"]] == [float(row[3]) for row in rows[1:]]
    assert kept["external_data"] == {"duration": 4, "is_complete": True, "model": "m"}


def test_scores_are_a_table_and_classes_of_one_name_stay_apart(tmp_path):
    values = np.random.default_rng(0).random((5, 3), dtype=np.float32)
    timeline = Timeline(SegmentFinder(["run", "jump", "run"]), "video", tmp_path / "out")
    for number, row in enumerate(values):
        timeline.add(ScoredWindow(number, number + 2.0, row))
    timeline.write({})
    table = parquet.read_table(tmp_path / "out" / "scores.parquet")
    assert table.column_names == ["start", "end", "score: run (class 0)", "score: jump", "score: run (class 2)"]
    assert table["start"].to_pylist() == [0, 1, 2, 3, 4] and table["end"].to_pylist() == [2, 3, 4, 5, 6]
    np.testing.assert_array_equal(np.stack(table.columns[2:], axis=1), values)


def test_a_stream_without_an_end_takes_no_more_memory():
    timeline = Timeline(SegmentFinder(["a", "b"]), "live", is_kept=False)
    sizes, image = [], np.zeros((8, 8, 3), np.uint8)
    tracemalloc.start()
    for number in range(2_500):
        if number and number % 500 == 0:
            sizes.append(tracemalloc.get_traced_memory()[0])
        score = float(number // 5 % 2)
        timeline.watch(number, image)
        timeline.add(ScoredWindow(number, number + 2, np.array([1 - score, score], np.float32)))
    tracemalloc.stop()
    assert len(sizes) == 4 and max(sizes[1:]) < sizes[0] + 20_000
    timeline.finish()
    assert timeline.num_segments == 500 and timeline.end == 2_501
