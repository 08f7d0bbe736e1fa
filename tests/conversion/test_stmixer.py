"""Conversion of STMixer's backbone, from detectors and from the classifiers it starts from."""

import pytest
import torch

from conversion.stmixer import main
from hf_video import VideoViTBackbone
from hf_video.models.videovit import modeling_videovit
from tests.testing.goldens import assert_float32_close, assert_float64_close, load_golden, write_original_config

CASES = [
    "stmixer_backbone_same_size",
    "stmixer_backbone_interpolated",
    "stmixer_backbone_from_finetuned_checkpoint",
]


def convert(case, folder):
    golden = load_golden("videovit", case)
    config = write_original_config(golden, folder, key="cfg.ViT")
    main([str(golden.folder / "checkpoint.pth"), str(folder / "model"), "--original-config", str(config)])
    return golden, folder / "model"


@pytest.mark.parametrize("case", CASES)
def test_feature_maps_equal_the_original(tmp_path, case, monkeypatch):
    golden, folder = convert(case, tmp_path)
    model = VideoViTBackbone.from_pretrained(folder)
    pixel_values = golden.inputs["pixel_values"].transpose(1, 2)
    with torch.no_grad():
        outputs = model(pixel_values, output_hidden_states=True)
        positions = model.videovit.embeddings.position_embeddings(outputs.feature_maps[-1].shape[2:])
        # The original resizes positions in float32, which rounds as the machine does. Double precision begins after.
        monkeypatch.setattr(modeling_videovit, "resize_positions", lambda *_: golden.expected["position_embedding"])
        double = model.double()(pixel_values.double()).feature_maps[-1]
    assert_float32_close(outputs.feature_maps[-1], golden.expected["feature_map"])
    assert_float32_close(positions, golden.expected["position_embedding"])
    for number, hidden_states in golden.expected_under("hidden_states.").items():
        assert_float32_close(outputs.hidden_states[int(number)], hidden_states)
    assert_float64_close(double, golden.expected["float64.feature_map"])


def test_it_refuses_what_the_original_refuses(tmp_path):
    golden, folder = convert("stmixer_backbone_same_size", tmp_path)
    model = VideoViTBackbone.from_pretrained(folder)
    pixel_values = golden.inputs["pixel_values"].transpose(1, 2)
    with pytest.raises(ValueError, match="9 token frames, expected 8"):
        model(torch.cat([pixel_values, pixel_values[:, :2]], dim=1))
    with pytest.raises(ValueError, match="6 token frames, expected 8"):
        model(pixel_values[:, :12])
    with torch.no_grad():
        one_more = model(torch.cat([pixel_values, pixel_values[:, :1]], dim=1)).feature_maps[0]
        torch.testing.assert_close(one_more, model(pixel_values).feature_maps[0])


def test_a_pretraining_checkpoint_is_refused(refused):
    golden = load_golden("videovit", "videomae_pretrain")
    assert "which has patch_embed.proj.weight" in refused(main, golden.folder / "checkpoint.pth")
