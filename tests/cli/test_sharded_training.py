"""`hf-video train` on two processes that share the weights of the model: the same losses, and a model that loads."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from transformers import AutoModelForImageTextToText, AutoModelForVideoClassification, AutoVideoProcessor

from hf_video.loading.clip_size import input_size
from hf_video.models.videomamba import VideoMambaConfig, VideoMambaForVideoClassification
from hf_video.processing import VideoClipProcessor
from tests.testing.processes import free_port, launched, run_forked
from tests.testing.videos import damage_frame

from .conftest import TINY_MODEL

ROOT = Path(__file__).parents[2]
ENGINES = {"DDP": None, "FSDP2": "fsdp2.yaml"}
STEPS = 6
RUN = ["--num-attention-heads", 2, "--device", "cpu", "--batch-size", 2, "--gradient-accumulation-steps=2"]
RUN += ["--epochs", 2, "--learning-rate=0.01", "--logging-steps=1", "--train-sampling-strategy=sequential"]
RUN += [f"--{name}-{what}" for name in ("save", "eval") for what in ("strategy=steps", "steps=2")]
# The second process reads every other batch of two. Each of these videos has a whole one in its batch.
BROKEN_ROWS = (2, 7, 14)


def launch(engine, *words):
    """Runs `hf-video WORDS` on two processes, with the variables that accelerate launch sets for an engine."""
    variables = {}
    if ENGINES[engine] is not None:
        config = yaml.safe_load((ROOT / "recipes" / "accelerate" / ENGINES[engine]).read_text())["fsdp_config"]
        variables = {name.upper(): str(value) for name, value in config.items()} | {"ACCELERATE_USE_FSDP": "true"}
    processes = run_forked(*launched([Path(__file__).with_name("sharded_command.py"), *words], 2, **variables))
    assert not any(each.returncode for each in processes), [each.stderr[-5000:] for each in processes]
    return "".join(each.stdout for each in processes)


def losses(folder):
    history = json.loads((folder / f"checkpoint-{STEPS}" / "trainer_state.json").read_text())["log_history"]
    return {(entry["step"], name): entry[name] for entry in history for name in ("loss", "eval_loss") if name in entry}


def load(folder):
    """The weights of a model that Transformers loads whole, and its processor with it."""
    model, report = AutoModelForVideoClassification.from_pretrained(folder, output_loading_info=True)
    assert not any(report[name] for name in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert AutoVideoProcessor.from_pretrained(folder).num_frames == 4
    return model.state_dict()


@pytest.fixture(scope="module")
def videos(digits, tmp_path_factory):
    """24 videos to train, of which the second process cannot read three, and 8 to validate."""
    folder = tmp_path_factory.mktemp("videos")
    shutil.copytree(digits / "train", folder / "train")
    shutil.copytree(digits / "test", folder / "validation")
    paths = sorted((folder / "train").rglob("*.mp4"))
    for row in BROKEN_ROWS:
        for frame in range(8):
            shutil.move(damage_frame(paths[row], frame), paths[row])
    return folder


def train(engine, videos, folder, *words):
    return launch(engine, "train", videos, "--output-dir", folder, *TINY_MODEL, *RUN, *words)


def test_checkpoints_and_the_model_are_whole(videos, tmp_path):
    folder = tmp_path / "model"
    out = train("FSDP2", videos, folder, "--max-steps=2", "--on-error", "skip")
    assert out.count(f"model    {folder}") == 1 and "3 videos could not be read:" in out
    weights, checkpoint = load(folder), load(folder / "checkpoint-2")
    assert weights.keys() == checkpoint.keys()
    assert all(torch.equal(checkpoint[name], weight) for name, weight in weights.items())


@pytest.mark.slow
@pytest.mark.parametrize("options", [["--on-error=skip"], ["--on-error=replace", "--ema-decay=0.5"]])
def test_engines_have_the_same_losses_and_resume_bit_equal(options, videos, tmp_path):
    train("DDP", videos, tmp_path / "ddp", *options)
    folder, resumed = tmp_path / "whole", tmp_path / "resumed"
    train("FSDP2", videos, folder, *options, "--save-total-limit=10")
    expected, found = losses(tmp_path / "ddp"), losses(folder)
    assert found.keys() == expected.keys() and len(set(found.values())) == STEPS + 3
    np.testing.assert_allclose(list(found.values()), list(expected.values()), rtol=0, atol=1e-6)
    weights = load(folder)
    torch.testing.assert_close(weights, load(tmp_path / "ddp"), rtol=0, atol=1e-5)
    shutil.copytree(folder, resumed)
    for name in ("checkpoint-4", "checkpoint-6"):
        shutil.rmtree(resumed / name)
    (resumed / "model.safetensors").unlink()
    launch("FSDP2", "train", "--resume", videos, "--output-dir", resumed)
    assert losses(resumed) == found
    again = load(resumed)
    assert again.keys() == weights.keys() and all(torch.equal(again[name], weights[name]) for name in weights)


@pytest.mark.slow
def test_videomamba_is_sharded_too(videos, tmp_path):
    classes = sorted(path.name for path in (videos / "train").iterdir())
    sizes = {"image_size": 32, "num_frames": 4, "hidden_size": 24, "num_hidden_layers": 2}
    labels = {"id2label": dict(enumerate(classes)), "label2id": {name: row for row, name in enumerate(classes)}}
    start = tmp_path / "start"
    VideoMambaForVideoClassification(VideoMambaConfig(**sizes, **labels)).save_pretrained(start)
    VideoClipProcessor(num_frames=4, **input_size(32)).save_pretrained(start)
    found = []
    for engine in ENGINES:
        folder = tmp_path / engine
        launch(engine, "train", videos, "--output-dir", folder, "--model", start, *RUN[2:], "--on-error", "skip")
        found.append(losses(folder))
        load(folder)
    assert found[0].keys() == found[1].keys() and len(set(found[0].values())) == STEPS + 3
    np.testing.assert_allclose(*(list(each.values()) for each in found), rtol=0, atol=1e-6)


@pytest.mark.slow
def test_a_model_that_answers_is_sharded_too(questions, tmp_path):
    words, found = [*questions, "--max-steps=-1", "--epochs=2", "--batch-size=1", "--logging-steps=1"], {}
    for engine in ENGINES:
        folder = tmp_path / engine
        out = launch(engine, *words, f"--output-dir={folder}")
        assert out.count("right answers") == 1
        history = json.loads((folder / "checkpoint-4" / "trainer_state.json").read_text())["log_history"]
        found[engine] = [entry[name] for entry in history for name in ("loss", "eval_loss") if name in entry]
        answers = json.loads((folder / "answers.json").read_text())
        assert len(answers["videos"]) == 7
    assert len(set(found["DDP"])) == 6
    np.testing.assert_allclose(*found.values(), rtol=0, atol=1e-6)
    folder, resumed = tmp_path / "FSDP2", tmp_path / "resumed"
    shutil.copytree(folder, resumed)
    shutil.rmtree(resumed / "checkpoint-4")
    launch("FSDP2", *words, "--resume", f"--output-dir={resumed}")
    states = []
    for each in (folder, resumed):
        model, report = AutoModelForImageTextToText.from_pretrained(each, output_loading_info=True)
        assert not any(report[name] for name in ("missing_keys", "unexpected_keys", "mismatched_keys"))
        states.append(model.state_dict())
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("stage", [2, 3])
def test_deepspeed_ends_as_a_whole_model_and_resumes(stage, videos, tmp_path):
    pytest.importorskip("deepspeed")
    config = yaml.safe_load((ROOT / "recipes" / "accelerate" / "deepspeed_zero2.yaml").read_text())
    config |= {"num_processes": torch.cuda.device_count(), "mixed_precision": "no"}
    config["deepspeed_config"]["zero_stage"] = stage
    (tmp_path / "deepspeed.yaml").write_text(yaml.safe_dump(config))

    def run(*words):
        launcher = ["-m", "accelerate.commands.launch", "--config_file", tmp_path / "deepspeed.yaml"]
        launcher += ["--main_process_port", free_port(), "-m", "hf_video.cli", "train"]
        command = [str(word) for word in (sys.executable, *launcher, *words)]
        finished = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=500)
        assert finished.returncode == 0, finished.stderr[-5000:]

    folder, resumed = tmp_path / "whole", tmp_path / "resumed"
    options = [*TINY_MODEL, *RUN, "--on-error", "skip", "--save-total-limit=10"]
    options[options.index("cpu")] = "cuda"
    run(videos, "--output-dir", folder, *options)
    [last, *_] = sorted(folder.glob("checkpoint-*"), key=lambda path: -int(path.name.split("-")[1]))
    assert any(last.glob("global_step*"))
    weights = load(folder)
    shutil.copytree(folder, resumed)
    shutil.rmtree(resumed / last.name)
    run("--resume", videos, "--output-dir", resumed)
    again = load(resumed)
    assert again.keys() == weights.keys()
    for name, weight in weights.items():
        torch.testing.assert_close(again[name], weight)
