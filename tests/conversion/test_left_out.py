"""Every tensor that a conversion does not take is named in its output, with the number and the reason."""

import json

import pytest
import torch

from conversion import malmm, stmixer, videomae
from conversion.helpers.checkpoint import read_checkpoint
from tests.testing.goldens import load_golden, write_original_config

from ..documents.blocks import ROOT

DECODER = "(the decoder serves pre-training alone)"
STMIXER = "(a backbone has no place for the parts of a detector after it)"


@pytest.fixture
def left_out(tmp_path, capsys):
    """What a source says that it leaves out, by the beginning of the lines."""

    def convert(source, checkpoint, *options):
        capsys.readouterr()
        source.main([str(checkpoint), str(tmp_path / "model"), *map(str, options)])
        lines = capsys.readouterr().out.splitlines()
        assert lines[-1].startswith("Wrote ")
        return [line.removeprefix("Left out: ") for line in lines[:-1]]

    return convert


def test_a_backbone_names_the_parts_of_the_detector(left_out, tmp_path):
    golden = load_golden("videovit", "stmixer_backbone_same_size")
    config = write_original_config(golden, tmp_path, key="cfg.ViT")
    said = left_out(stmixer, golden.folder / "checkpoint.pth", "--original-config", config)
    assert said == [f"24 tensors of lateral_convs.* {STMIXER}", f"2 tensors of stm_head.* {STMIXER}"]
    assert f"\nLeft out: {said[0]}\n" in (ROOT / "docs" / "convert.md").read_text()


def test_a_classifier_from_a_masked_autoencoder_names_the_decoder(left_out, tmp_path):
    golden = load_golden("videovit", "videomae_pretrain")
    config = write_original_config(golden, tmp_path)
    weights = read_checkpoint(golden.folder / "checkpoint.pth")["model"]
    words = ("--original-config", config, "--task", "video-classification")
    number = sum(name.startswith("decoder.") for name in weights)
    said = left_out(videomae, golden.folder / "checkpoint.pth", *words)
    assert set(said) == {
        "2 tensors of norm.* (a classifier normalises the mean token instead, from scratch)",
        f"{number} tensors of decoder.* {DECODER}",
        f"encoder_to_decoder.weight {DECODER}",
        f"mask_token {DECODER}",
    }


def test_a_qformer_names_towers_and_tables_that_nothing_reads(left_out, tmp_path):
    golden = load_golden("memory_bank_qformer", "full_model")
    (tmp_path / "original.json").write_text(json.dumps(golden.config))
    weights = torch.load(golden.folder / "checkpoint.pth", weights_only=True)["model"]
    torch.save(weights | {"visual_encoder.a": torch.ones(1), "visual_encoder.b": torch.ones(1)}, tmp_path / "a.pth")
    said = left_out(malmm, tmp_path / "a.pth", "--original-config", tmp_path / "original.json")
    assert (
        "2 tensors of visual_encoder.* (the frozen vision tower, which `--frozen-weights` or `--vision` brings)"
        in said
    )
    assert "2 tensors of ln_vision.* (`vision_embeds` are taken after this norm)" in said
    assert any(line.startswith("2 tensors of llm_model.") for line in said)
