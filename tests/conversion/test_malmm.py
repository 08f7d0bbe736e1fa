"""Conversion of MA-LMM through the command line, against the original's outputs, banks and gradients."""

import json

import pytest
import torch
import torch.nn.functional as F
from transformers import AutoModel, AutoVideoProcessor, InstructBlipVisionConfig, InstructBlipVisionModel, ViTConfig
from transformers import ViTModel as ImageViT

from conversion import malmm
from conversion.helpers.fields import make_config
from conversion.helpers.weight_rules import apply_rules, load_converted
from hf_video import MemoryBankQFormerConfig, MemoryBankQFormerModel
from tests.testing.goldens import FIXTURES, assert_float32_close, assert_gradients_close, load_golden

STREAMS = ("stream_text", "stream_no_text", "short_video")


def original_config(golden, **changes):
    """The sections of the golden's configuration, with changes to `model_kwargs`."""
    return golden.config | {"model_kwargs": golden.config["model_kwargs"] | changes}


def convert(checkpoint, config, folder, *options):
    (folder / "original.json").write_text(json.dumps(config))
    arguments = [str(checkpoint), str(folder / "model"), "--original-config", str(folder / "original.json"), *options]
    malmm.main(arguments)
    return AutoModel.from_pretrained(folder / "model")


def convert_golden(case, folder, *options):
    golden = load_golden("memory_bank_qformer", case)
    model = convert(golden.folder / "checkpoint.pth", original_config(golden), folder, *options)
    text = {name: golden.inputs[name] for name in golden.inputs if name.startswith("qformer")}
    return golden, model, text


@pytest.fixture(scope="module", params=STREAMS)
def stream(request, tmp_path_factory):
    return convert_golden(request.param, tmp_path_factory.mktemp(request.param))


def assert_bank_equals(bank, states, counts, decidable):
    assert_float32_close(bank.states, states)
    decidable = decidable.bool()[:, None].expand_as(counts)
    assert torch.equal(bank.counts[decidable], counts[decidable])


@pytest.mark.parametrize("with_gradients", [False, True])
@torch.no_grad()
def test_every_frame_and_bank_equals_the_original(stream, with_gradients):
    golden, model, text = stream
    expected, memory = golden.expected, None
    for t in range(len(expected["query_output"])):
        with torch.set_grad_enabled(with_gradients):
            outputs = model(vision_embeds=golden.inputs["image_embeds"][:, t : t + 1], memory=memory, **text)
        memory = outputs.memory
        assert_float32_close(outputs.last_hidden_state, expected["query_output"][t])
        if text:
            real = text["qformer_attention_mask"].bool()
            assert_float32_close(outputs.text_hidden_state[real], expected["text_output"][t][real])
        assert_bank_equals(
            memory.visual,
            expected[f"visual_bank.t{t:02}"],
            expected[f"visual_size.t{t:02}"],
            expected.get(f"visual_decidable.t{t:02}", torch.ones(1)),
        )
        for i, bank in enumerate(memory.query):
            name = f"t{t:02}.layer{i}"
            sizes, decidable = expected[f"query_size.{name}"], expected[f"query_decidable.{name}"]
            assert_bank_equals(bank, expected[f"query_bank.{name}"], sizes, decidable)
    assert_float32_close(model.language_projection(outputs.last_hidden_state), expected["inputs_llm"])


@pytest.mark.parametrize("with_gradients", [False, True])
def test_one_call_with_all_frames_equals_the_original(stream, with_gradients):
    golden, model, text = stream
    with torch.set_grad_enabled(with_gradients):
        outputs = model(vision_embeds=golden.inputs["image_embeds"], output_frame_hidden_states=True, **text)
        features = model.get_video_features(vision_embeds=golden.inputs["image_embeds"], **text)
    assert_float32_close(outputs.frame_hidden_states, golden.expected["query_output"].transpose(0, 1))
    assert torch.equal(outputs.last_hidden_state, outputs.frame_hidden_states[:, -1])
    assert_float32_close(features.pooler_output, golden.expected["inputs_llm"])


def test_text_free_checkpoint_equals_the_original(tmp_path):
    golden, model, _ = convert_golden("no_text_checkpoint", tmp_path)
    assert not model.config.use_qformer_text_input
    with torch.no_grad():
        outputs = model(vision_embeds=golden.inputs["image_embeds"], output_frame_hidden_states=True)
        features = model.get_video_features(vision_embeds=golden.inputs["image_embeds"]).pooler_output
    expected = golden.expected
    assert_float32_close(outputs.frame_hidden_states, expected["query_output"].transpose(0, 1))
    assert_float32_close(features, expected["inputs_llm"])
    every, none = torch.ones(1, 1), torch.zeros(1, 1)
    assert_bank_equals(outputs.memory.visual, expected["visual_bank"], expected["visual_size"], every)
    for i, bank in enumerate(outputs.memory.query):
        # The first layer's input is the same at every frame, which leaves its merges to rounding.
        states, sizes = expected[f"query_bank.layer{i}"], expected[f"query_size.layer{i}"]
        assert_bank_equals(bank, states, sizes, every if i else none)


def test_without_a_bank_every_frame_equals_the_original(tmp_path):
    golden, model, text = convert_golden("no_bank", tmp_path)
    with torch.no_grad():
        outputs = model(vision_embeds=golden.inputs["image_embeds"], output_frame_hidden_states=True, **text)
        features = model.get_video_features(vision_embeds=golden.inputs["image_embeds"], **text).pooler_output
    real = text["qformer_attention_mask"].bool()
    assert outputs.memory is None
    assert_float32_close(outputs.frame_hidden_states, golden.expected["query_output"])
    assert_float32_close(outputs.text_hidden_state[real], golden.expected["text_output"][:, -1][real])
    assert_float32_close(features, golden.expected["inputs_llm"])


def test_gradients_equal_the_original(tmp_path):
    golden, model, text = convert_golden("grads", tmp_path)
    frames = golden.inputs["image_embeds"].requires_grad_()
    outputs = model(vision_embeds=frames, **text)
    loss = (outputs.last_hidden_state * golden.inputs["loss_weights"]).sum()
    loss.backward()
    assert_float32_close(outputs.last_hidden_state, golden.expected["query_output_last"])
    torch.testing.assert_close(loss, golden.expected["loss"], rtol=1e-4, atol=1e-4)
    expected = apply_rules(golden.expected_under("grad."), malmm.RULES)
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    # The softmax takes the biases of keys out again, so their gradients are rounding.
    of_key_biases = [name for name in expected if name.endswith("attention.key.bias")]
    for name in of_key_biases:
        assert gradients[name].abs().max() < 5e-5
    zero = set(apply_rules({name: torch.zeros(1) for name in golden.config["zero_grad"]}, malmm.RULES))
    for name in zero:
        assert gradients[name] is None or not gradients[name].any()
    compared = expected.keys() - of_key_biases - zero
    assert_gradients_close({name: gradients[name] for name in compared}, {name: expected[name] for name in compared})
    assert not frames.grad[:, :-1].any()
    assert_gradients_close({"frames": frames.grad}, {"frames": golden.expected["grad_input.image_embeds"]})


@pytest.mark.parametrize("with_gradients", [False, True])
def test_pixels_to_tokens_of_the_language_model_equal_the_original(tmp_path, with_gradients):
    frozen = FIXTURES / "memory_bank_qformer" / "full_model" / "frozen_weights.pth"
    golden, model, _ = convert_golden("full_model", tmp_path, "--frozen-weights", str(frozen))
    pixel_values = golden.inputs["pixel_values"].transpose(1, 2)
    for prefix, name in (("", "inputs_llm"), ("gen_", "gen_inputs_llm")):
        text = {each: golden.inputs[prefix + each] for each in ("qformer_input_ids", "qformer_attention_mask")}
        with torch.set_grad_enabled(with_gradients):
            vision_embeds = model.get_vision_embeds(pixel_values)
            features = model.get_video_features(pixel_values, **text)
            frames = model(pixel_values, output_frame_hidden_states=True, **text).frame_hidden_states
        assert_float32_close(vision_embeds, golden.expected["vision_embeds"])
        assert_float32_close(features.pooler_output, golden.expected[name])
        if not prefix:
            assert_float32_close(frames, golden.expected["query_output"].transpose(0, 1))


def test_the_processor_gives_the_originals_pixels(tmp_path):
    """
    The original truncates to 8 bits and lets values wrap around; float frames keep their fractions. A value that lies
    on the border of two grey levels falls on either side, as the machine rounds.
    """
    golden = load_golden("memory_bank_qformer", "preprocess")
    stream = load_golden("memory_bank_qformer", "short_video")
    config = original_config(stream, img_size=golden.config["image_size"])
    convert(stream.folder / "checkpoint.pth", config, tmp_path)
    processor = AutoVideoProcessor.from_pretrained(tmp_path / "model")
    assert (processor.sampling_strategy, processor.num_frames) == ("linspace", 4)
    size = (golden.config["image_size"],) * 2
    grey_level = 1 / 255 / torch.tensor(golden.config["std"])[:, None, None, None]
    for name in ("noisy", "smooth"):
        video = golden.inputs[f"{name}_video"].transpose(0, 1)
        pixel_values = processor([video], do_sample_frames=False, return_tensors="pt")["pixel_values"][0]
        levels = (pixel_values.transpose(0, 1) - golden.expected[f"{name}_pixel_values"]).abs() / grey_level
        in_range = golden.expected[f"{name}_wrapped"] == 0
        exact = F.interpolate(video.double(), size=size, mode="bicubic", align_corners=False).transpose(0, 1)
        on_border = (exact - exact.round()).abs() < 1e-3
        assert on_border[in_range].float().mean() < 0.03
        assert levels[in_range & ~on_border].max() < 1e-3
        assert levels[in_range].max() < 1 + 1e-3


def test_a_tower_of_transformers_is_taken_along(tmp_path):
    golden = load_golden("memory_bank_qformer", "full_model")
    sizes = {"hidden_size": 40, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 48}
    eva = InstructBlipVisionModel(InstructBlipVisionConfig(**sizes, image_size=21, patch_size=7))
    for i, tower in enumerate((eva, ImageViT(ViTConfig(**sizes, image_size=21, patch_size=7)))):
        folder = tmp_path / str(i)
        tower.eval().save_pretrained(folder / "tower")
        options = ("--vision", str(folder / "tower"))
        model = convert(golden.folder / "checkpoint.pth", original_config(golden), folder, *options)
        pixel_values = golden.inputs["pixel_values"][:, :, 0]
        with torch.no_grad():
            states = tower(pixel_values).last_hidden_state
            if tower is eva:
                states = eva.encoder(eva.embeddings(pixel_values)).last_hidden_state
            expected = model.vision_layernorm(states)
            assert_float32_close(model.get_vision_embeds(pixel_values[:, None])[:, 0], expected)


def test_every_tensor_of_the_full_size_model_has_its_place():
    keys = json.loads((FIXTURES / "memory_bank_qformer" / "full_size_keys.json").read_text())
    trained, frozen = (
        {name: torch.empty(shape, device="meta") for name, (shape, _) in entries.items()}
        for entries in (keys["trainer_checkpoint"]["model"], keys["frozen_not_saved"]["visual_encoder"])
    )
    tower = {name.removeprefix("visual_encoder."): tensor for name, tensor in frozen.items()}
    original = dict.fromkeys(malmm.SECTIONS, {}) | {"bert_config": {"vocab_size": 30522}}
    part, tower = malmm.eva_tower({}, tower)
    fields = malmm.memory_bank_qformer_fields(original, trained, part)
    config = make_config(MemoryBankQFormerConfig, fields, ["memory_bank_length=20"])
    with torch.device("meta"):
        model = MemoryBankQFormerModel(config)
    load_converted(model, apply_rules(trained, malmm.RULES) | tower)
    vision = sum(parameter.numel() for parameter in model.vision_model.parameters())
    total = sum(parameter.numel() for parameter in model.parameters())
    assert total - vision == keys["trainer_checkpoint"]["num_trained_parameters"]
    # The fused bias of EVA-ViT has a place for keys, which the original leaves out.
    of_keys = config.vision_config.num_hidden_layers * config.vision_config.hidden_size
    assert vision - of_keys == keys["frozen_not_saved"]["visual_encoder_num_parameters"]
    assert config.vision_config.num_attention_heads == keys["frozen_not_saved"]["visual_encoder_heads"]
    assert config.projection_dim == 4096


def _without(name):
    return lambda weights: {key: value for key, value in weights.items() if key != name}


@pytest.mark.parametrize(
    ("change", "config", "options", "message"),
    [
        (_without("llm_proj.bias"), {}, [], "missing: language_projection.bias"),
        (None, {"model_kwargs": {}}, [], "do not tell memory_bank_length: pass `--set memory_bank_length=VALUE`"),
        (None, {"bert_config": {"hidden_size": 48, "num_attention_heads": 4}}, [], "hidden_size=48, the tensors say"),
        (None, {}, ["--frozen-weights", "CHECKPOINT"], "not the weights of EVA-ViT"),
    ],
)
def test_what_does_not_fit_is_refused_and_nothing_written(tmp_path, refused, change, config, options, message):
    golden = load_golden("memory_bank_qformer", "full_model")
    weights = torch.load(golden.folder / "checkpoint.pth", weights_only=True)["model"]
    checkpoint = tmp_path / "checkpoint.pth"
    torch.save({"model": change(weights) if change else weights}, checkpoint)
    options = [str(checkpoint) if option == "CHECKPOINT" else option for option in options]
    (tmp_path / "original.json").write_text(json.dumps(golden.config | config))
    assert message in refused(malmm.main, checkpoint, "--original-config", tmp_path / "original.json", *options)
