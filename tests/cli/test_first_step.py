"""A signal during the first step of a training, which may take minutes in one operation."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest
import torch

from hf_video.cli import first_step
from hf_video.cli.first_step import ended_before_first_step
from hf_video.training import TrainSettings

from ..training.tiny import RandomClips, make_arguments, make_model
from ..video_files import encode_video, make_frames

# Seconds, in place of those that a user waits.
SILENCE = 1.5
# A shell lets what it runs in the background ignore Ctrl-C.
PROGRAM = f"""
import signal, sys
from hf_video.cli import first_step
from hf_video.cli.main import main
from hf_video.training.callbacks import EpochLineCallback

first_step.LONGEST_SILENCE = {SILENCE}
EpochLineCallback.on_step_begin = lambda *args, **kwargs: print("THE FIRST STEP BEGINS", flush=True)
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture(scope="module")
def videos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("videos")
    for name in ("run", "jump"):
        (folder / name).mkdir()
        for number in range(2):
            encode_video(folder / name / f"{number}.mp4", make_frames(8))
    return folder


@pytest.mark.parametrize(
    ("number", "word", "code"),
    [
        ("SIGTERM", "terminated", 143),
        pytest.param("SIGINT", "interrupted", 130, marks=pytest.mark.slow),
    ],
)
def test_the_first_signal_ends_a_training_whose_first_operation_takes_long(videos, tmp_path, number, word, code):
    # 250,000 tokens: attention needs little memory, and minutes.
    sizes = "--image-size 2000 --patch-size 4 --tubelet-size 2 --num-frames 2 --hidden-size 24 --num-hidden-layers 1"
    options = "--num-attention-heads 1 --batch-size 1 --device cpu --dataloader-num-workers 1"
    words = ["train", str(videos), "--output-dir", str(tmp_path / "out"), *sizes.split(), *options.split()]
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *words],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        while (line := process.stdout.readline()).strip() != "THE FIRST STEP BEGINS":
            assert line, process.communicate()[1]
        # The clips are sent to the model, which attends.
        time.sleep(3)
        process.send_signal(getattr(signal, number))
        begin = time.monotonic()
        _, said = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == code and "Traceback" not in said
    assert time.monotonic() - begin > 0.8 * SILENCE, "the main thread heard it: the test has no point"
    ending = f"hf-video: {word}. There was no checkpoint yet, so nothing of the training is kept."
    assert said.strip().splitlines()[-1] == ending


def test_after_the_first_step_and_after_the_training_signals_have_their_usual_effect(tmp_path, monkeypatch):
    from transformers import TrainerCallback

    from hf_video.training import VideoTrainer

    heard = []
    monkeypatch.setattr(first_step, "LONGEST_SILENCE", 0.1)
    monkeypatch.setattr("os._exit", lambda code: pytest.fail("the process was ended"))
    previous = signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))

    class Signals(TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            if state.global_step == 1:
                signal.raise_signal(signal.SIGTERM)
                time.sleep(0.5)

    arguments = make_arguments(tmp_path, eval_strategy="no", save_strategy="no", load_best_model_at_end=False)
    threads = threading.active_count()
    try:
        with ended_before_first_step(TrainSettings()) as callback:
            callbacks = [callback, Signals()]
            trainer = VideoTrainer(make_model(), arguments, train_dataset=RandomClips(12), callbacks=callbacks)
            trainer.train()
        signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, previous)
    assert heard == [signal.SIGTERM] * 2 and trainer.state.global_step == 6
    assert threading.active_count() == threads and signal.set_wakeup_fd(-1) == -1
    assert torch.isfinite(torch.tensor(trainer.state.log_history[-1]["train_loss"]))
