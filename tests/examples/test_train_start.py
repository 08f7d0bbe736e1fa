"""The start is trained by one command, which can be interrupted, and what the package ships is one."""

import importlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import hf_video
from hf_video import VideoViTForVideoClassification
from hf_video.loading import load_processor

EXAMPLES = Path(__file__).parents[2] / "examples"
START = Path(hf_video.__file__).parent / "start"


def run(folder: Path, *words: object) -> None:
    words = [sys.executable, EXAMPLES / "train_start.py", folder, "--smoke", *words]
    result = subprocess.run(words, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


@pytest.mark.slow
def test_it_trains_and_an_interrupted_training_goes_on(tmp_path):
    run(tmp_path)
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert figures["steps"] == 6 and 0 <= figures["object_move"] <= 1
    whole = load_file(tmp_path / "start" / "model.safetensors")
    assert {weights.dtype for weights in whole.values()} == {torch.bfloat16}
    for name in ("start", "run/checkpoint-6"):
        shutil.rmtree(tmp_path / name)
    run(tmp_path)
    resumed = load_file(tmp_path / "start" / "model.safetensors")
    assert whole.keys() == resumed.keys()
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)


@pytest.fixture
def training(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    return importlib.import_module("train_start")


@pytest.fixture
def pictures(tmp_path, training):
    """A folder of random pictures, as `start_pictures.py` prepares it."""
    sources = importlib.import_module("start_pictures")
    random = np.random.default_rng(0)
    arrays = {
        "parts": random.integers(0, 256, (6, sources.PICTURE_SIZE, sources.PICTURE_SIZE, 3), np.uint8),
        "files": np.array([0, 0, 0, 1, 1, 2]),
        "stamps": random.integers(0, 256, (4, sources.STAMP_SIZE, sources.STAMP_SIZE, 4), np.uint8),
        "letters": random.integers(0, 256, (len(sources.LETTERS), sources.STAMP_SIZE, sources.STAMP_SIZE), np.uint8),
        "kinds": np.arange(len(sources.LETTERS)),
    }
    for name, array in arrays.items():
        np.save(tmp_path / f"{name}.npy", array)
    return tmp_path


def test_clips_have_letters_pictures_and_stamps_only_where_they_are_asked_for(training, pictures):
    bank = training.Pictures(pictures)
    clips = training.draw_clips(64, 0, scenes=training.SIGHT_SCENES, num_frames=2, pictures=bank)
    assert clips.frames.shape == (64, 2, 3, 64, 64) and bank.num_files == 3 + 4
    has_letter, has_file = clips.letter != training.UNKNOWN, clips.file != training.UNKNOWN
    assert torch.equal(has_letter, ~has_file) and 20 < has_letter.sum() < 44
    assert set(clips.file[has_file].tolist()) == set(range(bank.num_files))
    moving = training.draw_clips(16, 0, pictures=bank)
    assert (moving.letter == training.UNKNOWN).all() and (moving.file == training.UNKNOWN).all()


class StubTeacher:
    """Sees the mean colours."""

    def __init__(self, folder):
        pass

    def fit(self, pixel_values):
        self.means = pixel_values.mean(dim=(2, 3))

    def __call__(self, pixel_values):
        seen = pixel_values.mean(dim=(1, 2, 3))[:, None]
        return seen.expand(-1, 192), seen[:, None].expand(-1, 64, 64)


@pytest.mark.slow
def test_a_part_of_the_training_on_pictures_can_be_left_out(training, pictures, monkeypatch):
    monkeypatch.setattr(training, "Teacher", StubTeacher)
    monkeypatch.setattr(training, "SIGHT_BATCH_SIZES", (8, 4))
    num_photographs = 3
    for without in (None, *training.PARTS):
        sight = training.Sight(pictures, START, without)
        clips, whole = [training.GeneratedBatches(100, 0, "sight", sight)[index] for index in (0, 1)]
        assert ("of_frame" in clips) == (without != "teacher")
        assert ("kept" in whole) == (whole["pixel_values"].shape[1] == 8) == (without != "motion")
        known = clips["file"][clips["file"] != training.UNKNOWN]
        assert len(known) and bool((known < num_photographs).any()) == (without != "photographs")


@pytest.mark.slow
def test_a_training_on_pictures_goes_on_from_the_model_before_it(training, pictures, tmp_path, monkeypatch):
    monkeypatch.setattr(training, "Teacher", StubTeacher)
    monkeypatch.setattr(training, "SIGHT_BATCH_SIZES", (8, 4))
    words = [tmp_path / "sight", "--model", START, "--pictures", pictures, "--smoke"]
    monkeypatch.setattr(sys, "argv", ["train_start.py", *map(str, words)])
    training.main()
    before = load_file(START / "model.safetensors")
    after = load_file(tmp_path / "sight" / "start" / "model.safetensors")
    assert before.keys() == after.keys()
    assert not torch.equal(before["classifier.weight"], after["classifier.weight"])
    config = json.loads((tmp_path / "sight" / "start" / "config.json").read_text())
    assert config["num_hidden_layers"] == 4 and "num_files" not in config


@pytest.mark.slow
def test_the_features_of_the_shipped_start_tell_how_the_ground_moves(training):
    """A linear fit to 256 clips explains a part of the motion in others."""
    clips = training.draw_clips(352, training.HELD_OUT_SEED + 10**6, scenes=("camera",))
    model = VideoViTForVideoClassification.from_pretrained(START, dtype="float32", num_labels=0).eval()
    with torch.no_grad():
        x = model(training.normalize(clips.frames)).logits
    y = clips.values[:, list(training.VALUES).index("ground right first")]
    x = torch.cat([x, torch.ones(len(x), 1)], dim=1)
    known, others = slice(None, 256), slice(256, None)
    fit = torch.linalg.solve(x[known].T @ x[known] + 10 * torch.eye(x.shape[1]), x[known].T @ y[known])
    explained = 1 - (x[others] @ fit - y[others]).square().mean() / y[others].var()
    assert explained > 0.2


def test_the_shipped_start_is_small_and_its_processor_fits():
    assert sum(file.stat().st_size for file in START.iterdir()) <= 6_000_000
    config = VideoViTForVideoClassification.config_class.from_pretrained(START)
    processor = load_processor(START, config)
    assert (processor.num_frames, processor.crop_size["height"]) == (config.num_frames, config.image_size)
    # Who trains it further would train in the precision of the file.
    assert VideoViTForVideoClassification.from_pretrained(START).dtype == torch.float32
