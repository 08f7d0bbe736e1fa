"""Training on a stream: killed and resumed, processes see each clip once an epoch, with the same losses."""

import json
import shutil
import signal
from collections import Counter
from pathlib import Path

import pytest

from hf_video.data import ClipTask, VideoStream, load_video_stream
from hf_video.processing import VideoClipProcessor
from hf_video.training import TrainSettings, train
from hf_video.training.values import Saved, check_same_batch, choose_values
from tests.testing import trainers
from tests.testing.processes import launched, run_forked
from tests.testing.trainers import LAST_WEIGHTS

from ..data.test_video_stream import write_shard
from . import streamed_run

NUM_CLIPS, CLIPS_OF_A_STEP = 24, 4


@pytest.fixture(scope="module")
def shards(digits, tmp_path_factory):
    folder = tmp_path_factory.mktemp("digits")
    contents = [path.read_bytes() for path in sorted((digits / "train").rglob("*.mp4"))][:NUM_CLIPS]
    clips = [{"bytes": content, "path": f"{number}.mp4"} for number, content in enumerate(contents)]
    rows = [{"clip": clip, "action": number % 2} for number, clip in enumerate(clips)]
    for part in range(4):
        write_shard(folder / "parquet" / f"train-{part}.parquet", rows[part::4])
    return folder / "parquet"


def run(shards, folder, num_processes, num_steps, killed_at=0):
    words = [Path(__file__).with_name("streamed_run.py"), shards, folder, num_steps, killed_at]
    processes = run_forked(*launched(words, num_processes))
    if killed_at:
        assert {each.returncode for each in processes} <= {-signal.SIGKILL, -signal.SIGTERM}, processes[0].stderr
    else:
        assert not any(each.returncode for each in processes), [each.stderr[-5000:] for each in processes]


def seen_clips(folder, num_processes):
    """How often each clip of an epoch was trained on, of the last run of each step."""
    seen = Counter()
    for process in range(num_processes):
        lines = map(json.loads, (folder / f"seen_{process}.jsonl").read_text().splitlines())
        steps = {}
        for line in lines:
            steps.setdefault(line[0][0], []).append(line)
        for batches in steps.values():
            seen.update((epoch, clip) for batch in batches[-2:] for _, epoch, clip in batch)
    return seen


def check_equal(root, num_processes, num_steps):
    whole, killed = (json.loads((root / name / "losses.json").read_text()) for name in ("whole", "killed"))
    assert killed == whole and len({loss for *_, loss in whole}) == num_steps
    for name in ("whole", "killed"):
        seen = seen_clips(root / name, num_processes)
        assert len(seen) == 2 * NUM_CLIPS and set(seen.values()) == {1}
        assert Counter(epoch for epoch, _ in seen) == {0: NUM_CLIPS, 1: NUM_CLIPS}


def test_a_resumed_run_sees_each_clip_once_an_epoch(shards, tmp_path):
    num_steps, whole, killed = 2 * NUM_CLIPS // CLIPS_OF_A_STEP, tmp_path / "whole", tmp_path / "killed"
    whole.mkdir()
    streamed_run.main(shards, whole, num_steps, 0)
    # As if it had ended in the middle of an epoch, after a step that no checkpoint has.
    shutil.copytree(whole, killed)
    for checkpoint in killed.glob("checkpoint-*"):
        if int(checkpoint.name.removeprefix("checkpoint-")) > num_steps // 3:
            shutil.rmtree(checkpoint)
    streamed_run.main(shards, killed, num_steps, 0)
    check_equal(tmp_path, 1, num_steps)


@pytest.mark.slow
def test_two_processes_are_killed_and_resumed(shards, tmp_path):
    num_steps = NUM_CLIPS // CLIPS_OF_A_STEP
    for name in ("whole", "killed"):
        (tmp_path / name).mkdir()
    run(shards, tmp_path / "whole", 2, num_steps)
    run(shards, tmp_path / "killed", 2, num_steps, killed_at=num_steps // 2)
    run(shards, tmp_path / "killed", 2, num_steps)
    check_equal(tmp_path, 2, num_steps)
    checkpoint = tmp_path / "killed" / f"checkpoint-{num_steps}"
    assert {path.name for path in checkpoint.glob("stream_*")} == {"stream_0.json", "stream_1.json"}


def make_trainer(shards, folder, **options):
    processor = VideoClipProcessor(num_frames=2, sampling_strategy="dense", size=20, crop_size=16)
    clips = VideoStream(load_video_stream(shards)[0], ClipTask(processor))
    return trainers.make_trainer(folder, clips, **LAST_WEIGHTS | {"save_strategy": "steps"} | options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "max_steps"),
        ({"max_steps": 2, "sampler": "balanced"}, "sampler=balanced needs all labels"),
        ({"max_steps": 2, "class_weights": "balanced"}, "class_weights=balanced counts the videos"),
    ],
)
def test_what_a_stream_cannot_do(shards, tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        make_trainer(shards, tmp_path, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "say with --max-steps how long to train"),
        ({"max_steps": 2, "sampler": "sqrt"}, "sampler=sqrt is not for a stream"),
        ({"max_steps": 2}, "has no validation split, and none can be held out from a stream"),
    ],
)
def test_what_a_training_needs_for_a_stream(shards, tmp_path, options, message):
    places = {"data": str(shards), "output_dir": str(tmp_path / "out")}
    with pytest.raises(ValueError, match=message):
        train(TrainSettings(**places, streaming=True, device="cpu", **options))
    assert not (tmp_path / "out").exists()


def test_a_stream_goes_on_with_as_many_processes():
    settings = TrainSettings(data="data", output_dir="out", streaming=True, max_steps=2)
    chosen = choose_values(settings)
    saved = Saved(vars(chosen), {}, num_processes=2)
    check_same_batch(chosen, saved, 2)
    with pytest.raises(ValueError, match=r"reads a stream \(number of processes: 2\)"):
        check_same_batch(chosen, saved, 1)


def test_a_checkpoint_without_the_place_of_a_stream(shards, tmp_path):
    trainer = make_trainer(shards, tmp_path, max_steps=1, save_steps=1)
    trainer.train()
    (tmp_path / "checkpoint-1" / "stream_0.json").unlink()
    with pytest.raises(ValueError, match="checkpoint-1 has no stream_0.json"):
        make_trainer(shards, tmp_path, max_steps=2).train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))
