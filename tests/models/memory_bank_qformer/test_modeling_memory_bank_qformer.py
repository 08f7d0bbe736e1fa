"""MemoryBankQFormer beyond the goldens and common tests: streaming, batches, options and errors."""

import pytest
import torch
from accelerate.hooks import AlignDevicesHook, add_hook_to_module
from huggingface_hub.errors import StrictDataclassError
from transformers import (
    AutoModel,
    AutoModelForImageTextToText,
    AutoModelForVideoClassification,
    CLIPVisionConfig,
    InstructBlipVisionConfig,
)

from hf_video import (
    MemoryBank,
    MemoryBankQFormerForConditionalGeneration,
    MemoryBankQFormerForVideoClassification,
    MemoryBankQFormerModel,
    VideoViTConfig,
)

from .memory_bank_qformer_testing import QFORMER, random_frames, random_text, tiny_config, tiny_model

POLICIES = ["merge", "fifo", "uniform"]


def assert_close(actual, expected, atol=1e-5):
    torch.testing.assert_close(actual, expected, atol=atol, rtol=0)


@pytest.mark.parametrize(
    ("policy", "chunks", "with_gradients"),
    [("merge", [1] * 9, False), ("merge", [2, 1, 6], True), ("fifo", [4, 5], False), ("uniform", [4, 5], True)],
)
def test_one_call_equals_many(policy, chunks, with_gradients):
    model, frames, text = tiny_model(memory_policy=policy), random_frames(), random_text()
    with torch.set_grad_enabled(with_gradients):
        at_once = model(vision_embeds=frames, output_frame_hidden_states=True, **text)
        memory, parts = None, []
        for chunk in frames.split(chunks, dim=1):
            outputs = model(vision_embeds=chunk, memory=memory, output_frame_hidden_states=True, **text)
            memory = outputs.memory
            parts.append(outputs.frame_hidden_states)
    assert_close(torch.cat(parts, 1), at_once.frame_hidden_states)
    assert_close(outputs.last_hidden_state, at_once.last_hidden_state)
    assert_close(outputs.text_hidden_state, at_once.text_hidden_state)
    assert_close(memory.visual.states, at_once.memory.visual.states)


@pytest.mark.parametrize(
    ("policy", "settings"),
    [("merge", {}), ("fifo", {"query_memory": False}), ("uniform", {"visual_memory": False})],
)
def test_kept_keys_and_values_change_nothing(policy, settings):
    model, frames, text = tiny_model(memory_policy=policy, **settings), random_frames(num_frames=12), random_text()
    computed = model(vision_embeds=frames, output_frame_hidden_states=True, **text)
    with torch.no_grad():
        kept = model(vision_embeds=frames, output_frame_hidden_states=True, **text)
    assert not any(bank.projections for bank in computed.memory.banks())
    assert all(bank.projections for bank in kept.memory.banks())
    assert_close(kept.frame_hidden_states, computed.frame_hidden_states, atol=5e-5)


def test_calls_with_and_without_gradients_mix():
    model, frames, text = tiny_model(), random_frames(num_frames=12), random_text()
    memory = None
    for t, frame in enumerate(frames.split(1, dim=1)):
        with torch.set_grad_enabled(t % 3 == 1):
            outputs = model(vision_embeds=frame, memory=memory, **text)
        memory = outputs.memory
    with torch.no_grad():
        expected = model(vision_embeds=frames, **text).last_hidden_state
    assert_close(outputs.last_hidden_state, expected)


@pytest.mark.parametrize("policy", POLICIES)
@torch.no_grad()
def test_a_ragged_batch_equals_one_by_one(policy):
    """Also if a bank is full in one video only, and if videos end between two calls."""
    lengths = [2, 9, 5, 0]
    model, frames, text = tiny_model(memory_policy=policy), random_frames(4, 9), random_text(4)
    mask = torch.arange(9) < torch.tensor(lengths)[:, None]
    at_once = model(vision_embeds=frames, frame_attention_mask=mask, output_frame_hidden_states=True, **text)
    memory = None
    for start, stop in ((0, 4), (4, 9)):
        chunk = {"vision_embeds": frames[:, start:stop], "frame_attention_mask": mask[:, start:stop]}
        memory = model(memory=memory, **chunk, **text).memory
    assert at_once.memory.frames_seen.tolist() == memory.frames_seen.tolist() == lengths
    for row, length in enumerate(lengths):
        if not length:
            assert not at_once.last_hidden_state[row].any()
            continue
        alone_text = {name: ids[row : row + 1] for name, ids in text.items()}
        alone = model(vision_embeds=frames[row : row + 1, :length], output_frame_hidden_states=True, **alone_text)
        assert_close(at_once.last_hidden_state[row], alone.last_hidden_state[0])
        assert_close(at_once.frame_hidden_states[row, :length], alone.frame_hidden_states[0])
        assert not at_once.frame_hidden_states[row, length:].any()
        entries = min(length, 3)
        for ragged in (at_once.memory, memory):
            for bank, other in zip(ragged.banks(), alone.memory.banks(), strict=True):
                assert bank.num_entries[row] == entries
                assert_close(bank.states[row, :entries], other.states[0])
                assert not bank.states[row, entries:].any() and not bank.counts[row, entries:].any()


@torch.no_grad()
def test_videos_that_pause_go_on_where_they_stopped():
    model, frames = tiny_model(), random_frames(3, 6)
    mask = torch.tensor([[1, 0, 1, 0, 1, 1], [1, 1, 1, 1, 1, 1], [0, 0, 0, 1, 1, 0]]).bool()
    outputs = model(vision_embeds=frames, frame_attention_mask=mask)
    for row in range(3):
        alone = model(vision_embeds=frames[row : row + 1, mask[row]])
        assert_close(outputs.last_hidden_state[row], alone.last_hidden_state[0])


def test_gradients_of_a_ragged_batch_equal_one_by_one():
    model, frames, text = tiny_model(), random_frames(2, 7), random_text()
    mask = torch.arange(7) < torch.tensor([[4], [7]])
    parameters = {name: parameter for name, parameter in model.named_parameters()}

    def gradients(*losses):
        model.zero_grad()
        sum(losses).backward()
        return {name: parameter.grad.clone() for name, parameter in parameters.items() if parameter.grad is not None}

    weights = torch.randn(2, 4, 32, generator=torch.Generator().manual_seed(3))
    ragged = model(vision_embeds=frames, frame_attention_mask=mask, **text).last_hidden_state
    together = gradients((ragged * weights).sum())
    alone = []
    for row, length in enumerate((4, 7)):
        rows = slice(row, row + 1)
        outputs = model(vision_embeds=frames[rows, :length], **{name: ids[rows] for name, ids in text.items()})
        alone.append((outputs.last_hidden_state * weights[rows]).sum())
    expected = gradients(*alone)
    assert together.keys() == expected.keys()
    for name, gradient in expected.items():
        assert_close(together[name], gradient, atol=1e-4)


def streamed(model, frames, text=None):
    memory = None
    for frame in frames.split(1, dim=1):
        outputs = model(vision_embeds=frame, memory=memory, **(text or {}))
        memory = outputs.memory
    return outputs.last_hidden_state


def test_the_model_keeps_nothing_of_a_video():
    model = tiny_model()

    def held():
        return {name: sorted(vars(module)) for name, module in model.named_modules()}

    before = held()
    with torch.no_grad():
        first = model(vision_embeds=random_frames(seed=1)).last_hidden_state
        model(vision_embeds=random_frames(3, 2, seed=2))
        again = model(vision_embeds=random_frames(seed=1)).last_hidden_state
    assert torch.equal(first, again)
    assert held() == before


@torch.no_grad()
def test_accelerate_leaves_the_memory_where_it_is(monkeypatch):
    """The hook of a part on another device would take the caller's memory there, where the next frames are not."""
    model = tiny_model()
    hook = AlignDevicesHook(execution_device="cpu", skip_keys=model._skip_keys_device_placement)
    add_hook_to_module(model.qformer, hook)
    monkeypatch.setattr(MemoryBank, "to", lambda memory, device: pytest.fail("the memory was moved"))
    assert model(vision_embeds=random_frames()).memory.frames_seen.tolist() == [9, 9]


def test_activations_do_not_grow_with_the_video():
    """Autograd keeps the last frame and the full bank for the backward pass, and no other frames."""
    model, sizes = tiny_model(), []
    for num_frames in (8, 40):
        kept = []
        with torch.autograd.graph.saved_tensors_hooks(lambda tensor, kept=kept: kept.append(tensor.numel()), id):
            model(vision_embeds=random_frames(1, num_frames))
        sizes.append(sum(kept))
    assert sizes[0] == sizes[1] > 0


@pytest.mark.parametrize("model_class", [MemoryBankQFormerModel, MemoryBankQFormerForVideoClassification])
def test_gradient_checkpointing_recomputes_the_layers_that_a_tower_chooses(model_class):
    vision = VideoViTConfig(**{**TOWERS["videovit"].to_dict(), "num_hidden_layers": 3})
    vision.gradient_checkpointing_layers = 2
    model = tiny_model(model_class, vision_config=vision)
    tower = model.base_model.vision_model
    for enable, expected in ((True, [True, True, False]), (False, [False] * 3)):
        model.activation_checkpointing_enable() if enable else model.activation_checkpointing_disable()
        assert [layer.gradient_checkpointing for layer in tower.layers] == expected
        assert all(layer.gradient_checkpointing == enable for layer in model.base_model.qformer.layers)


def test_weights_learn_under_autocast():
    """Autocast keeps casts of weights. Casts made without gradients must not be used for the last frame."""
    model = tiny_model().train()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(vision_embeds=random_frames(), **random_text()).last_hidden_state.float().square().mean()
    loss.backward()
    for name, parameter in model.named_parameters():
        if name.endswith("attention.value.weight"):
            assert parameter.grad is not None and parameter.grad.any(), name


@pytest.mark.parametrize("with_gradients", [False, True])
def test_half_precision_stays_near_full_precision(with_gradients):
    model, frames, text = tiny_model(), random_frames(num_frames=30), random_text()
    with torch.set_grad_enabled(with_gradients):
        expected = model(vision_embeds=frames, **text).last_hidden_state
        actual = model.bfloat16()(vision_embeds=frames.bfloat16(), **text)
    assert actual.last_hidden_state.dtype == torch.bfloat16
    assert actual.memory.visual.states.dtype == torch.float32
    assert torch.cosine_similarity(actual.last_hidden_state.float().flatten(), expected.flatten(), dim=0) > 0.98


@torch.no_grad()
def test_frame_positions_clamp_or_scale():
    clamped = tiny_model(max_num_frames=4)
    assert clamped.frame_positions(torch.tensor([0, 3, 4, 99])).tolist() == [0, 3, 3, 3]
    scaled = tiny_model(max_num_frames=4, frame_position_overflow="scale", expected_num_frames=100)
    assert scaled.frame_positions(torch.tensor([0, 24, 25, 99, 150])).tolist() == [0, 0, 1, 3, 3]
    assert torch.isfinite(clamped(vision_embeds=random_frames(1, 9)).last_hidden_state).all()


@pytest.mark.parametrize("settings", [{"memory_bank_length": 0}, {"query_memory": False, "visual_memory": False}])
@torch.no_grad()
def test_without_memory_every_frame_is_alone(settings):
    # In double precision, because the order of sums differs with shapes and threads.
    model, frames, text = tiny_model(**settings).double(), random_frames().double(), random_text()
    outputs = model(vision_embeds=frames, output_frame_hidden_states=True, **text)
    assert outputs.memory is None
    for t in range(frames.shape[1]):
        alone = model(vision_embeds=frames[:, t : t + 1], **text)
        assert_close(outputs.frame_hidden_states[:, t], alone.last_hidden_state)
    assert_close(model(vision_embeds=frames, **text).last_hidden_state, alone.last_hidden_state)
    assert_close(outputs.text_hidden_state, alone.text_hidden_state)
    mask = torch.tensor([[True] * 4 + [False] * 5, [False] * 9])
    ragged = model(vision_embeds=frames, frame_attention_mask=mask, **text).last_hidden_state
    assert_close(ragged[0], outputs.frame_hidden_states[0, 3])
    assert not ragged[1].any()


@torch.no_grad()
def test_use_memory_false_reads_frames_alone():
    model, frames = tiny_model(), random_frames()
    outputs = model(vision_embeds=frames, use_memory=False, output_frame_hidden_states=True)
    assert outputs.memory is None
    assert_close(outputs.frame_hidden_states[:, 2], model(vision_embeds=frames[:, [2]], use_memory=False)[0])


TOWERS = {
    "instructblip": InstructBlipVisionConfig(
        hidden_size=40,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=4,
        image_size=16,
        patch_size=8,
        initializer_range=0.5,
    ),
    "clip": CLIPVisionConfig(
        hidden_size=40,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=4,
        image_size=16,
        patch_size=8,
    ),
    "videovit": VideoViTConfig(
        hidden_size=40,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=4,
        image_size=16,
        patch_size=8,
        tubelet_size=1,
        num_frames=1,
    ),
}


@pytest.mark.parametrize("tower", TOWERS)
def test_any_tower_reads_saves_and_loads(tmp_path, tower):
    model = tiny_model(MemoryBankQFormerForVideoClassification, vision_config=TOWERS[tower], num_labels=3)
    pixel_values = torch.randn(2, 40, 3, 16, 16)
    with torch.no_grad():
        logits = model(pixel_values).logits
        embeds = model.memory_bank_qformer.get_vision_embeds(pixel_values)
        assert_close(model(vision_embeds=embeds).logits, logits)
    model.save_pretrained(tmp_path)
    loaded = AutoModelForVideoClassification.from_pretrained(tmp_path)
    assert type(loaded) is MemoryBankQFormerForVideoClassification
    assert type(loaded.config.vision_config) is type(TOWERS[tower])
    with torch.no_grad():
        assert_close(loaded(pixel_values).logits, logits)
    model.train()
    model(pixel_values, labels=torch.tensor([0, 2])).loss.backward()
    assert any(p.grad is not None and p.grad.any() for p in model.memory_bank_qformer.vision_model.parameters())


def test_the_tower_is_trained_through_the_last_frame_alone():
    model = tiny_model(vision_config=TOWERS["videovit"])
    pixel_values = torch.randn(2, 5, 3, 16, 16, requires_grad=True)
    model(pixel_values).last_hidden_state.square().mean().backward()
    assert pixel_values.grad[:, -1].any() and not pixel_values.grad[:, :-1].any()


def test_a_language_model_sets_the_projection():
    text_config = {"model_type": "llama", "hidden_size": 48, "num_attention_heads": 4}
    model = tiny_model(text_config=text_config)
    features = model.get_video_features(vision_embeds=random_frames())
    assert features.pooler_output.shape == (2, 4, 48)
    assert_close(features.pooler_output, model.language_projection(features.last_hidden_state))


def test_what_was_recorded_is_of_the_last_frame():
    model = tiny_model(memory_bank_length=3)
    model.set_attn_implementation("eager")
    outputs = model(vision_embeds=random_frames(), output_hidden_states=True, output_attentions=True, **random_text())
    assert [tuple(states.shape) for states in outputs.hidden_states] == [(2, 10, 32)] * 4
    assert [tuple(weights.shape) for weights in outputs.attentions] == [(2, 4, 10, 40)] * 3
    assert [tuple(weights.shape) for weights in outputs.cross_attentions] == [(2, 4, 4, 20)] * 2
    assert_close(outputs.hidden_states[-1][:, :4], outputs.last_hidden_state)
    hidden = ~random_text()["qformer_attention_mask"].bool()
    for entry in outputs.attentions[1].unflatten(-1, (4, 10)).unbind(-2):
        assert not entry[..., 4:].transpose(1, 3)[hidden].any()
    ragged = torch.tensor([[True] * 9, [True] * 8 + [False]])
    partial = model(vision_embeds=random_frames(), frame_attention_mask=ragged, output_hidden_states=True)
    assert partial.hidden_states is None


def test_without_labels_the_feature_is_the_output():
    model = tiny_model(MemoryBankQFormerForVideoClassification, num_labels=0)
    outputs = model(vision_embeds=random_frames())
    expected = model.memory_bank_qformer(vision_embeds=random_frames()).last_hidden_state.mean(1)
    assert_close(outputs.logits, expected)


def other_memory(**settings):
    model = tiny_model(**settings)
    with torch.no_grad():
        return model(vision_embeds=random_frames(settings.pop("batch_size", 2))).memory


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({}, "either `pixel_values` or `vision_embeds`"),
        ({"pixel_values": torch.zeros(2, 3, 3, 8, 8)}, "no vision tower"),
        (
            {"vision_embeds": random_frames()[0]},
            r"must be \(batch_size, num_frames, num_tokens, 40\), got \(9, 5, 40\)",
        ),
        ({"vision_embeds": random_frames(), "frame_attention_mask": torch.ones(2, 8)}, r"here \(2, 9\), got \(2, 8\)"),
        ({"vision_embeds": random_frames(), "qformer_input_ids": torch.ones(3, 4).long()}, r"here 2 texts"),
        ({"vision_embeds": random_frames(), "qformer_input_ids": torch.ones(2, 25).long()}, "at most 24 tokens"),
        ({"vision_embeds": random_frames(3), "memory": other_memory()}, "of 2 videos, but the batch has 3"),
        ({"vision_embeds": random_frames(), "memory": other_memory(), **random_text()}, "pass the same text"),
        ({"vision_embeds": random_frames(), "memory": other_memory(query_memory=False)}, "another model filled it"),
    ],
)
def test_wrong_inputs_are_named(inputs, message):
    with pytest.raises(ValueError, match=message):
        tiny_model()(**inputs)


def test_wrong_pixels_and_missing_parts_are_named():
    with pytest.raises(ValueError, match=r"must be \(batch_size, num_frames, num_channels, height, width\)"):
        tiny_model(vision_config=TOWERS["clip"]).get_vision_embeds(torch.zeros(2, 3, 16, 16))
    for dtype in (torch.uint8, torch.bool, torch.complex64):
        with pytest.raises(ValueError, match=f"must be floating-point numbers, got {dtype}"):
            tiny_model(vision_config=TOWERS["clip"])(pixel_values=torch.zeros(1, 2, 3, 16, 16, dtype=dtype))
    with pytest.raises(ValueError, match="set `text_config`"):
        tiny_model().get_video_features(vision_embeds=random_frames())
    with pytest.raises(ValueError, match="reads no text"):
        tiny_model(use_qformer_text_input=False)(vision_embeds=random_frames(), **random_text())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"memory_bank_length": -1}, "`memory_bank_length` must be at least 0"),
        ({"memory_policy": "lru"}, "memory_policy"),
        ({"frame_position_overflow": "scale"}, "set `expected_num_frames`"),
        ({"vision_config": VideoViTConfig(tubelet_size=2)}, "its `tubelet_size` is 2"),
        ({"qformer_config": {**QFORMER, "num_attention_heads": 5}}, "must be a multiple of"),
        (
            {"qformer_config": {**QFORMER, "position_embedding_type": "relative_key"}},
            "must be 'absolute'",
        ),
    ],
)
def test_impossible_configurations_are_refused(settings, message):
    with pytest.raises(StrictDataclassError, match=message):
        tiny_config(**settings)


def settings_of_text():
    sizes = {"hidden_size": 24, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4}
    return {"model_type": "llama", "vocab_size": 70, **sizes}


@pytest.mark.parametrize("saved", [MemoryBankQFormerForVideoClassification, MemoryBankQFormerForConditionalGeneration])
def test_a_folder_tells_of_what_its_base_consists(saved, tmp_path):
    """The base of a classifier has no projection, and that of a generating model has one, for any class that loads."""
    config = tiny_config(text_config=settings_of_text(), num_labels=3)
    model = saved(config).eval()
    model.save_pretrained(tmp_path)
    # Another model may be made of the same configuration.
    assert config.use_language_projection
    loaded, report = AutoModel.from_pretrained(tmp_path, output_loading_info=True)
    expected = model.memory_bank_qformer.state_dict()
    assert not report["missing_keys"]
    assert loaded.state_dict().keys() == expected.keys()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in loaded.state_dict().items())
    other, report = AutoModelForVideoClassification.from_pretrained(tmp_path, output_loading_info=True)
    assert other.memory_bank_qformer.language_projection is None
    assert not {name for name in report["missing_keys"] if not name.startswith("classifier.")}
    generating, report = AutoModelForImageTextToText.from_pretrained(tmp_path, output_loading_info=True)
    assert generating.memory_bank_qformer.language_projection is not None
    assert generating.config.use_language_projection and not other.config.use_language_projection
    loaded.save_pretrained(tmp_path / "base")
    again, report = AutoModel.from_pretrained(tmp_path / "base", output_loading_info=True)
    assert not report["missing_keys"] and again.state_dict().keys() == expected.keys()


@torch.no_grad()
@pytest.mark.parametrize("tower", ["clip", "videovit"])
def test_positions_follow_frames_of_another_size_unless_they_must_not(tower):
    """This is the default in every family. Frames of the tower's own size give the same states either way."""
    model = tiny_model(vision_config=TOWERS[tower])
    larger, own = torch.randn(1, 2, 3, 24, 24), torch.randn(1, 2, 3, 16, 16)
    is_video_encoder = hasattr(model.config.vision_config, "tubelet_size")
    inputs = larger.transpose(0, 1) if is_video_encoder else larger[0]
    expected = model.vision_model(inputs, interpolate_pos_encoding=True).last_hidden_state
    for options in ({}, {"interpolate_pos_encoding": None}, {"interpolate_pos_encoding": True}):
        found = model.get_vision_embeds(larger, **options)
        assert_close(found, model.vision_layernorm(expected)[None])
        embedded = model(vision_embeds=found).last_hidden_state
        assert_close(model(larger, **options).last_hidden_state, embedded)
    for frames in (larger, larger[..., :8, :8]):
        for call in (model, model.get_vision_embeds):
            with pytest.raises(ValueError, match="have the size .* has positions for .16, 16.: resize"):
                call(frames, interpolate_pos_encoding=False)
    assert_close(model.get_vision_embeds(own, False), model.get_vision_embeds(own, True))
