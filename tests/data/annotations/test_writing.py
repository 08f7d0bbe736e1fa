"""What a model found is written beside what a person annotated, and nothing of that is lost."""

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from hf_video.data import read_annotations, write_annotations

from .test_readers import place


def written(name, tmp_path, output, predictions=None):
    """The file of a case, what it was before, the file with the model's segments, and both as they are read."""
    file, expected = place(name, tmp_path)
    before, choices = file.read_bytes(), expected.get("choices")
    output = file.with_name(output)
    write_annotations(file, predictions or expected["write"]["predictions"], output, choices=choices)
    assert file.read_bytes() == before
    rows = read_annotations(file, choices=choices).rows, read_annotations(output, choices=choices).rows
    return before.decode(), output, expected, *rows


def kept(old, new):
    """Whether all keys and values of an object are in another one, which may have more keys."""
    if isinstance(old, dict):
        return isinstance(new, dict) and all(key in new and kept(value, new[key]) for key, value in old.items())
    return old == new


def test_boris(tmp_path):
    before, output, expected, old_rows, new_rows = written("boris_project", tmp_path, "with_model.boris")
    assert output.read_bytes().isascii()
    old, new = json.loads(before), json.loads(output.read_text())
    assert kept(old, new) and new["project_format_version"] == "7.0"
    assert new["observations"].keys() - old["observations"].keys() == {"trial 1 (model)"}
    trial, added = old["observations"]["trial 1"], new["observations"]["trial 1 (model)"]
    for key in ("file", "media_info", "time offset", "observation time interval"):
        assert added[key] == trial[key]
    assert added["events"] == [each["event"] for each in expected["write"]["events"]]
    (sniff,) = (each for each in new["behaviors_conf"].values() if each["code"] == "sniff")
    assert sniff["type"] == "State event" and [*sniff] == [*old["behaviors_conf"]["0"]]
    assert [row for row in new_rows if row["source"] != "trial 1 (model)"] == old_rows
    (sniffed,) = (row for row in new_rows if row["class"] == "sniff")
    assert (sniffed["start"], sniffed["end"], sniffed["source"]) == (5, 6, "trial 1 (model)")


def test_boris_again(tmp_path):
    """A second model is a further observation, and segments that touch are one."""
    file, _ = place("boris_project", tmp_path)
    found = [{"media": "arena_02", "class": "groom", "start": s, "end": s + 1, "score": s / 10} for s in (1.0, 2.0)]
    write_annotations(file, found, first := file.with_name("first.boris"))
    write_annotations(first, found, second := file.with_name("second.boris.gz"))
    rows = [row for row in read_annotations(second).rows if "(model" in row["source"]]
    assert [(row["source"], row["start"], row["end"]) for row in rows] == [
        ("trial 2 (model)", 1, 3),
        ("trial 2 (model 2)", 1, 3),
    ]
    with pytest.raises(ValueError, match="is the file that is read"):
        write_annotations(file, found, file)


def test_elan(tmp_path):
    before, output, _, old_rows, new_rows = written("elan", tmp_path, "with_model.eaf")
    old, new = ET.fromstring(before), ET.parse(output).getroot()

    def facts(root):
        return {(each.tag, *sorted(each.items()), (each.text or "").strip()) for each in root.iter()}

    lost = facts(old) - facts(new)
    assert [fact[0] for fact in lost] == ["PROPERTY"] and old.attrib == new.attrib
    assert 'xsi:noNamespaceSchemaLocation="http://www.mpi.nl/tools/elan/EAFv3.0.xsd"' in output.read_text()
    tiers = [each.get("TIER_ID") for each in new.iter("TIER")]
    assert tiers == ["adult_gaze", "infant_gaze", "adult_certainty", "clap", "model face", "model object"]
    slots = [(each.get("TIME_SLOT_ID"), int(each.get("TIME_VALUE"))) for each in new.iter("TIME_SLOT")]
    assert [time for _, time in slots] == sorted(time for _, time in slots) and len(dict(slots)) == len(slots)
    ids = [each.get("ANNOTATION_ID") for each in new.iter() if each.get("ANNOTATION_ID")]
    assert len({*ids}) == len(ids) == 12 and new.find("HEADER")[-1].text == "12"
    assert [row for row in new_rows if not row["source"].startswith("model")] == old_rows
    found = [(row["class"], row["start"], row["end"]) for row in new_rows if row["source"].startswith("model")]
    assert found == [("face", 1.04, 3.4), ("face", 3.4, 5.0), ("object", 3.0, 5.1)]


def test_via(tmp_path):
    before, output, _, old_rows, new_rows = written("via_project", tmp_path, "with_model.json")
    old, new = json.loads(before), json.loads(output.read_text())
    assert kept(old, new) and old["project"] == new["project"]
    (key,) = new["attribute"].keys() - old["attribute"].keys()
    attribute = new["attribute"][key]
    assert (attribute["anchor_id"], attribute["type"]) == ("FILE1_Z2_XY0", 4)
    added = {name: new["metadata"][name] for name in new["metadata"].keys() - old["metadata"].keys()}
    assert all(name.startswith("1_") for name in added)
    shown = sorted((each["z"], attribute["options"][each["av"][key]]) for each in added.values())
    assert shown == [([2.8, 3.5], "fly"), ([4.0, 5.0], "nest")]
    assert all([*each] == ["vid", "flg", "z", "xy", "av"] and each["xy"] == [] for each in added.values())
    assert all(row in new_rows for row in old_rows) and len(new_rows) == len(old_rows) + 2


def test_bento(tmp_path):
    before, output, *_ = written("bento_seconds", tmp_path, "with_model.annot")
    lines, new = before.splitlines(), output.read_text().splitlines()
    assert [line for line in new if line not in lines] == ["model", "model----------", "3.03333333333\t5\t2"]
    left = iter(new)
    assert all(line in left for line in lines)
    rows = read_annotations(output).rows
    assert [(row["start"], row["end"]) for row in rows if row["source"] == "model"] == [(3, 5)]


def test_deepethogram(tmp_path):
    before, output, *_ = written("deepethogram", tmp_path, "maze_1_model.csv")
    rows = [line.split(",") for line in output.read_text().splitlines()]
    assert rows[0] == ["", "background", "rear", "dig"] and [row[0] for row in rows[1:]] == [*map(str, range(30))]
    shown = [[number for number, row in enumerate(rows[1:]) if row[column] == "1"] for column in (1, 2, 3)]
    assert shown[1:] == [[*range(4, 12)], [*range(19, 26)]]
    assert shown[0] == sorted({*range(30)} - {*shown[1], *shown[2]})


def test_simba(tmp_path):
    found = [{"media": "maze_2.mp4", "class": "sniff", "start": 1.0, "end": 1.25, "score": 0.5}]
    file, expected = place("simba", tmp_path)
    output = tmp_path / "maze_2.csv"
    write_annotations(file, found, output, choices=expected["choices"])
    old, new = ([line.split(",") for line in Path(each).read_text().splitlines()] for each in (file, output))
    assert [row[:-2] for row in old] == [row[:-2] for row in new] and old[0] == new[0]
    assert [number for number, row in enumerate(new[1:]) if row[-1] == "1"] == [10, 11, 12]


def test_feral(tmp_path):
    before, output, *_ = written("feral", tmp_path, "found.json")
    old, new = json.loads(before), json.loads(output.read_text())
    assert new["labels"] == {"cage_3.mp4": [0, 0, 1, 1, 1, 1, 0, 0, 0, 0]}
    assert (new["class_names"], new["is_multilabel"]) == (old["class_names"], False)
    assert new["splits"] == {"train": [], "val": [], "test": [], "inference": ["cage_3.mp4"]}


def test_what_cannot_be_written(tmp_path):
    file, _ = place("feral", tmp_path)
    found = {"media": "cage_3.mp4", "class": "sleep", "start": 0.2, "end": 0.5}
    for changes, message in (({}, "no class 'sleep'"), ({"media": "cage_9.mp4"}, "cage_9.mp4 is not found")):
        with pytest.raises((ValueError, FileNotFoundError), match=message):
            write_annotations(file, [found | changes], tmp_path / "new.json")
    assert not (tmp_path / "new.json").exists()


def test_points_are_written_as_the_tool_has_them(tmp_path):
    """In BORIS a class of the model alone has points, and one of states there gets a frame. VIA has an attribute for
    segments and one for points."""
    found = [("whistle", 1.5, 1.5), ("groom", 2.0, 2.0), ("whistle", 3.25, 3.25), ("run", 4.0, 5.0)]
    rows = [{"class": label, "start": start, "end": end, "score": 0.9} for label, start, end in found]
    file, _ = place("boris_project", tmp_path)
    write_annotations(file, [{"media": "arena_02", **row} for row in rows], output := file.with_name("out.boris"))
    read = [row for row in read_annotations(output).rows if "(model)" in row["source"]]
    times = [(row["class"], row.get("instant"), row.get("start")) for row in read]
    assert times == [("whistle", 1.5, None), ("groom", None, 2.0), ("whistle", 3.25, None), ("run", None, 4.0)]
    file, expected = place("via_project", tmp_path)
    media = expected["rows"][0]["media"]
    write_annotations(
        file, [{"media": media, **row} for row in rows[:1] + rows[3:]], output := file.with_name("o.json")
    )
    read = [row for row in read_annotations(output).rows if row["class"] in ("whistle", "run")]
    assert [row.get("instant", row.get("end")) for row in read] == [1.5, 5.0]
    attributes = [each for each in json.loads(output.read_text())["attribute"].values() if "hf_video" in each["desc"]]
    assert [(each["anchor_id"], [*each["options"].values()]) for each in attributes] == [
        ("FILE1_Z2_XY0", ["run"]),
        ("FILE1_Z1_XY0", ["whistle"]),
    ]
