"""Clips that have any number of classes: read, held out, and made into targets."""

import json

import numpy as np
import pytest
from datasets import ClassLabel, List

from hf_video.data import (
    hold_out,
    is_multi_label,
    label_names,
    load_video_dataset,
)

CSV = ["path,labels,start", "a.mp4,run;jump,", "b.mp4, run ; sit,0.5", "c.mp4,,"]
JSON = [
    {"path": "a.mp4", "labels": ["run", "jump"]},
    {"path": "b.mp4", "labels": ["run", "sit"], "start": 0.5},
    {"path": "c.mp4", "labels": []},
]


def write(folder, name="train.csv", lines=CSV):
    for video in "abc":
        (folder / f"{video}.mp4").touch()
    path = folder / name
    path.write_text("\n".join(lines))
    return path


@pytest.mark.parametrize(("name", "lines"), [("train.csv", CSV), ("train.json", [json.dumps(JSON)])])
def test_files_with_labels(tmp_path, name, lines):
    dataset = load_video_dataset(write(tmp_path, name, lines))["train"]
    assert is_multi_label(dataset) and label_names(dataset) == ["jump", "run", "sit"]
    assert dataset.features["labels"] == List(ClassLabel(names=["jump", "run", "sit"]))
    assert dataset["labels"][:] == [[1, 0], [1, 2], []]
    assert dataset["start"][:] == [None, 0.5, None]
    assert dataset["video"][:] == [str(tmp_path / f"{video}.mp4") for video in "abc"]


def test_the_ids_of_a_model_and_splits_that_lack_a_rare_class(tmp_path):
    write(tmp_path)
    write(tmp_path, "test.csv", ["path,labels", "a.mp4,sit"])
    splits = load_video_dataset(tmp_path)
    assert splits["test"]["labels"][:] == [[2]]
    splits = load_video_dataset(tmp_path, labels=["sit", "run", "lie", "jump"])
    assert splits["train"]["labels"][:] == [[1, 3], [1, 0], []]


@pytest.mark.parametrize(
    ("name", "lines", "message"),
    [
        ("train.csv", ["path,labels", "a.mp4,run;;sit"], "line 2: one of labels is ''"),
        ("train.csv", ["path,label,labels", "a.mp4,run,run"], "label and labels"),
        ("train.csv", ["path,labels", "a.mp4,", "b.mp4,"], "no class"),
        ("train.json", [json.dumps([{"path": "a.mp4", "labels": {"run": 1}}])], "entry 1: labels"),
        ("train.json", [json.dumps([*JSON, {"path": "a.mp4", "label": "run"}])], "label and labels"),
    ],
)
def test_what_is_wrong_is_named(tmp_path, name, lines, message):
    with pytest.raises(ValueError, match=message):
        load_video_dataset(write(tmp_path, name, lines))


def test_hold_out_takes_its_share_of_every_class_and_leaves_one(tmp_path):
    generator = np.random.default_rng(0)
    names = [f"class{number}" for number in range(6)]
    shares = [0.5, 0.3, 0.2, 0.1, 0.05, 0.0]
    lines = ["path,labels"]
    for number in range(200):
        (tmp_path / f"{number}.mp4").touch()
        chosen = [name for name, share in zip(names, shares, strict=True) if generator.random() < share]
        lines.append(f"{number}.mp4,{';'.join(chosen)}")
    lines[1] += f";{names[-1]}" if not lines[1].endswith(",") else names[-1]
    dataset = load_video_dataset(write(tmp_path, lines=lines))["train"]
    train, held_out = hold_out(dataset, 0.2, seed=0)
    assert sorted([*train["video"], *held_out["video"]]) == sorted(dataset["video"])
    counts = [
        np.bincount([label for ids in part["labels"] for label in ids], minlength=6) for part in (train, held_out)
    ]
    totals = counts[0] + counts[1]
    assert (np.abs(counts[1][:5] / totals[:5] - 0.2) < 0.06).all()
    assert counts[0][5] == 1 and counts[1][5] == 0
    without = [sum(not ids for ids in part["labels"]) for part in (train, held_out)]
    assert without[1] / sum(without) == pytest.approx(0.2, abs=0.03)
    assert hold_out(dataset, 0.2, seed=0)[1]["video"][:] == held_out["video"][:]
