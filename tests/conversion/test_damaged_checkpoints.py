"""Whatever stands in the place of a tensor, of its name or of a size ends a conversion in one line, and no bug."""

import importlib
import json

import pytest
import torch

from conversion.helpers.checkpoint import find_weights, read_checkpoint
from tests.goldens import load_golden, write_original_config

CASES = {
    "videomae": ("videovit", "videomae_v2_finetune_cos_attn", "kwargs"),
    "videomamba": ("videomamba", "video_default", "kwargs"),
    "malmm": ("memory_bank_qformer", "no_text_checkpoint", None),
}
# Tensors that sizes are read from, or that are joined.
TELLING = {
    "videomae": "patch_embed.proj.weight blocks.0.mlp.fc1.weight blocks.0.attn.scale blocks.0.attn.q_bias head.weight",
    "videomamba": "patch_embed.proj.weight pos_embed temporal_pos_embedding head.weight layers.0.mixer.A_log "
    "layers.0.mixer.conv1d.weight layers.0.mixer.dt_proj.weight",
    "malmm": "query_tokens image_pe.weight llm_proj.weight "
    "Qformer.bert.encoder.layer.0.crossattention.self.key.weight",
}


@pytest.fixture(params=CASES)
def convert(request, tmp_path, capsys):
    """Converts changed weights, with changed arguments of the original; returns the line that refuses them.

    `weights` are those of the golden case, `arguments` its configuration, empty where it needs none.
    """
    family, case, key = CASES[request.param]
    golden = load_golden(family, case)
    source = importlib.import_module(f"conversion.{request.param}")
    file = next(golden.folder.glob("checkpoint*"))
    config = write_original_config(golden, tmp_path, key) if key else tmp_path / "original.json"
    if request.param == "malmm":
        config.write_text(json.dumps(golden.config))

    def run(weights, **changes):
        torch.save(weights, tmp_path / "changed.pth")
        words = [str(tmp_path / "changed.pth"), str(tmp_path / "model")]
        if config.is_file():
            (tmp_path / "changed.json").write_text(json.dumps(run.arguments | changes))
            words += ["--original-config", str(tmp_path / "changed.json")]
        with pytest.raises(SystemExit) as exit_info:
            source.main(words)
        message = capsys.readouterr().err.splitlines()[-1]
        assert exit_info.value.code == 2, message
        assert not (tmp_path / "model").exists()
        return message

    run.source = request.param
    run.weights = find_weights(read_checkpoint(file), ("model", "module"))
    run.arguments = json.loads(config.read_text()) if config.is_file() else {}
    return run


def test_a_tensor_of_another_rank_is_refused(convert):
    for name in TELLING[convert.source].split():
        tensor = convert.weights[name]
        for changed in (torch.tensor(1.0), tensor.flatten()[None] if tensor.ndim == 1 else tensor.flatten()):
            message = convert(convert.weights | {name: changed})
            assert name in message or "cannot be made of tensors of the shapes" in message


@pytest.mark.parametrize("name", [1, (1, 2), None, b"x"], ids=repr)
def test_a_name_that_is_no_text_is_refused(convert, name):
    message = convert(convert.weights | {name: torch.ones(2)})
    assert f"The names of tensors must be texts, got {name!r}" in message


def test_a_gap_in_the_layers_is_refused_before_layers_are_made_for_it(convert):
    far = {name.replace(".0.", ".99999999."): tensor for name, tensor in convert.weights.items() if ".0." in name}
    assert "but none of layer " in convert(convert.weights | far)


@pytest.mark.parametrize("convert", ["videomae"], indirect=True)
@pytest.mark.parametrize("size", [10**8, 10**20])
def test_sizes_beyond_all_memory_are_named_and_no_batch_size(convert, size):
    message = convert(convert.weights, img_size=size)
    assert "A model of these sizes does not fit into memory" in message and "--batch-size" not in message
