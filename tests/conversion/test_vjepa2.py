"""Conversion of V-JEPA 2 and 2.1: encoders and attentive classifiers, from the authors' files and Transformers'."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file
from transformers import (
    AutoModel,
    AutoModelForVideoClassification,
    AutoVideoProcessor,
    VJEPA2Config,
    VJEPA2ForVideoClassification,
    VJEPA2Model,
)

from conversion.vjepa2 import main
from hf_video import VideoViTBackbone
from tests.testing.goldens import (
    FIXTURES,
    assert_float32_close,
    assert_float64_close,
    assert_gradients_close,
    load_golden,
)

HIERARCHY = ["stage3", "stage6", "stage9", "stage12"]


def convert(golden, folder, *words, original=None):
    """The folder of the converted model of a case."""
    source = golden.folder / "checkpoint.pth"
    if source.is_file():
        file = folder / "original.json"
        file.write_text(json.dumps(original or golden.config["kwargs"]))
        words = ("--original-config", str(file), *words)
    else:
        source = golden.folder
    main([str(source), str(folder / "model"), *words], raises_errors=True)
    return folder / "model"


def with_probe(golden, folder, **others):
    original = {"encoder": golden.config["kwargs"], "probe": golden.config["probe"]["kwargs"], **others}
    return convert(golden, folder, "--probe", str(golden.folder / "probe.pth"), original=original)


def clips_of(golden, name="pixel_values"):
    """Clips as ours, (batch, frames, channels, height, width)."""
    clips = golden.inputs[name]
    return clips if golden.folder.name == "vjepa2_transformers" else clips.transpose(1, 2)


@pytest.mark.parametrize(
    "case",
    ["vjepa2_encoder_nonsquare_16_frames", "vjepa2_encoder_attentive_classifier", "vjepa2_transformers"]
    + ["vjepa2_1_encoder"],
)
def test_the_encoder_equals_the_original(tmp_path, case):
    golden = load_golden("videovit", case)
    model = AutoModel.from_pretrained(convert(golden, tmp_path)).eval()
    with torch.no_grad():
        outputs = model(clips_of(golden), output_hidden_states=True)
        assert_float32_close(outputs.last_hidden_state, golden.expected["last_hidden_state"])
        for number, hidden_states in golden.expected_under("hidden_states.").items():
            assert_float32_close(outputs.hidden_states[int(number)], hidden_states)
        for name, expected in golden.expected.items():
            if name in ("image.last_hidden_state", "six_frames.last_hidden_state"):
                clips = clips_of(golden, name.replace("last_hidden_state", "pixel_values"))
                assert_float32_close(model(clips).last_hidden_state, expected)
        if "float64.last_hidden_state" in golden.expected:
            double = model.double()(clips_of(golden).double()).last_hidden_state
            assert_float64_close(double, golden.expected["float64.last_hidden_state"])


def test_layers_of_version_2_1_have_norms_of_their_own(tmp_path):
    golden = load_golden("videovit", "vjepa2_1_encoder")
    backbone = VideoViTBackbone.from_pretrained(convert(golden, tmp_path), out_features=HIERARCHY).eval()
    with torch.no_grad():
        maps = backbone(clips_of(golden)).feature_maps
    tokens = torch.cat([each.flatten(2).transpose(1, 2) for each in maps], dim=-1)
    assert_float32_close(tokens, golden.expected["hierarchical"])


def test_the_classifier_equals_the_original(tmp_path):
    golden = load_golden("videovit", "vjepa2_encoder_attentive_classifier")
    model = AutoModelForVideoClassification.from_pretrained(with_probe(golden, tmp_path)).eval()
    outputs = model(clips_of(golden), labels=golden.inputs["labels"])
    assert_float32_close(outputs.logits, golden.expected["logits"])
    torch.testing.assert_close(outputs.loss, golden.expected["loss"], rtol=1e-5, atol=0)
    with torch.no_grad():
        double = model.double()(clips_of(golden).double()).logits
    assert_float64_close(double, golden.expected["float64.logits"])


def test_a_probe_of_several_layers_reads_their_tokens_in_a_row(tmp_path):
    golden = load_golden("videovit", "vjepa2_encoder_attentive_classifier")
    folder = with_probe(golden, tmp_path, out_layers=[0, 1])
    model = AutoModelForVideoClassification.from_pretrained(folder).eval()
    with torch.no_grad():
        outputs = model(clips_of(golden))
        hidden_states = model.videovit(clips_of(golden), output_hidden_states=True).hidden_states
        tokens = torch.cat([model.videovit.layernorm(each) for each in hidden_states[1:]], dim=1)
        torch.testing.assert_close(outputs.logits, model.classifier(model.pooler(tokens)))
    assert outputs.hidden_states is None


def test_clips_of_a_view_are_joined_and_views_are_averaged(tmp_path):
    golden = load_golden("videovit", "vjepa2_encoder_attentive_classifier")
    model = AutoModelForVideoClassification.from_pretrained(with_probe(golden, tmp_path), pooler_num_clips=2).eval()
    # (batch, clip, view, channels, frames, height, width)
    clips = golden.inputs["views.pixel_values"].flatten(1, 2).transpose(2, 3)
    with torch.no_grad():
        probabilities = model(clips).logits.softmax(-1)
        assert_float32_close(probabilities, golden.expected["views.probabilities"])
        with pytest.raises(ValueError, match=r"joins 2 clips .* a video has 3 views"):
            model(clips[:, :3])


def small_port(model_class, **settings):
    """A model of Transformers with random values in all tensors."""
    torch.manual_seed(0)
    sizes = {"crop_size": 32, "patch_size": 8, "frames_per_clip": 4, "hidden_size": 48, "num_attention_heads": 3}
    sizes |= {"num_hidden_layers": 2, "pred_hidden_size": 24, "pred_num_attention_heads": 2}
    model = model_class(VJEPA2Config(**sizes, pred_num_hidden_layers=1, num_pooler_layers=1, **settings)).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    return model


def test_gradients_are_those_of_transformers(tmp_path):
    port = small_port(VJEPA2Model)
    port.save_pretrained(tmp_path / "port")
    main([str(tmp_path / "port"), str(tmp_path / "model")], raises_errors=True)
    model = AutoModel.from_pretrained(tmp_path / "model").eval()
    clips = torch.randn(1, 4, 3, 32, 32)
    gradients = []
    for each in (model, port):
        pixels = clips.clone().requires_grad_()
        features = each(pixels) if each is model else each(pixels, skip_predictor=True)
        features.last_hidden_state.square().sum().backward()
        gradients.append(
            {"pixels": pixels.grad, "fc1": next(v for n, v in each.named_parameters() if "fc1" in n).grad}
        )
    assert_gradients_close(*gradients)


def test_a_classifier_of_transformers_keeps_its_names_and_drops_the_predictor(tmp_path, capsys):
    port = small_port(VJEPA2ForVideoClassification, id2label={0: "jump", 1: "run"})
    port.save_pretrained(tmp_path / "port")
    main([str(tmp_path / "port"), str(tmp_path / "model")], raises_errors=True)
    assert "predictor" in capsys.readouterr().out
    model = AutoModelForVideoClassification.from_pretrained(tmp_path / "model").eval()
    assert model.config.id2label == {0: "jump", 1: "run"}
    clips = torch.randn(1, 4, 3, 32, 32)
    with torch.no_grad():
        # Their probe has another epsilon than the authors'.
        torch.testing.assert_close(model(clips).logits, port(clips).logits, atol=1e-3, rtol=1e-3)


def test_the_average_over_training_is_read(tmp_path):
    golden = load_golden("videovit", "vjepa2_encoder_nonsquare_16_frames")
    content = torch.load(golden.folder / "checkpoint.pth", weights_only=True)
    content["target_encoder"] = content.pop("encoder")
    content["encoder"] = {name: tensor + 1 for name, tensor in content["target_encoder"].items()}
    shutil.copytree(golden.folder, tmp_path / "case", copy_function=shutil.copyfile)
    torch.save(content, tmp_path / "case" / "checkpoint.pth")
    changed = golden._replace(folder=tmp_path / "case")
    model = AutoModel.from_pretrained(convert(changed, tmp_path)).eval()
    with torch.no_grad():
        last = model(clips_of(golden)).last_hidden_state
    assert_float32_close(last, golden.expected["last_hidden_state"])


def test_the_processor_is_the_evaluation_of_the_original(tmp_path):
    cases = load_file(FIXTURES / "videovit" / "vjepa2_preprocessing" / "clips.safetensors")
    golden = load_golden("videovit", "vjepa2_transformers")
    processor = AutoVideoProcessor.from_pretrained(convert(golden, tmp_path))
    for name in ("landscape", "portrait", "already_resized"):
        clip = cases[f"input.{name}"]
        pixels = processor(clip, do_sample_frames=False, return_tensors="pt")["pixel_values"][0]
        torch.testing.assert_close(pixels.transpose(0, 1), cases[f"single.{name}"], atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    ("change", "message"),
    [({"depth": 3}, "depth=3"), ({"mlp_ratio": 4.0}, "mlp_ratio=4.0"), ({"use_rope": False}, "use_rope=False")]
    + [({"num_head": 3}, "unknown keys")],
)
def test_what_contradicts_the_tensors_is_refused(tmp_path, refused, change, message):
    golden = load_golden("videovit", "vjepa2_encoder_attentive_classifier")
    file = tmp_path / "original.json"
    file.write_text(json.dumps(golden.config["kwargs"] | change))
    assert message in refused(main, golden.folder / "checkpoint.pth", "--original-config", file)
