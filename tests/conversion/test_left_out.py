"""Every tensor that a conversion does not take is named in its output, with the number and the reason."""

import json

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from conversion import instructblip, malmm, stmixer, videomae, videomamba
from conversion.helpers.checkpoint import read_checkpoint
from tests.goldens import load_golden, write_original_config

from ..documents.blocks import ROOT
from .test_instructblip import LANGUAGE_MODELS, make_original

DECODER = "(the decoder serves pre-training alone)"
STMIXER = "(a backbone has no place for the parts of a detector after it)"
VISION = "(only the vision tower is taken)"


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
        "2 tensors of encoder.norm.* (a classifier normalises the mean token instead, from scratch)",
        f"{number} tensors of decoder.* {DECODER}",
        f"encoder_to_decoder.weight {DECODER}",
        f"mask_token {DECODER}",
    }


def test_a_video_encoder_names_the_rest_of_a_multimodal_file(left_out, tmp_path):
    golden = load_golden("videomamba", "pretrain_masked")
    weights = torch.load(golden.folder / "checkpoint.pth", weights_only=True)
    file = {f"vision_encoder.{name}": value for name, value in weights.items()}
    file |= {f"text_encoder.layer.{index}.weight": torch.ones(1) for index in range(3)} | {"temp": torch.ones(1)}
    torch.save({"model": file}, tmp_path / "a.pth")
    reason = "(only the video encoder of a multimodal model is taken)"
    said = left_out(videomamba, tmp_path / "a.pth")
    assert said == [f"3 tensors of text_encoder.layer.* {reason}", f"temp {reason}"]


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


def test_a_tower_names_the_rest_of_its_file(left_out, tmp_path):
    golden = load_golden("memory_bank_qformer", "full_model")
    (tmp_path / "original.json").write_text(json.dumps(golden.config))
    words = ("--original-config", tmp_path / "original.json", "--frozen-weights", golden.folder / "frozen_weights.pth")
    assert f"21 tensors of llm_model.* {VISION}" in left_out(malmm, golden.folder / "checkpoint.pth", *words)
    make_original("instructblip", "llama").save_pretrained(tmp_path / "blip")
    tower = malmm.load_tower(str(tmp_path / "blip"))
    assert all(name.startswith("vision_model.") for name in tower.weights)


def test_another_language_model_takes_the_place_of_that_of_the_folder(left_out, tmp_path):
    original = make_original("instructblip", "llama")
    original.register_parameter("stranger", torch.nn.Parameter(torch.ones(1)))
    original.language_model.register_parameter("another", torch.nn.Parameter(torch.ones(1)))
    original.save_pretrained(tmp_path / "blip")
    assert left_out(instructblip, tmp_path / "blip") == [
        "stranger (MemoryBankQFormerModel has no place for it)",
        "another (LlamaForCausalLM has no place for it)",
    ]
    LlamaForCausalLM(LlamaConfig(**LANGUAGE_MODELS["llama"])).save_pretrained(tmp_path / "llama")
    (tmp_path / "model").rename(tmp_path / "first")
    with pytest.warns(UserWarning, match="its projection begins anew"):
        said = left_out(instructblip, tmp_path / "blip", "--llm", tmp_path / "llama")
    number = sum(name.startswith("language_model.") for name in original.state_dict())
    assert f"{number} tensors of language_model.* (MemoryBankQFormerModel has no place for it)" in said
