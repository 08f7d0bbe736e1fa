"""Learning rates and weight decay by parameter, as literals for each family; schedules, and averages of weights."""

import math
from functools import partial

import pytest
import torch
from transformers import AutoModelForVideoClassification, Trainer, TrainerCallback, TrainingArguments

import hf_video
from hf_video.models.videomamba import VideoMambaConfig, VideoMambaForVideoClassification
from hf_video.models.videovit import VideoViTConfig, VideoViTForPreTraining, VideoViTForVideoClassification
from hf_video.training import EMACallback, VideoTrainer, VideoTrainingArguments, parameter_groups, parameter_settings
from hf_video.training.optimization import EMA_FILE, NO_WEIGHT_DECAY, cosine_by_epoch
from tests.hub.conftest import TINY_CLASSIFIERS
from tests.testing import trainers
from tests.testing.trainers import weights_of

from .test_answers import make_trainer as make_answer_trainer

SIZES = {"image_size": 16, "patch_size": 8, "num_frames": 2, "hidden_size": 24, "num_labels": 2}


def videovit(**options):
    sizes = {"num_attention_heads": 2, "intermediate_size": 32, "num_hidden_layers": 3}
    return VideoViTForVideoClassification(VideoViTConfig(**SIZES, **sizes | options))


def videomamba(**options):
    return VideoMambaForVideoClassification(VideoMambaConfig(**SIZES, num_hidden_layers=2, **options))


def test_videovit_has_the_settings_of_videomae():
    # The original's values for depth 3: `optim_factory.py` of VideoMAE with layer_decay 0.75.
    model = videovit(layer_scale_init_value=0.1, position_embedding_type="learned")
    settings = parameter_settings(model, weight_decay=0.05, layer_decay=0.75, no_weight_decay=NO_WEIGHT_DECAY)
    expected = {
        "videovit.embeddings.position_embeddings.weight": (0.31640625, 0.0),
        "videovit.embeddings.patch_embeddings.projection.weight": (0.31640625, 0.05),
        "videovit.embeddings.patch_embeddings.projection.bias": (0.31640625, 0.0),
        "fc_norm.weight": (1.0, 0.0),
        "fc_norm.bias": (1.0, 0.0),
        "classifier.weight": (1.0, 0.05),
        "classifier.bias": (1.0, 0.0),
    }
    for layer, scale in enumerate((0.421875, 0.5625, 0.75)):
        expected |= {
            f"videovit.layers.{layer}.{name}": (scale, weight_decay)
            for names, weight_decay in (
                (("attention.query.weight", "attention.key.weight", "attention.value.weight"), 0.05),
                (("attention.o_proj.weight", "mlp.fc1.weight", "mlp.fc2.weight"), 0.05),
                (("attention.query.bias", "attention.value.bias", "attention.o_proj.bias"), 0.0),
                (("mlp.fc1.bias", "mlp.fc2.bias"), 0.0),
                (("layer_scale1", "layer_scale2", "layernorm_before.weight", "layernorm_before.bias"), 0.0),
                (("layernorm_after.weight", "layernorm_after.bias"), 0.0),
            )
            for name in names
        }
    assert settings == expected


def test_videomamba_with_the_layer_decay_that_its_paper_meant():
    settings = parameter_settings(videomamba(), weight_decay=0.1, layer_decay=0.5, no_weight_decay=NO_WEIGHT_DECAY)
    chosen = {
        **dict.fromkeys(("cls_token", "temporal_position_embeddings"), (0.125, 0.0)),
        "patch_embeddings.projection.weight": (0.125, 0.1),
        **dict.fromkeys(("forward_scan.A_log", "backward_scan.D", "forward_scan.dt_bias"), (0.25, 0.0)),
        **{"layers.1.mixer.in_proj.weight": (0.5, 0.1), "norm_f.weight": (1.0, 0.0), "classifier.weight": (1.0, 0.1)},
    }
    for part, expected in chosen.items():
        assert next(setting for name, setting in settings.items() if name.endswith(part)) == expected


def test_videomamba_with_the_layer_decay_that_its_released_models_had():
    # Blocks, norm_f, head and temporal positions at full rate; A_log decayed.
    settings = parameter_settings(
        videomamba(),
        weight_decay=0.1,
        layer_decay=0.5,
        layer_decay_only=["patch_embeddings", "cls_token", "position_embeddings"],
        no_weight_decay=["cls_token", "position_embeddings", "temporal_position_embeddings"],
    )
    slow = {name for name, setting in settings.items() if setting.lr_scale == 0.125}
    parts = (
        "cls_token",
        "position_embeddings",
        "patch_embeddings.projection.weight",
        "patch_embeddings.projection.bias",
    )
    assert slow == {f"videomamba.embeddings.{part}" for part in parts}
    assert {setting.lr_scale for setting in settings.values()} == {0.125, 1.0}
    assert settings["videomamba.layers.0.mixer.forward_scan.A_log"].weight_decay == 0.1
    assert settings["videomamba.embeddings.temporal_position_embeddings"] == (1.0, 0.0)


@pytest.mark.parametrize(
    "model",
    [videovit(), videomamba(), VideoViTForPreTraining(videovit().config)],
    ids=["videovit", "videomamba", "pretraining"],
)
def test_every_trainable_parameter_is_in_one_group_and_the_head_leads(model):
    frozen = next(model.parameters()).requires_grad_(False)
    settings = parameter_settings(model, weight_decay=0.05, layer_decay=0.8)
    groups = parameter_groups(model, settings, learning_rate=1e-3)
    grouped = [id(parameter) for group in groups for parameter in group["params"]]
    assert len(grouped) == len(set(grouped))
    assert set(grouped) == {id(parameter) for parameter in model.parameters()} - {id(frozen)}
    assert groups[0]["lr"] == 1e-3 == max(group["lr"] for group in groups)
    torch.optim.AdamW(groups)


POSITIONS = {"layer_scale_init_value": 0.1, "position_embedding_type": "learned", "use_class_token": True}


@pytest.mark.parametrize(
    ("family", "options", "spared"),
    [("VideoViT", POSITIONS, 4), ("VideoMamba", {}, 8), ("MemoryBankQFormer", {}, 4)],
)
def test_what_has_a_place_or_a_scale_of_its_own_is_not_decayed(family, options, spared, tmp_path):
    """By `VideoTrainer`, and by a plain `Trainer` with the optimizer made for it, which does it otherwise."""
    config = getattr(hf_video, f"{family}Config")(**TINY_CLASSIFIERS[family], **options)
    model = getattr(hf_video, f"{family}ForVideoClassification")(config)
    marks = ("token", "position_embedding", "layer_scale", "A_log", ".D", "norm_f")
    own = {name for name, _ in model.named_parameters() if any(mark in name for mark in marks)}
    assert len(own) == spared
    ours = VideoTrainingArguments(str(tmp_path), use_cpu=True, eval_strategy="no", load_best_model_at_end=False)
    settings = parameter_settings(model, weight_decay=0.1, no_weight_decay=NO_WEIGHT_DECAY)
    optimizer = torch.optim.AdamW(parameter_groups(model, settings, learning_rate=1e-3))
    plain = TrainingArguments(str(tmp_path), use_cpu=True, weight_decay=0.1)
    assert own & set(Trainer(model, plain).get_decay_parameter_names(model))
    for trainer in (VideoTrainer(model, ours), Trainer(model, plain, optimizers=(optimizer, None))):
        groups = trainer.create_optimizer().param_groups
        decayed = {id(parameter) for group in groups if group["weight_decay"] for parameter in group["params"]}
        assert decayed and not {name for name, p in model.named_parameters() if id(p) in decayed} & own


def test_parameters_that_are_not_there_are_named(tmp_path):
    with pytest.raises(ValueError, match="Linear has no `layer_groups`, so layer_decay=0.5 is impossible"):
        parameter_settings(torch.nn.Linear(2, 2), layer_decay=0.5)
    with pytest.raises(ValueError, match=r"No parameter of \w+ has \['pos_embed'\] in its name"):
        parameter_settings(videovit(), no_weight_decay=["pos_embed", "cls_token"])
    with pytest.raises(ValueError, match=r"No parameter of \w+ has \['pos_embed'\] in its name"):
        parameter_settings(videovit(), layer_decay=0.5, layer_decay_only=["pos_embed"])


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


# Those of the scripts of MA-LMM, and a warm-up that ends within the first epoch.
@pytest.mark.parametrize(
    ("epochs", "accumulation", "peak", "warmup"),
    [(5, 1, 1e-4, 1000), (20, 1, 1e-4, 1000), (10, 2, 1e-5, 1000), (10, 2, 1e-4, 1000), (5, 2, 1e-4, 3)],
)
def test_the_cosine_by_epoch_is_that_of_ma_lmm(epochs, accumulation, peak, warmup):
    batches = 20 * accumulation // epochs
    optimizer, found = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=peak), []
    lengths = {"num_epochs": epochs, "steps_per_epoch": batches // accumulation, "batches_per_step": accumulation}
    scheduler = cosine_by_epoch(optimizer, **lengths, warmup_batches=warmup, warmup_lr_rate=1e-8 / peak)
    for _ in range(20):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    assert found == pytest.approx(original_rates(batches, epochs, accumulation, peak, warmup), rel=1e-9)
    assert found[-1] < peak / 10


class Rates(TrainerCallback):
    def __init__(self):
        self.found = []

    def on_pre_optimizer_step(self, args, state, control, optimizer=None, **kwargs):
        self.found.append(optimizer.param_groups[0]["lr"])


def test_a_training_and_a_resumed_one_have_its_rates(answers, tmp_path):
    options = {"lr_by_epoch": True, "lr_scheduler_type": "cosine_warmup_with_min_lr", "learning_rate": 1e-3}
    options |= {"lr_scheduler_kwargs": {"warmup_lr_rate": 1e-5, "min_lr_rate": 0.0}, "warmup_steps": 3}
    options |= {"max_steps": -1, "num_train_epochs": 4, "per_device_train_batch_size": 1}
    options |= {"gradient_accumulation_steps": 2, "save_strategy": "steps", "save_steps": 5}
    rates = Rates(), Rates()
    for each, checkpoint in zip(rates, (None, tmp_path / "checkpoint-5"), strict=True):
        trainer, *_ = make_answer_trainer(answers, tmp_path, **options)
        trainer.add_callback(each)
        trainer.train(checkpoint and str(checkpoint))
    assert rates[0].found == pytest.approx(original_rates(4, 4, 2, 1e-3, 3), rel=1e-9)
    assert rates[1].found == rates[0].found[5:]


class WeightsOfEveryStep(EMACallback):
    """Keeps what the average is made of."""

    def __init__(self):
        super().__init__()
        self.steps = []

    def on_train_begin(self, args, state, control, **kwargs):
        self.steps = [weights_of(kwargs["model"])]

    def on_step_end(self, args, state, control, **kwargs):
        self.steps.append(weights_of(kwargs["model"]))

    def on_train_end(self, *args, **kwargs):
        pass


make_averaging_trainer = partial(trainers.make_trainer, num_train_epochs=3, ema_decay=0.5)


def test_the_model_ends_with_the_average_of_its_weights(tmp_path):
    watch = WeightsOfEveryStep()
    trainer = make_averaging_trainer(tmp_path, load_best_model_at_end=False, callbacks=[watch])
    trainer.train()
    average = watch.steps[0]
    for number, step in enumerate(watch.steps[1:], start=1):
        decay = min(0.5, (1 + number) / (10 + number))
        average = {name: decay * average[name] + (1 - decay) * step[name] for name in average}
    torch.testing.assert_close(weights_of(trainer.model), average)
    assert not torch.equal(watch.steps[-1]["classifier.weight"], average["classifier.weight"])


def test_evaluation_is_of_the_average_and_training_goes_on_with_the_weights(tmp_path):
    trainer = make_averaging_trainer(tmp_path)
    model, ema = trainer.model, trainer.ema
    trained = weights_of(model)
    ema.average = {name: torch.zeros_like(weight) for name, weight in model.named_parameters()}
    assert trainer.evaluate()["eval_loss"] == pytest.approx(torch.tensor(2.0).log().item())
    assert all(torch.equal(tensor, trained[name]) for name, tensor in weights_of(model).items())


def test_the_best_average_is_what_is_loaded_at_the_end(tmp_path):
    trainer = make_averaging_trainer(tmp_path)
    trainer.train()
    best = EMACallback()
    best.load(trainer.state.best_model_checkpoint)
    model = weights_of(trainer.model)
    assert all(torch.equal(model[name], tensor) for name, tensor in best.average.items())
    trainer.save_model()
    saved = AutoModelForVideoClassification.from_pretrained(tmp_path)
    torch.testing.assert_close(weights_of(saved), model, rtol=0, atol=0)
    assert not (tmp_path / EMA_FILE).exists()
