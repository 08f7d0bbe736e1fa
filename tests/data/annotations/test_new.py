"""New projects of a model's segments, and whose rows a file with both has."""

import json

import pytest

from hf_video.data import load_video_dataset, read_annotations, write_annotations
from hf_video.data.annotations.new import SUFFIXES, write_new_annotations
from tests.testing.videos import encode_video, make_frames

from .test_readers import place

TIMES = [("dig", 0.5, 1.25, 0.75), ("dig", 1.5, 2.0, 0.5), ("rear & sniff", 0.7, 1.7, 0.9)]
FOUND = [dict(zip(("class", "start", "end", "score"), each, strict=True)) for each in TIMES]


@pytest.mark.parametrize("format", SUFFIXES)
def test_a_new_project_is_read_back(format, tmp_path, caplog):
    """With a name that is no ASCII, and classes that overlap."""
    video = encode_video(tmp_path / "bär 1.mp4", make_frames(40, 16, 16), fps=10)
    output = tmp_path / f"new{SUFFIXES[format]}"
    write_new_annotations(format, [{**each, "media": str(video)} for each in FOUND], output)
    found = read_annotations(output)
    rows = sorted((row["class"], row["start"], row["end"]) for row in found.rows)
    assert rows == sorted(each[:3] for each in TIMES)
    assert not found.reports and found.paths == {"bär 1.mp4": str(video)}
    with pytest.raises(ValueError, match="no segment of a video that is found"):
        load_video_dataset(output)
    assert "by model: source" in caplog.text
    assert len(load_video_dataset(output, choices={"by": "all"})["train"]) == 3
    if format == "boris":
        (observation,) = json.loads(output.read_text())["observations"].values()
        assert [event[4] for event in observation["events"]] == ["0.75", "0.9", "", "0.5", "", ""]


@pytest.mark.parametrize("name", ["boris_project", "elan", "via_project", "bento_seconds"])
def test_a_model_is_no_person(name, tmp_path, caplog):
    """A file with both gives the rows of the person, of the model, or all; and trainings get the person's."""
    file, expected = place(name, tmp_path)
    output, choices = file.with_name(f"both_{file.name}"), expected.get("choices", {})
    before = read_annotations(file, choices=choices)
    write_annotations(file, expected["write"]["predictions"], output, choices=choices)
    by = {each: read_annotations(output, choices=choices | {"by": each}) for each in ("person", "model", "all")}
    assert by["person"].rows == before.rows and by["person"].unknown == before.unknown
    assert by["all"].rows == read_annotations(output, choices=choices).rows
    new = [row for row in by["all"].rows if row not in before.rows]
    assert by["model"].rows == new and new
    segments = sum("start" in row for row in before.rows)
    assert sum(map(len, load_video_dataset(output, choices=choices).values())) == segments
    assert "by model: source" in caplog.text
    with pytest.raises(ValueError, match="by is 'nobody'"):
        read_annotations(output, choices={"by": "nobody"})
