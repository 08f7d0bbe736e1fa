"""The schedule of MA-LMM against its formula, step by step, for every recipe and in real trainings."""

import math
from pathlib import Path

import pytest
import torch
from transformers import TrainerCallback

from hf_video.data import TextTask, VideoDataset
from hf_video.training.answers import AnswerTrainer, AnswerTrainingArguments
from hf_video.training.values import choose_values, make
from tests.cli.flags import read
from tests.testing.answering import tiny_pair

from .test_answers import data  # noqa: F401

RECIPES = Path(__file__).parents[2] / "recipes" / "malmm"
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
    assert sorted(path.stem for path in RECIPES.glob("*.yaml")) == sorted(SCRIPTS)


@pytest.mark.parametrize("recipe", SCRIPTS)
def test_twenty_steps_of_a_recipe_have_the_original_rates(recipe, tmp_path):
    words = ["--recipe", str(RECIPES / f"{recipe}.yaml"), "d", "--model=m", "--output-dir=o", "--no-fp16"]
    chosen = choose_values(read(["train-answers", *words]))
    arguments = make(AnswerTrainingArguments, chosen, output_dir=str(tmp_path), use_cpu=True)
    model, processor = tiny_pair()
    epochs, accumulation, peak = SCRIPTS[recipe]
    batches = 20 * accumulation // epochs
    trainer = AnswerTrainer(model, arguments, train_dataset=[0], eval_dataset=[0], processing_class=processor)
    trainer.set_initial_training_values(arguments, range(batches))
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=arguments.learning_rate)
    expected, found = original_rates(batches, epochs, accumulation, peak), []
    assert len(expected) == 20
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
    dataset = VideoDataset(rows, TextTask(processor, prompt="{}"), training=True)
    trainer = AnswerTrainer(model, arguments, train_dataset=dataset, processing_class=processor, callbacks=[rates])
    trainer.train(resume_from_checkpoint=checkpoint)
    return rates.found


def test_a_training_and_a_resumed_one_have_the_original_rates(data, tmp_path):  # noqa: F811
    options = {"warmup_steps": 3, "gradient_accumulation_steps": 2, "save_strategy": "steps", "save_steps": 1}
    assert len(data) == 4
    rates = train(data, tmp_path / "whole", **options, save_total_limit=99)
    assert rates == pytest.approx(original_rates(4, 4, 2, 1e-3, 3), rel=1e-9)
    checkpoint = str(tmp_path / "whole" / "checkpoint-5")
    assert train(data, tmp_path / "resumed", checkpoint, **options) == rates[5:]


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
