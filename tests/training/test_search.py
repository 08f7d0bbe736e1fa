"""`hyperparameter_search` and `auto_find_batch_size` of `VideoTrainer`."""

import threading
from operator import itemgetter

import pytest
import torch
from transformers import TrainerCallback

from hf_video.hub.model_card import read_facts
from hf_video.training import VideoTrainer
from tests.testing.trainers import RandomClips, labelled_clips, make_arguments, make_model, make_trainer, weights_of


class Watcher(TrainerCallback):
    """Keeps what each training, or each attempt of one, begins with."""

    def __init__(self):
        self.begins, self.weights, self.losses = [], [], []

    def on_train_begin(self, args, state, control, **kwargs):
        groups = kwargs["optimizer"].param_groups
        rates = sorted({group["initial_lr"] for group in groups}, reverse=True)
        self.begins.append({"batch": state.train_batch_size, "steps": state.max_steps, "rates": rates})
        self.weights.append(weights_of(kwargs["model"]))

    def on_log(self, args, state, control, logs=None, **kwargs):
        self.losses += [logs["loss"]] if "loss" in logs else []


def search(folder, space, num_trials=2, watcher=None, train_dataset=None, **options):
    """The best trial, after each trial has taken the values of its number."""
    pytest.importorskip("optuna", reason="Optuna is missing: pip install 'hf-video-models[search]'")
    sets = {"train_dataset": train_dataset or RandomClips(training=True), "eval_dataset": RandomClips()}
    callbacks = [Watcher() if watcher is None else watcher]
    trainer = VideoTrainer(
        None, make_arguments(folder, **options), **sets, model_init=lambda: make_model(), callbacks=callbacks
    )

    def choose(trial):
        return {name: trial.suggest_categorical(name, values) for name, values in space.items()}

    import optuna

    sampler = optuna.samplers.GridSampler(space)
    objective = {"compute_objective": itemgetter("eval_top1_accuracy"), "direction": "maximize"}
    return trainer.hyperparameter_search(choose, n_trials=num_trials, sampler=sampler, **objective), trainer


def test_a_search_finds_the_learning_rate_that_learns(tmp_path):
    watcher = Watcher()
    best, trainer = search(tmp_path, {"learning_rate": [0.0, 1e-2]}, watcher=watcher, num_train_epochs=3)
    assert best.hyperparameters == {"learning_rate": 1e-2} and best.objective == 1.0
    # Trials begin with the same weights, and each has a folder of checkpoints that are complete.
    torch.testing.assert_close(watcher.weights[0], watcher.weights[1], rtol=0, atol=0)
    for number in range(2):
        checkpoints = sorted((tmp_path / f"run-{number}").glob("checkpoint-*"))
        assert checkpoints and all((each / "complete.json").is_file() for each in checkpoints)
    trainer.args.learning_rate = best.hyperparameters["learning_rate"]
    trainer.train()
    assert trainer.evaluate()["eval_top1_accuracy"] == best.objective


@pytest.mark.parametrize(
    "space",
    [
        {"label_smoothing_factor": [0.0, 0.9], "ema_decay": [0.5]},
        {"class_weights": ["balanced"], "sampler": ["random", "balanced"]},
    ],
)
def test_a_trial_changes_losses_draws_and_the_average(space, tmp_path):
    watcher = Watcher()
    options = {"train_dataset": labelled_clips([0, 0, 0, 1]), "learning_rate": 0.0, "num_train_epochs": 1}
    search(tmp_path, space, watcher=watcher, **options)
    assert len(watcher.losses) == 2 and watcher.losses[0] != watcher.losses[1]
    assert len([*tmp_path.glob("run-*/checkpoint-*/ema.safetensors")]) == 2 * ("ema_decay" in space)


def test_a_trial_changes_the_batch_and_with_it_the_scaled_learning_rate(tmp_path):
    watcher = Watcher()
    space = {"per_device_train_batch_size": [2, 4], "base_learning_rate": [0.64]}
    options = {"base_learning_rate": 0.1, "layer_decay": 0.5, "num_train_epochs": 1}
    search(tmp_path, space, watcher=watcher, **options)
    found = sorted((each["batch"], each["steps"], each["rates"][0]) for each in watcher.begins)
    assert found == [(2, 4, pytest.approx(0.005)), (4, 2, pytest.approx(0.01))]
    assert all(each["rates"][1] == pytest.approx(each["rates"][0] / 2) for each in watcher.begins)


def limited_model(most_clips):
    """A model whose device has no memory for larger batches."""
    model = make_model()

    def refuse(module, args, kwargs):
        if module.training and len(kwargs["pixel_values"]) > most_clips:
            raise RuntimeError("CUDA out of memory.")

    model.register_forward_pre_hook(refuse, with_kwargs=True)
    return model


def test_a_batch_that_fits_is_found(tmp_path):
    watcher, trained = Watcher(), []
    for batch_size, most_clips, is_sought in ((8, 4, True), (4, 8, False)):
        folder = tmp_path / str(batch_size)
        options = {"per_device_train_batch_size": batch_size, "auto_find_batch_size": is_sought}
        options |= {"base_learning_rate": 0.64, "layer_decay": 0.5, "ema_decay": 0.5, "callbacks": [watcher]}
        trainer = make_trainer(folder, labelled_clips([0, 1] * 8), model=limited_model(most_clips), **options)
        trainer.train()
        trained.append(weights_of(trainer.model))
        facts = read_facts(folder)
        assert facts["recipe"]["per_device_train_batch_size"] == 4 and facts["steps"] == 8
        assert facts["recipe"]["learning_rate"] == pytest.approx(0.01)
    found = [(each["batch"], each["steps"]) for each in watcher.begins]
    assert found == [(8, 4), (7, 6), (6, 6), (5, 8), (4, 8), (4, 8)]
    assert [each["rates"][0] for each in watcher.begins] == pytest.approx([0.0025 * batch for batch, _ in found])
    # The attempts leave nothing behind.
    torch.testing.assert_close(trained[0], trained[1], rtol=0, atol=0)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("reading")]
