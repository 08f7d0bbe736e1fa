"""Data sets of a Hub on loopback: Parquet with videos inside, and videos beside a list."""

import csv
import json

import pytest
from datasets import ClassLabel, Dataset, Features, Video
from huggingface_hub import HfApi

from tests.hub_server.fixtures import WRITE, hub, run_in_fresh_process  # noqa: F401

NAMES = ["walk", "run"]


@pytest.fixture(scope="module")
def contents(digits):
    """12 videos to train on and 4 to validate with."""
    found = [path.read_bytes() for path in sorted(digits.rglob("*.mp4"))]
    return {"train": found[:12], "validation": found[12:16]}


def write_parquet(folder, contents):
    """Two configurations, and other names of splits than the usual ones."""
    features = Features({"clip": Video(decode=False), "action": ClassLabel(names=NAMES)})
    for config, names in {"all": ("learn", "dev"), "few": ("train", "validation")}.items():
        (folder / config).mkdir()
        for name, videos in zip(names, contents.values(), strict=True):
            rows = [{"clip": {"bytes": each, "path": None}, "action": n % 2} for n, each in enumerate(videos)]
            for part in range(2):
                part_rows = Dataset.from_list(rows[part::2], features=features).cast_column("clip", Video())
                part_rows.to_parquet(folder / config / f"{name}-{part}.parquet")
    files = {
        "all": [{"split": "learn", "path": "all/learn*"}, {"split": "dev", "path": "all/dev*"}],
        "few": [{"split": "train", "path": "few/train*"}, {"split": "validation", "path": "few/validation*"}],
    }
    configs = [{"config_name": name, "data_files": parts} for name, parts in files.items()]
    (folder / "README.md").write_text(f"---\nconfigs: {json.dumps(configs)}\n---\n")


def write_files(folder, contents):
    for split, videos in contents.items():
        (folder / split).mkdir()
        with open(folder / split / "metadata.csv", "w", newline="") as file:
            table = csv.writer(file)
            table.writerow(["file_name", "label"])
            for number, content in enumerate(videos):
                (folder / split / f"{number}.mp4").write_bytes(content)
                table.writerow([f"{number}.mp4", NAMES[number % 2]])


READING = """
import itertools, json, sys, torch
from hf_video.data import ClipTask, VideoDataset, VideoStream, load_video_dataset, load_video_stream
from hf_video.processing import VideoClipProcessor

processor = VideoClipProcessor(num_frames=8, sampling_strategy="uniform", size=32, crop_size=32)
whole = load_video_dataset("alice/clips", **OPTIONS)
names = whole["train"].features["label"].names
stream, others = load_video_stream("alice/clips", labels=names, **OPTIONS)
stream = VideoStream(stream, ClipTask(processor, names), shuffle_buffer_size=4)
clips = [stream[clip] for clip in itertools.islice(stream.draw_clips(), 12)]
rows = VideoDataset(whole["train"], ClipTask(processor), training=True)
expected = [rows[index] for index in range(len(rows))]

def summed(items):  # a clip has all frames, and a crop the size of the video: nothing is drawn
    return sorted([round(item["pixel_values"].double().sum().item(), 3), names[item["labels"]]] for item in items)

assert summed(clips) == summed(expected), (summed(clips), summed(expected))
held = VideoDataset(others["validation"], ClipTask(processor), training=False)
again = VideoDataset(whole["validation"], ClipTask(processor), training=False)
assert summed(held[index] for index in range(4)) == summed(again[index] for index in range(4))
print("read", len(clips), sorted(names))
"""

TRAINING = """
import sys
from huggingface_hub import HfApi
from hf_video.cli.main import main

sizes = "--image-size 32 --num-frames 2 --hidden-size 24 --num-hidden-layers 1 --num-attention-heads 2"
words = "train alice/clips --config all --revision main --train-split learn --validation-split dev --streaming"
words = [*words.split(), *sizes.split(), "--model", "scratch", "--batch-size", "4", "--device", "cpu"]
words += ["--logging-steps", "1", "--output-dir", "out"]
assert main([*words, "--max-steps", "2"]) == 0
HfApi(token=TOKEN).delete_file("README.md", "alice/clips", repo_type="dataset")
assert main([*words, "--max-steps", "4", "--resume"]) == 0
print("RESUMED")
sys.exit(main([*words, "--max-steps", "6", "--resume", "--config", "few"]))
"""


def publish(write, tmp_path, contents):
    folder = tmp_path / "published"
    folder.mkdir()
    write(folder, contents)
    api = HfApi()
    api.create_repo("alice/clips", repo_type="dataset")
    return api.upload_folder(folder_path=folder, repo_id="alice/clips", repo_type="dataset").oid


def run(hub, program, cwd, code=0, **values):  # noqa: F811
    given = "".join(f"{name} = {value!r}\n" for name, value in values.items())
    finished = run_in_fresh_process(hub, given + program, with_hf_video=True, cwd=cwd)
    assert finished.returncode == code, finished.stderr[-3000:]
    return finished


@pytest.mark.parametrize(
    ("write", "options"),
    [
        (write_parquet, {"config": "all", "train_split": "learn", "validation_split": "dev"}),
        pytest.param(write_files, {}, marks=pytest.mark.slow),
    ],
)
def test_a_stream_has_what_the_data_set_has(hub, tmp_path, contents, write, options):  # noqa: F811
    publish(write, tmp_path, contents)
    finished = run(hub, READING, tmp_path, OPTIONS=options)
    assert "read 12 ['run', 'walk']" in finished.stdout


def test_train_on_a_stream_of_the_hub(hub, tmp_path, contents):  # noqa: F811
    commit = publish(write_parquet, tmp_path, contents)
    finished = run(hub, TRAINING, tmp_path, code=2, TOKEN=WRITE)
    saved = json.loads((tmp_path / "out" / "train_options.json").read_text())
    assert saved["data"]["commit"] == commit and saved["config"] == "all" and saved["revision"] == "main"
    assert finished.stdout.partition("RESUMED")[0].count("top-1 accuracy ") == 2
    assert "--config few differs from the run being resumed (all)" in finished.stderr
