"""The schedule of MA-LMM against its formula, step by step, for every recipe and in real trainings."""

import math
from pathlib import Path

import pytest
import torch
from transformers import TrainerCallback

from hf_video.data.video_texts import VideoTextDataset
from hf_video.training.answering import AnswerTrainer, AnswerTrainingArguments
from hf_video.training.resuming import choose_values, make
from tests.cli.flags import read

from ..models.memory_bank_qformer.watching_testing import tiny_pair
from .test_answering import data  # noqa: F401

RECIPES = Path(__file__).parents[2] / "recipes" / "malmm"
# Batches on each of four GPUs in an epoch. Those of Breakfast, LVU and YouCook2 make 440, 100 and 720 steps in all.
BATCHES = {
    "activitynet_qa": 250,
    "breakfast": 22,
    "coin": 142,
    "lvu": 5,
    "msrvtt_caption": 2036,
    "msrvtt_qa": 1239,
    "msvd_caption": 764,
    "msvd_qa": 242,
    "youcook2_caption": 144,
}
# Epochs, batches in a step and peak of the original, from its scripts.
SCRIPTS = {name: (5, 1, 1e-4) for name in ("activitynet_qa", "msrvtt_qa", "msvd_qa")}
SCRIPTS |= {name: (20, 1, 1e-4) for name in ("breakfast", "coin", "lvu")}
SCRIPTS |= {"msrvtt_caption": (10, 2, 1e-5), "msvd_caption": (10, 2, 1e-5), "youcook2_caption": (10, 2, 1e-4)}
# 1e-8 at the start, where the peak is 1e-3, and nothing at the end.
OPTIONS = {"lr_by_epoch": True, "lr_scheduler_type": "cosine_warmup_with_min_lr", "learning_rate": 1e-3}
OPTIONS["lr_scheduler_kwargs"] = {"warmup_lr_rate": 1e-5, "min_lr_rate": 0.0}


def original_rate(epoch, batch, epochs, peak, warmup):
    """What `LinearWarmupCosineLRScheduler.step(epoch, batch)` sets: lavis/common/optims.py of salesforce/LAVIS."""
    if epoch > 0:
        return peak * 0.5 * (1 + math.cos(math.pi * epoch / epochs))
    return min(peak, 1e-8 + (peak - 1e-8) * batch / warmup)


def original_rates(batches, epochs, accumulation, peak, warmup=1000):
    """The rate of each step: that of the batch after which the optimizer steps (lavis/tasks/base_task.py)."""
    each = [(epoch, batch) for epoch in range(epochs) for batch in range(batches)]
    steps = [(epoch, batch) for epoch, batch in each if (batch + 1) % accumulation == 0]
    return [original_rate(epoch, batch, epochs, peak, warmup) for epoch, batch in steps]


def test_every_recipe_is_here():
    assert sorted(path.stem for path in RECIPES.glob("*.yaml")) == sorted(BATCHES) == sorted(SCRIPTS)


@pytest.mark.parametrize("recipe", BATCHES)
def test_every_step_of_a_recipe_has_the_original_rate(recipe, tmp_path):
    words = ["--recipe", str(RECIPES / f"{recipe}.yaml"), "d", "--model=m", "--output-dir=o", "--no-fp16"]
    chosen = choose_values(read(["train-answers", *words]))
    arguments = make(AnswerTrainingArguments, chosen, output_dir=str(tmp_path), use_cpu=True)
    model, processor = tiny_pair()
    batches, (epochs, accumulation, peak) = BATCHES[recipe], SCRIPTS[recipe]
    trainer = AnswerTrainer(model, arguments, train_dataset=[0], eval_dataset=[0], processing_class=processor)
    trainer.set_initial_training_values(arguments, range(batches))
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=arguments.learning_rate)
    expected, found = original_rates(batches, epochs, accumulation, peak), []
    scheduler = trainer.create_scheduler(len(expected), optimizer)
    for _ in expected:
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    assert found == pytest.approx(expected, rel=1e-9)
    assert found[-1] < peak / 10


class Rates(TrainerCallback):
    def __init__(self):
        self.found = []

    def on_pre_optimizer_step(self, args, state, control, optimizer=None, **kwargs):
        self.found.append(optimizer.param_groups[0]["lr"])


def train(rows, folder, checkpoint=None, **options):
    model, processor = tiny_pair()
    defaults = {"num_train_epochs": 4, "per_device_train_batch_size": 1, "use_cpu": True, "disable_tqdm": True}
    defaults |= {"eval_strategy": "no", "load_best_model_at_end": False, "save_strategy": "no"}
    arguments = AnswerTrainingArguments(output_dir=str(folder), **OPTIONS | defaults | options)
    rates = Rates()
    dataset = VideoTextDataset(rows, processor, training=True)
    trainer = AnswerTrainer(model, arguments, train_dataset=dataset, processing_class=processor, callbacks=[rates])
    trainer.train(resume_from_checkpoint=checkpoint)
    return rates.found


@pytest.mark.parametrize("accumulation", [pytest.param(1, marks=pytest.mark.slow), 2])
@pytest.mark.parametrize("warmup", [3, 1000], ids=["warm-up within the epoch", "warm-up cut off"])
def test_a_training_has_the_original_rates(warmup, accumulation, data, tmp_path):  # noqa: F811
    options = {"warmup_steps": warmup, "gradient_accumulation_steps": accumulation}
    assert len(data) == 4
    expected = original_rates(4, 4, accumulation, 1e-3, warmup)
    assert train(data, tmp_path, **options) == pytest.approx(expected, rel=1e-9)


RESUMABLE = {"warmup_steps": 3, "gradient_accumulation_steps": 2, "save_strategy": "steps", "save_steps": 1}


@pytest.fixture(scope="module")
def whole(data, tmp_path_factory):  # noqa: F811
    """The rates of a training, and the folder with its checkpoints."""
    folder = tmp_path_factory.mktemp("whole")
    return train(data, folder, **RESUMABLE, save_total_limit=99), folder


@pytest.mark.parametrize(
    "step",
    [
        pytest.param(1, id="in the warm-up", marks=pytest.mark.slow),
        pytest.param(4, id="after it", marks=pytest.mark.slow),
        pytest.param(5, id="in a later epoch"),
    ],
)
def test_a_resumed_training_goes_on_with_them(step, whole, data, tmp_path):  # noqa: F811
    rates, folder = whole
    assert train(data, tmp_path, str(folder / f"checkpoint-{step}"), **RESUMABLE) == rates[step:]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lr_scheduler_type": "cosine"}, "lr_scheduler_type is cosine; lr_by_epoch needs cosine_warmup_with_min_lr"),
        ({"lr_scheduler_kwargs": {"min_lr": 0}}, r"lr_scheduler_kwargs has \['min_lr'\]; lr_by_epoch takes"),
    ],
)
def test_another_schedule_by_epoch_is_refused(options, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        AnswerTrainingArguments(output_dir=str(tmp_path), use_cpu=True, **OPTIONS | options)
