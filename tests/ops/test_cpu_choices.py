"""How mixers compute on this processor: what is chosen, by which times, and that each way gives the same numbers."""

import itertools
import json
import os
import subprocess
import sys

import pytest
import torch

from hf_video import VideoMambaForVideoClassification
from hf_video.cli.main import main
from hf_video.ops import cpu_choices
from hf_video.ops.cpu_choices import VARIABLE, CpuChoice, MixerShape, choose, decide, measure
from hf_video.ops.selective_scan import dispatch
from hf_video.training import VideoTrainer
from tests.models.videomamba.videomamba_testing import make, random_clips
from tests.training.tiny import RandomClips, make_arguments

SHAPE = MixerShape(32, 64, 4, 2, 4, 2, "bfloat16")


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    """Nothing forced, and nothing chosen before."""
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(cpu_choices, "CHOSEN", {})
    monkeypatch.setattr(cpu_choices, "HELD", {})


@pytest.fixture
def measured(monkeypatch, tmp_path):
    """What was measured, with a cache folder of its own; each way takes as long as `seconds` says."""
    monkeypatch.setattr(cpu_choices, "choices_folder", lambda: tmp_path / "choices")
    found = []

    def stand_in(runs):
        found.append(sorted(runs))
        return stand_in.seconds

    stand_in.seconds = {"float32": 1.0, "bfloat16": 0.5, "modules": 1.0}
    stand_in.found = found
    monkeypatch.setattr(cpu_choices, "measure", stand_in)
    return stand_in


class Clock:
    """Passes while a run says that it computes."""

    def __init__(self):
        self.now, self.calls = 0.0, []

    def run(self, name, first, later):
        """A run that takes so many seconds for few tokens, and for all."""

        def compute(num_tokens):
            self.calls.append((name, num_tokens))
            self.now += first if num_tokens == cpu_choices.FIRST_TOKENS else next(later)

        return compute


@pytest.mark.parametrize(
    ("seconds", "choice"),
    [
        ({"float32": 1.0, "modules": 1.0}, "products=float32,mixer=fused"),
        ({"float32": 1.0, "modules": 0.84}, "products=float32,mixer=fused"),
        ({"float32": 1.0, "modules": 0.82}, "products=float32,mixer=modules"),
        ({"float32": 1.0, "bfloat16": 0.84, "modules": 0.82}, "products=float32,mixer=modules"),
        ({"float32": 1.0, "bfloat16": 0.82, "modules": 0.82}, "products=bfloat16,mixer=fused"),
        ({"bfloat16": 0.1}, "products=bfloat16,mixer=fused"),
        ({"modules": 0.1}, "products=float32,mixer=modules"),
    ],
    ids=str,
)
def test_another_way_than_the_first_needs_a_gain(seconds, choice):
    assert str(decide(seconds)) == choice


def test_the_least_seconds_of_some_rounds_count():
    clock = Clock()
    runs = {"float32": clock.run("float32", 0.01, iter([0.05, 0.03, 0.04, 0.05, 0.05]))}
    runs["modules"] = clock.run("modules", 0.01, iter([0.02] * 5))
    assert measure(runs, lambda: clock.now) == pytest.approx({"float32": 0.03, "modules": 0.02})


def test_one_slow_run_rules_no_way_out():
    clock = Clock()
    runs = {"modules": clock.run("modules", 0.01, itertools.repeat(0.04))}
    first = itertools.chain([0.01, 0.05], itertools.repeat(0.01))

    def fused(num_tokens):
        clock.now += 0.03 if num_tokens == cpu_choices.TOKENS else next(first)

    assert measure({**runs, "float32": fused}, lambda: clock.now) == pytest.approx({"modules": 0.04, "float32": 0.03})


def test_a_measurement_ends_in_time_and_gives_a_slow_way_up():
    clock = Clock()
    runs = {name: clock.run(name, 0.005, itertools.repeat(0.07)) for name in ("float32", "modules")}
    runs["bfloat16"] = clock.run("bfloat16", 0.03, itertools.repeat(0.5))
    assert measure(runs, lambda: clock.now).keys() == {"float32", "modules"}
    assert clock.now <= 0.6
    assert ("bfloat16", cpu_choices.TOKENS) not in clock.calls


def test_a_choice_is_measured_once_and_kept(measured, monkeypatch):
    assert choose(*SHAPE, with_backward=False) == CpuChoice("bfloat16", "fused")
    monkeypatch.setattr(cpu_choices, "CHOSEN", {})
    assert choose(*SHAPE, with_backward=False) == CpuChoice("bfloat16", "fused")
    assert measured.found == [["bfloat16", "float32", "modules"]]
    [(facts, choice)] = cpu_choices.kept_choices()
    assert (facts["layer"], facts["threads"]) == (SHAPE._asdict(), torch.get_num_threads())
    assert choice == CpuChoice("bfloat16", "fused")


def test_another_shape_or_number_of_threads_is_measured_again(measured, monkeypatch):
    choose(*SHAPE, with_backward=False)
    choose(*SHAPE._replace(dtype="float32"), with_backward=False)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 7)
    choose(*SHAPE, with_backward=False)
    assert [len(runs) for runs in measured.found] == [3, 2, 3]


@pytest.mark.parametrize(
    "damage", [lambda file: file.write_text("{}"), lambda file: file.unlink()], ids=["cut", "gone"]
)
def test_a_damaged_file_is_measured_again(measured, monkeypatch, tmp_path, damage):
    choose(*SHAPE, with_backward=False)
    [file] = tmp_path.rglob("*.json")
    damage(file)
    monkeypatch.setattr(cpu_choices, "CHOSEN", {})
    choose(*SHAPE, with_backward=False)
    assert len(measured.found) == 2 and json.loads(file.read_text())["choice"]["products"] == "bfloat16"


def test_a_folder_that_cannot_be_written_costs_no_choice(measured, monkeypatch, tmp_path):
    (tmp_path / "choices").write_text("")
    for _ in range(2):
        assert choose(*SHAPE, with_backward=False) == CpuChoice("bfloat16", "fused")
    assert len(measured.found) == 1


def test_with_a_backward_the_mixer_is_fused_unless_modules_are_forced(measured, monkeypatch):
    measured.seconds = {"float32": 1.0, "modules": 0.5}
    assert choose(*SHAPE, with_backward=False).mixer == "modules"
    assert choose(*SHAPE, with_backward=True).mixer == "fused"
    monkeypatch.setenv(VARIABLE, "mixer=modules")
    assert choose(*SHAPE, with_backward=True).mixer == "modules"


@pytest.mark.parametrize("change", [{"dim": 40}, {"dtype": "float64"}], ids=str)
def test_layers_that_cannot_be_fused_are_not_measured(measured, change):
    assert choose(*SHAPE._replace(**change), with_backward=False).mixer == "modules" and not measured.found


def test_nothing_is_measured_if_all_is_forced(measured, monkeypatch):
    monkeypatch.setenv(VARIABLE, "mixer=modules, products=bfloat16")
    assert choose(*SHAPE, with_backward=False) == CpuChoice("bfloat16", "modules") and not measured.found


@pytest.mark.parametrize("text", ["products=float16", "mixer", "threads=2"])
def test_what_is_no_choice_is_refused_by_name(text, monkeypatch, capsys):
    monkeypatch.setenv(VARIABLE, text)
    with pytest.raises(ValueError, match="give products=float32 or bfloat16 and mixer=fused or modules"):
        choose(*SHAPE, with_backward=False)
    assert main(["predict", "a.mp4", "--model", "b", "--cpu", text]) == 2
    assert text.partition("=")[0] in capsys.readouterr().err


def test_a_resumed_run_keeps_its_choice(measured, tmp_path):
    """Though the machine finds another way quicker by then."""

    def train(**options):
        arguments = make_arguments(
            tmp_path / "run", save_steps=1, eval_strategy="no", save_strategy="steps", bf16=True, **options
        )
        model = make(VideoMambaForVideoClassification, num_labels=2, num_frames=2, image_size=16, patch_size=8)
        trainer = VideoTrainer(model=model, args=arguments, train_dataset=RandomClips())
        trainer.train(resume_from_checkpoint=options["max_steps"] > 1)

    train(max_steps=1, load_best_model_at_end=False)
    measured.seconds = {"float32": 1.0, "bfloat16": 2.0, "modules": 1.0}
    cpu_choices.HELD.clear()
    cpu_choices.CHOSEN.clear()
    for file in tmp_path.glob("choices/*.json"):
        file.unlink()
    train(max_steps=2, load_best_model_at_end=False)
    assert [str(choice) for choice in cpu_choices.HELD.values()] == ["products=bfloat16,mixer=fused"]
    assert len(measured.found) == 1


def test_each_way_runs_for_a_measurement():
    for name, run in cpu_choices.runs_of(SHAPE).items():
        run(cpu_choices.FIRST_TOKENS)
        assert name in ("float32", "bfloat16", "modules")


def logits_and_gradient(forced, dtype, monkeypatch):
    monkeypatch.setenv(VARIABLE, forced)
    monkeypatch.setenv(dispatch.BACKEND_VARIABLE, "cpu")
    torch.manual_seed(0)
    model = make(VideoMambaForVideoClassification)
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
        logits = model(random_clips(model.config)).logits.float()
    logits.square().sum().backward()
    return torch.cat([logits.detach().flatten(), model.videomamba.layers[0].mixer.in_proj.weight.grad.flatten()])


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-5), (torch.bfloat16, 0.05)], ids=str)
@pytest.mark.parametrize(
    "forced", ["products=bfloat16,mixer=fused", "products=float32,mixer=modules", "products=float32,mixer=fused"]
)
def test_each_way_gives_the_same_numbers(monkeypatch, forced, dtype, bound):
    expected = logits_and_gradient("products=float32,mixer=modules", torch.float32, monkeypatch)
    found = logits_and_gradient(forced, dtype, monkeypatch)
    assert torch.linalg.vector_norm(found - expected) <= bound * torch.linalg.vector_norm(expected)


LESSER_MACHINE = """
import os, torch
from hf_video import VideoMambaForVideoClassification
from hf_video.ops.cpu_choices import VARIABLE
from tests.models.videomamba.videomamba_testing import make, random_clips
torch.manual_seed(0)
model, found = make(VideoMambaForVideoClassification).eval(), {}
clips = random_clips(model.config)
for mixer in ("fused", "modules"):
    os.environ[VARIABLE] = f"products=float32,mixer={mixer}"
    with torch.no_grad():
        found[mixer] = model(clips).logits
print(torch.backends.cpu.get_cpu_capability())
print(((found["fused"] - found["modules"]).abs().max() / found["modules"].abs().max()).item())
"""


def test_numbers_stay_right_on_a_lesser_machine():
    environment = os.environ | {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41"}
    environment[dispatch.BACKEND_VARIABLE] = "cpu"
    words = [sys.executable, "-c", LESSER_MACHINE]
    printed = subprocess.run(words, env=environment, capture_output=True, text=True, check=True).stdout
    capability, difference = printed.split()
    assert capability == "DEFAULT" and float(difference) < 1e-5
