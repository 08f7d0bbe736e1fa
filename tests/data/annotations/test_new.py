"""New projects of a model's segments, and whose rows a file with both has."""

import json

import pytest

from hf_video.data import load_video_dataset, read_annotations, write_annotations
from hf_video.data.annotations.new import SUFFIXES, write_new_annotations
from hf_video.data.rows import TO_LABEL
from tests.testing.videos import encode_video, make_frames

from .test_readers import boris, place

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
    assert "a model wrote it: source" in caplog.text
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
    assert "a model wrote it: source" in caplog.text
    with pytest.raises(ValueError, match="by is 'nobody'"):
        read_annotations(output, choices={"by": "nobody"})


STRETCHES = [{"class": TO_LABEL, "start": start, "end": start + 0.5} for start in (0.5, 2.0)]


def label_first(file, label):
    """What a person does in the tool: the first stretch gets a class."""
    if file.suffix == ".boris":
        project = json.loads(file.read_text())
        (observation,) = (each for name, each in project["observations"].items() if TO_LABEL in name)
        for event in observation["events"][:2]:
            event[2] = label
        file.write_text(json.dumps(project))
    elif file.suffix == ".eaf":
        file.write_text(file.read_text().replace(f"VALUE>{TO_LABEL}", f"VALUE>{label}", 1))
    else:
        project = json.loads(file.read_text())
        (attribute,) = project["attribute"].values()
        (option,) = (key for key, name in attribute["options"].items() if name == label)
        next(iter(project["metadata"].values()))["av"] = {"1": option}
        file.write_text(json.dumps(project))


@pytest.mark.parametrize("format", SUFFIXES)
def test_time_to_label_is_unknown_until_it_has_a_class(format, tmp_path, caplog):
    """And so is all time around it; what then has a class is a person's."""
    video = encode_video(tmp_path / "a.mp4", make_frames(40, 16, 16), fps=10)
    output = tmp_path / f"next{SUFFIXES[format]}"
    write_new_annotations(format, [{**each, "media": str(video)} for each in STRETCHES], output, ["dig", "rear"])
    found = read_annotations(output)
    assert not found.rows and [each["kind"] for each in found.reports] == ["to_label"] * 2
    assert found.unknown == [{"media": "a.mp4", "start": 0.0, "end": 4.0}]
    assert found.classes == ({} if format == "eaf" else dict.fromkeys(["dig", "rear"], "state"))
    label_first(output, "dig")
    found = read_annotations(output)
    assert [(each["class"], each["start"], each["end"]) for each in found.rows] == [("dig", 0.5, 1.0)]
    assert [(each["start"], each["end"]) for each in found.unknown] == [(0.0, 0.5), (1.0, 4.0)]
    (row,) = load_video_dataset(output, labels=["dig", "rear"])["train"]
    assert row["unknown"] == [[0.0, 0.5], [1.0, 4.0]] and "to label: media a.mp4" in caplog.text


@pytest.mark.parametrize("format", ["boris", "via"])
def test_a_new_project_of_several_videos(format, tmp_path):
    """Two have the same name."""
    videos = [tmp_path / "b.mp4", tmp_path / "day 2" / "b.mp4"]
    videos[1].parent.mkdir()
    for video in videos:
        encode_video(video, make_frames(30, 16, 16), fps=10)
    output, rows = tmp_path / f"new{SUFFIXES[format]}", [{**FOUND[0], "media": str(video)} for video in videos]
    write_new_annotations(format, rows, output)
    found = read_annotations(output)
    assert sorted(found.paths[row["media"]] for row in found.rows) == sorted(map(str, videos))


def test_time_to_label_inside_what_was_looked_at(tmp_path):
    """A copy of a project: what the person saw stays known but for the stretches, and what is seen inside of them."""
    events = [[0.0, "", "walk", "", ""], [1.0, "", "walk", "", ""]]
    seen = {"type": "MEDIA", "file": {"1": ["a.mp4"]}, "events": events, "observation time interval": [0, 3]}
    project, output = boris(tmp_path, {"day 1": seen}), tmp_path / "next.boris"
    times = [(1.5, 2.5), (3.0, 3.5)]
    rows = [{"media": "a.mp4", "class": TO_LABEL, "start": start, "end": end} for start, end in times]
    write_annotations(project, rows, output)
    found = read_annotations(output)
    assert found.unknown == [
        {"media": "a.mp4", "start": 1.5, "end": 2.5},
        {"media": "a.mp4", "start": 3.0, "end": 4.0},
    ]
    content = json.loads(output.read_text())
    assert content["observations"]["day 1"] == seen and content["behaviors_conf"]["2"]["code"] == TO_LABEL
    walks = [[2.0, "", "walk", "", ""], [2.2, "", "walk", "", ""]]
    content["observations"][f"day 1 ({TO_LABEL})"]["events"] += walks
    output.write_text(json.dumps(content))
    found = read_annotations(output)
    assert [row["start"] for row in found.rows] == [0.0, 2.0]
    assert [(each["start"], each["end"]) for each in found.unknown] == [(1.5, 2.0), (2.2, 2.5), (3.0, 4.0)]
