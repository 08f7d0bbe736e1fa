from functools import partial

import pytest
import torch
from transformers import AutoModelForVideoClassification

from hf_video.training import EMACallback
from hf_video.training.optimization import EMA_FILE
from tests.testing import trainers
from tests.testing.trainers import weights_of


class WeightsOfEveryStep(EMACallback):
    """Keeps what the average is made of."""

    def __init__(self):
        super().__init__(0.5)
        self.steps = []

    def on_train_begin(self, args, state, control, **kwargs):
        self.steps = [weights_of(kwargs["model"])]

    def on_step_end(self, args, state, control, **kwargs):
        self.steps.append(weights_of(kwargs["model"]))

    def on_train_end(self, *args, **kwargs):
        pass


make_trainer = partial(trainers.make_trainer, num_train_epochs=3, ema_decay=0.5)


def test_the_model_ends_with_the_average_of_its_weights(tmp_path):
    trainer = make_trainer(tmp_path, load_best_model_at_end=False)
    watch = WeightsOfEveryStep()
    trainer.add_callback(watch)
    trainer.train()
    average = watch.steps[0]
    for number, step in enumerate(watch.steps[1:], start=1):
        decay = min(0.5, (1 + number) / (10 + number))
        average = {name: decay * average[name] + (1 - decay) * step[name] for name in average}
    torch.testing.assert_close(weights_of(trainer.model), average)
    assert not torch.equal(watch.steps[-1]["classifier.weight"], average["classifier.weight"])


def test_evaluation_is_of_the_average_and_training_goes_on_with_the_weights(tmp_path):
    trainer = make_trainer(tmp_path)
    model, ema = trainer.model, trainer.ema
    trained = weights_of(model)
    ema.average = {name: torch.zeros_like(weight) for name, weight in model.named_parameters()}
    assert trainer.evaluate()["eval_loss"] == pytest.approx(torch.tensor(2.0).log().item())
    assert all(torch.equal(tensor, trained[name]) for name, tensor in weights_of(model).items())


def test_a_resumed_run_has_the_same_average(tmp_path):
    options = {"load_best_model_at_end": False, "save_strategy": "steps", "save_steps": 3}
    whole = make_trainer(tmp_path / "whole", **options)
    whole.train()
    resumed = make_trainer(tmp_path / "resumed", **options)
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-3"))  # in the middle of an epoch
    torch.testing.assert_close(weights_of(resumed.model), weights_of(whole.model), rtol=0, atol=0)


def test_the_best_average_is_what_is_loaded_at_the_end(tmp_path):
    trainer = make_trainer(tmp_path)
    trainer.train()
    best = EMACallback(0.5)
    best.load(trainer.state.best_model_checkpoint)
    model = weights_of(trainer.model)
    assert all(torch.equal(model[name], tensor) for name, tensor in best.average.items())
    trainer.save_model()
    saved = AutoModelForVideoClassification.from_pretrained(tmp_path)
    torch.testing.assert_close(weights_of(saved), model, rtol=0, atol=0)
    assert not (tmp_path / EMA_FILE).exists()


def test_errors(tmp_path):
    with pytest.raises(FileNotFoundError, match="has no ema.safetensors: it was saved without ema_decay"):
        EMACallback(0.9).load(tmp_path)
