from functools import partial

import pytest
import torch
from transformers import AutoModelForVideoClassification

from hf_video.training import add_lora, freeze_layers, make_linear_probe, to_plain_model
from tests.testing.trainers import LAST_WEIGHTS, RandomClips, make_model, make_trainer, weights_of


def train(model, folder):
    options = {"num_train_epochs": 4, "learning_rate": 0.02, "load_best_model_at_end": False}
    trainer = make_trainer(folder, model=model, **options)
    trainer.train()
    return trainer.model


def changed(before, after):
    return {name for name in before if name in after and not torch.equal(before[name], after[name])}


@pytest.mark.parametrize("adapt", [make_linear_probe, partial(add_lora, rank=2)], ids=["linear probe", "LoRA"])
def test_a_part_is_trained_and_folds_into_a_plain_model(adapt, tmp_path):
    model, is_probe = make_model(), adapt is make_linear_probe
    before = weights_of(model)
    adapted = adapt(model) or model
    names = {name for name, weight in adapted.named_parameters() if weight.requires_grad}
    assert names and all("classifier" in name or ("lora_" in name and not is_probe) for name in names)
    trained = train(adapted, tmp_path)
    clips = torch.stack([RandomClips()[index]["pixel_values"][0] for index in range(4)])
    with torch.no_grad():
        expected = trained.eval()(clips).logits
    plain = to_plain_model(trained)
    moved = changed(before, weights_of(plain))
    assert weights_of(plain).keys() == before.keys()
    if is_probe:
        assert moved == {"classifier.weight", "classifier.bias"}
    else:
        assert {"classifier.weight"} < moved and not any("embeddings" in name or "norm" in name for name in moved)
    plain.save_pretrained(tmp_path / "plain")
    loaded = AutoModelForVideoClassification.from_pretrained(tmp_path / "plain").eval()
    with torch.no_grad():
        torch.testing.assert_close(loaded(clips).logits, expected, rtol=1e-4, atol=1e-5)


def test_frozen_layers_stay_as_they_are(tmp_path):
    model = make_model(num_hidden_layers=3)
    freeze_layers(model, 2)
    before = weights_of(model)
    moved = changed(before, weights_of(train(model, tmp_path)))
    assert moved and not any(name.startswith(("videovit.embeddings", "videovit.layers.0")) for name in moved)
    assert any(name.startswith("videovit.layers.1") for name in moved)


def test_errors():
    model = make_model()
    with pytest.raises(ValueError, match="freeze_layers is 3; VideoViTForVideoClassification has 2 groups"):
        freeze_layers(model, 3)
    with pytest.raises(ValueError, match="has no linear layer `classifier`"):
        make_linear_probe(model.videovit)
    with pytest.raises(ValueError, match="Linear has no `layer_groups`, so lora_rank=4 is impossible"):
        add_lora(torch.nn.Linear(2, 2), 4)


def test_a_last_batch_of_one_clip_is_left_out_of_training_a_probe(tmp_path):
    model = make_model()
    make_linear_probe(model)
    trainer = make_trainer(tmp_path, RandomClips(5), model=model, num_train_epochs=1, **LAST_WEIGHTS)
    trainer.train()
    assert trainer.state.global_step == 1
