"""Forward and backward of every class are one graph, so that nothing in a step waits for values of the device."""

import pytest
import torch

from hf_video import (
    VideoViTBackbone,
    VideoViTForFrameClassification,
    VideoViTForPreTraining,
    VideoViTForVideoClassification,
    VideoViTModel,
)

from .videovit_testing import ATTENTIVE, VJEPA2_1, make, random_clips


def masks(model, pixel_values, **options):
    generators = [torch.Generator().manual_seed(seed) for seed in range(len(pixel_values))]
    return model.draw_masks(pixel_values, generators, **options)


def hidden(model, pixel_values):
    return {"bool_masked_pos": (torch.arange(128) % 4 > 0).reshape(2, 64), "num_masked": 48}


def padding(model, pixel_values):
    return {"attention_mask": torch.tensor([[1, 1, 1, 0], [1, 1, 1, 1]])}


@pytest.mark.parametrize(
    ("model_class", "arguments", "settings"),
    [
        (VideoViTForVideoClassification, lambda *_: {"labels": torch.tensor([0, 1])}, {"use_class_token": True}),
        (VideoViTBackbone, lambda *_: {}, {}),
        (VideoViTModel, hidden, {"position_embedding_type": "rope", "use_class_token": True}),
        (VideoViTForFrameClassification, padding, {}),
        (VideoViTForVideoClassification, lambda *_: {"labels": torch.tensor([0, 1])}, ATTENTIVE),
        (VideoViTBackbone, lambda *_: {}, VJEPA2_1),
        (VideoViTForPreTraining, lambda *_: {}, {}),
        (VideoViTForPreTraining, masks, {"position_embedding_type": "rope"}),
        (VideoViTForPreTraining, lambda *each: masks(*each, decoder_mask_ratio=0.5), {"norm_pix_loss": False}),
    ],
)
def test_a_step_is_one_graph(model_class, arguments, settings):
    model = make(model_class, **settings)
    assert model._can_compile_fullgraph
    inputs = {"pixel_values": random_clips(model.config)}
    inputs |= arguments(model, inputs["pixel_values"])
    results = []
    for each in (model, torch.compile(model, fullgraph=True, backend="aot_eager")):
        torch.manual_seed(0)
        output = each(**inputs).to_tuple()[0]
        (output[0] if isinstance(output, tuple) else output).square().mean().backward()
        results.append((output, {name: parameter.grad for name, parameter in model.named_parameters()}))
        model.zero_grad()
    torch.testing.assert_close(results[1], results[0], atol=1e-5, rtol=1e-4)
