"""Conversion of VideoMamba's multimodal models: features, scores, losses and gradients of the original."""

import json
import sys
import types

import pytest
import torch
from transformers import AutoModel, AutoModelForPreTraining, AutoProcessor, BertTokenizerFast, PreTrainedTokenizerFast

from conversion.helpers.fields import make_config
from conversion.helpers.weight_rules import apply_rules, load_converted
from conversion.videomamba import main as convert_encoder
from conversion.videomamba_text import dual_encoder_fields, main, rules_for
from hf_video import VideoTextDualEncoderConfig, VideoTextDualEncoderModel
from hf_video.models.video_text.losses_video_text import draw_negatives, negative_weights
from tests.testing.goldens import FIXTURES, load_golden

LOSS_CASES = ["stage2_unmasked_losses", "stage1_masked_video", "stage1_masked_image"]
TOLERANCES = {torch.float32: {"atol": 1e-4, "rtol": 1e-4}, torch.float64: {"atol": 1e-6, "rtol": 1e-6}}


def convert(golden, folder, *words, checkpoint=None):
    """The folder of a golden's converted model."""
    file, output = folder / "original.json", folder / "model"
    file.write_text(json.dumps({name: golden.config[name] for name in ("config", "bert_config")}))
    checkpoint = checkpoint or golden.folder / "checkpoint.pth"
    main([str(checkpoint), str(output), "--original-config", str(file), *words], raises_errors=True)
    return output


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    cases = ["zero_shot_retrieval", *LOSS_CASES]
    return {case: convert(load_golden("video_text", case), tmp_path_factory.mktemp(case)) for case in cases}


def load(folders, case, dtype=torch.float32):
    """A golden in a precision, and the model that it is of."""
    golden, model = load_golden("video_text", case), AutoModel.from_pretrained(folders[case])
    expected = golden.expected_under("")
    if dtype == torch.float64:
        expected = {
            name.removesuffix(".float64"): each for name, each in expected.items() if name.endswith(".float64")
        }
    inputs = {name: each.to(dtype) if each.is_floating_point() else each for name, each in golden.inputs.items()}
    return golden._replace(expected=expected, inputs=inputs), model.to(dtype)


def training_inputs(golden):
    """The arguments of `forward`."""
    names = {"idx": "video_ids", "vision_neg_indices": "video_negatives", "text_neg_indices": "text_negatives"}
    inputs = {names.get(name, name): each for name, each in golden.inputs.items() if name != "mask"}
    if "mask" in golden.inputs:
        mask = golden.inputs["mask"].bool()
        features = golden.expected.get("teacher_features")
        if features is None:  # in float64 there are those of the visible tokens alone
            visible = golden.expected["clip_target"]
            features = visible.new_zeros(len(visible), *mask.shape, visible.shape[-1])
            features[:, ~mask] = visible.flatten(1, 2)
        inputs |= {"bool_masked_pos": mask[:, 1:], "teacher_features": features}
    return inputs


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("case", ["zero_shot_retrieval", *LOSS_CASES])
def test_features_equal_the_original(folders, case, dtype):
    golden, model = load(folders, case, dtype)
    masks = {"bool_masked_pos": golden.inputs["mask"][:, 1:].bool()} if "mask" in golden.inputs else {}
    with torch.no_grad():
        videos = model.get_video_features(golden.inputs["pixel_values"], **masks)
        texts = model.get_text_features(golden.inputs["input_ids"], golden.inputs["attention_mask"])
    for actual, name in (
        (videos.last_hidden_state, "vision_embeds"),
        (videos.pooler_output, "vision_proj"),
        (texts.last_hidden_state, "text_embeds"),
        (texts.pooler_output, "text_proj"),
    ):
        torch.testing.assert_close(
            actual, golden.expected[name], **TOLERANCES[dtype], msg=lambda m, n=name: f"{n}: {m}"
        )


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_scores_of_search_and_of_the_fusion_encoder_equal_the_original(folders, dtype):
    golden, model = load(folders, "zero_shot_retrieval", dtype)
    texts = {name: golden.inputs[name] for name in ("input_ids", "attention_mask")}
    fused = golden.expected["fusion_scores_v2t"]
    with torch.no_grad():
        outputs = model(golden.inputs["pixel_values"], **texts)
        videos = model.get_video_features(golden.inputs["pixel_values"]).last_hidden_state
        states = model.get_text_features(**texts).last_hidden_state
        pairs = (fused > -100).nonzero(as_tuple=True)
        scores = model.match(videos[pairs[0]], states[pairs[1]], texts["attention_mask"][pairs[1]])
        first = {name: each[:14] for name, each in texts.items()}
        match_logits = model(golden.inputs["pixel_values"], **first, output_match=True).match_logits
    torch.testing.assert_close(outputs.similarity, golden.expected["scores_v2t"], atol=5e-5, rtol=0)
    torch.testing.assert_close(outputs.logits_per_text, outputs.similarity.T / model.temperature, atol=0, rtol=1e-6)
    torch.testing.assert_close(scores[:, 1], fused[pairs], atol=2e-4, rtol=0)
    for number, score in enumerate(match_logits[:, 1]):
        if fused[number, number] > -100:
            torch.testing.assert_close(score, fused[number, number], atol=2e-4, rtol=0)


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("case", LOSS_CASES)
def test_losses_and_gradients_equal_the_original(folders, case, dtype):
    golden, model = load(folders, case, dtype)
    outputs = model(**training_inputs(golden), return_loss=True)
    rtol = 2e-5 if dtype == torch.float32 else 1e-6
    for name in ("loss_vtc", "loss_vtm", "loss_mlm", "loss_uta"):
        torch.testing.assert_close(outputs.loss_dict[name], golden.expected[name][0], rtol=rtol, atol=1e-7, msg=name)
    torch.testing.assert_close(outputs.loss, golden.expected["loss_total"][0], rtol=rtol, atol=0)
    torch.testing.assert_close(outputs.logits_per_video, golden.expected["sim_v2t"], **TOLERANCES[dtype])
    torch.testing.assert_close(model.temperature[None], golden.expected["temp_after_clamp"], atol=0, rtol=1e-6)
    outputs.loss.backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    rules = rules_for(model.config)
    expected = apply_rules(load_golden("video_text", case).expected_under("grad."), rules)
    bound = 5e-4 if dtype == torch.float32 else 1e-6
    for name, gradient in expected.items():
        error = (gradients[name] - gradient).abs().max() / gradient.abs().max()
        assert error < bound, f"{name}: off by {error:.1e} of its largest entry"
    without = dict.fromkeys(golden.config["parameters_without_gradient"], torch.zeros(1))
    assert all(gradients[name] is None for name in apply_rules(without, rules))


@pytest.mark.parametrize("case", LOSS_CASES)
def test_negatives_are_drawn_by_the_weights_of_the_original(folders, case):
    golden, _ = load(folders, case)
    logits, ids = golden.expected["sim_v2t"], golden.inputs["idx"]
    for rows, name in ((logits, "weights_for_text_negatives"), (logits.T, "weights_for_vision_negatives")):
        expected = golden.expected[name]  # only their ratios count
        expected = expected / expected.sum(dim=1, keepdim=True)
        torch.testing.assert_close(negative_weights(rows, ids), expected, atol=1e-5, rtol=1e-4)


def test_negatives_are_drawn_where_every_pair_is_told_apart():
    logits = torch.full((4, 4), -100.0).fill_diagonal_(100.0)
    for drawn in draw_negatives(logits, torch.arange(4)):
        assert (drawn != torch.arange(4)).all()


@pytest.mark.parametrize("kind", ["pretrain_with_teacher", "retrieval_model_is_pretrain_False"])
def test_every_tensor_of_the_full_size_has_its_place(kind):
    entry = json.loads((FIXTURES / "video_text" / "full_size_keys.json").read_text())
    weights = {name: torch.empty(shape, device="meta") for name, shape in entry[kind].items()}
    config = make_config(
        VideoTextDualEncoderConfig, dual_encoder_fields({"config": {}, "bert_config": {}}, weights), []
    )
    assert (config.fusion_layer, config.text_config.num_hidden_layers) == (9, 12)
    assert (config.vision_config.num_hidden_layers, config.projection_dim) == (32, 512)
    with torch.device("meta"):
        model = VideoTextDualEncoderModel(config)
    load_converted(model, apply_rules(weights, rules_for(config)))
    if config.use_alignment_heads:
        assert sum(each.numel() for each in model.vision_model.parameters()) == 73942656 - 2 * 576


class EasyDict(dict):
    """Stands for the original's class of settings."""


# Where the class is found by name, as in the original's folder.
EasyDict.__module__ = "utils.easydict"


def original_weights(case="zero_shot_retrieval"):
    content = torch.load(FIXTURES / "video_text" / case / "checkpoint.pth", weights_only=True)
    return content.get("model", content)


@pytest.mark.parametrize("form", ["bfloat16", "retrieval", "with settings"])
def test_every_form_of_a_file_gives_the_same_model(folders, tmp_path, monkeypatch, form):
    module = types.ModuleType("utils.easydict")
    module.EasyDict = EasyDict
    monkeypatch.setitem(sys.modules, "utils", types.ModuleType("utils"))
    monkeypatch.setitem(sys.modules, "utils.easydict", module)
    golden, model = load(folders, "zero_shot_retrieval")
    weights = original_weights()
    if form == "bfloat16":
        weights = {name: each.bfloat16() if each.is_floating_point() else each for name, each in weights.items()}
    if form == "retrieval":
        weights = {
            name.replace("bert.", ""): each
            for name, each in weights.items()
            if not name.startswith(("clip_teacher.", "text_encoder.cls."))
        }
    content = {"model": weights, "config": EasyDict(lr=1e-4), "epoch": 3} if form == "with settings" else weights
    torch.save(content, tmp_path / "file.pth")
    folder = convert(golden, tmp_path, checkpoint=tmp_path / "file.pth")
    again, loading = AutoModel.from_pretrained(folder, output_loading_info=True)
    assert not any(loading.values()), loading
    assert again.config.use_mlm_head is (form != "retrieval")
    inputs = {name: golden.inputs[name] for name in ("pixel_values", "input_ids", "attention_mask")}
    with torch.no_grad():
        if form == "bfloat16":
            for weight in model.parameters():
                weight.copy_(weight.bfloat16())
        expected, actual = model(**inputs).similarity, again(**inputs).similarity
    torch.testing.assert_close(actual, expected, atol=1e-6, rtol=0)


def test_a_text_needs_the_tokenizer_and_comes_with_it(tmp_path, folders, capsys):
    golden = load_golden("video_text", "zero_shot_retrieval")
    vocabulary = golden.config["vocab"]
    (tmp_path / "vocab.txt").write_text("\n".join(vocabulary))
    BertTokenizerFast(str(tmp_path / "vocab.txt")).save_pretrained(tmp_path / "tokenizer")
    folder = convert(golden, tmp_path, "--tokenizer", str(tmp_path / "tokenizer"))
    processor = AutoProcessor.from_pretrained(folder)
    assert isinstance(processor.tokenizer, PreTrainedTokenizerFast)
    inputs = processor(text=golden.config["texts"], return_tensors="pt", padding="max_length", max_length=12)
    assert torch.equal(inputs["input_ids"], golden.inputs["input_ids"])
    config = AutoModel.from_pretrained(folder).config
    assert (config.cls_token_id, config.mask_token_id) == (2, 4)
    bare = AutoProcessor.from_pretrained(folders["zero_shot_retrieval"])
    frames = golden.inputs["frames.video0"]
    pixel_values = bare(videos=frames, return_tensors="pt")["pixel_values"]
    torch.testing.assert_close(pixel_values[0], golden.inputs["pixel_values"][0], atol=1e-4, rtol=0)
    with pytest.raises(ValueError, match="--tokenizer"):
        bare(text="a glass breaks")


def test_the_encoder_alone_keeps_the_norm_of_its_pooled_vectors(tmp_path):
    golden = load_golden("video_text", "zero_shot_retrieval")
    convert_encoder([str(golden.folder / "checkpoint.pth"), str(tmp_path / "model")], raises_errors=True)
    pixel_values = golden.inputs["pixel_values"]
    with torch.no_grad():
        pooled = AutoModel.from_pretrained(tmp_path / "model")(pixel_values).pooler_output
        model = AutoModelForPreTraining.from_pretrained(tmp_path / "model")
        masked = model.videomamba(pixel_values, torch.tensor([True, False] * 8).repeat(14, 1)).pooler_output
    torch.testing.assert_close(pooled, golden.expected["pooled_vision_embeds"], **TOLERANCES[torch.float32])
    assert masked.shape == (14, 1, 32)
