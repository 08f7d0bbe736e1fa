"""Two processes that share a model by its plans, with tensors or with data, give the logits of one process."""

from pathlib import Path

import pytest
import torch

from hf_video import VideoMambaForVideoClassification, VideoViTForPreTraining, VideoViTForVideoClassification
from tests.models.videomamba import videomamba_testing
from tests.models.videovit import videovit_testing
from tests.testing.processes import launched, run_forked

SCRIPT = Path(__file__).with_name("plans_run.py")
EVEN = {"num_attention_heads": 4, "head_dim": 12, "decoder_hidden_size": 32}
OPTIONS = {"use_qk_norm": True, "use_cosine_attention": True, "position_embedding_type": "rope", "key_bias": True}


def videovit(model_class, **settings):
    model = videovit_testing.make(model_class, **EVEN, **settings)
    inputs = {"pixel_values": videovit_testing.random_clips(model.config)}
    if model_class is VideoViTForPreTraining:
        inputs |= model.draw_masks(inputs["pixel_values"], [torch.Generator().manual_seed(each) for each in range(2)])
    return model, inputs


def videomamba():
    model = videomamba_testing.make(VideoMambaForVideoClassification, use_bias=True)
    return model, {"pixel_values": videomamba_testing.random_clips(model.config)}


# An Auto class, and a function that makes a small model and its inputs.
CASES = {
    "VideoViT": ("AutoModelForVideoClassification", lambda: videovit(VideoViTForVideoClassification)),
    "VideoViT with options": ("AutoModelForPreTraining", lambda: videovit(VideoViTForPreTraining, **OPTIONS)),
    "V-JEPA 2": (
        "AutoModelForVideoClassification",
        lambda: videovit(VideoViTForVideoClassification, **videovit_testing.ATTENTIVE),
    ),
    "VideoMamba": ("AutoModelForVideoClassification", videomamba),
}


def run(folder, num_processes, auto_class, kind):
    processes = run_forked(*launched([SCRIPT, folder, num_processes, auto_class, kind], num_processes))
    assert not any(each.returncode for each in processes), [each.stderr[-5000:] for each in processes]
    return torch.load(folder / f"{num_processes}-{kind}.pt")


@pytest.mark.parametrize("case", CASES)
def test_two_processes_have_the_logits_and_gradients_of_one(tmp_path, case):
    auto_class, make = CASES[case]
    model, inputs = make()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    model.save_pretrained(tmp_path)
    torch.save(inputs, tmp_path / "inputs.pt")
    one = run(tmp_path, 1, auto_class, "alone")
    for kind in ("tensor", "data"):
        two = run(tmp_path, 2, auto_class, kind)
        assert two["cut"] >= 12, kind
        torch.testing.assert_close(two["logits"], one["logits"], atol=1e-5, rtol=0)
        assert two["gradients"].keys() == one["gradients"].keys()
        for name, gradient in one["gradients"].items():
            torch.testing.assert_close(two["gradients"][name], gradient, atol=1e-6, rtol=1e-3, msg=f"{kind}: {name}")
