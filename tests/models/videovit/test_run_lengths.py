"""Run-length tokens of VideoViT: which tokens are dropped, and what becomes of the others."""

import copy

import pytest
import torch
import torch.nn.functional as F
from huggingface_hub.errors import StrictDataclassError
from transformers import AttentionInterface, Trainer, TrainingArguments, set_seed

from hf_video import (
    VideoClipProcessor,
    VideoViTBackbone,
    VideoViTForPreTraining,
    VideoViTForVideoClassification,
    VideoViTModel,
)
from hf_video.models.videovit.run_lengths_videovit import repeated_tokens

from .videovit_testing import random_clips, tiny_config

VARIANTS = [
    {},
    {"use_class_token": True, "position_embedding_type": "learned", "use_run_length_embedding": True},
    {"use_class_token": True, "position_embedding_type": "rope", "use_qk_norm": True, "key_bias": True},
    {"position_embedding_type": "none", "use_cosine_attention": True, "layer_scale_init_value": 0.1},
]


def make(model_class, **settings):
    """A tiny model with run-length tokens, and random numbers where it starts with zeros."""
    set_seed(0)
    model = model_class(tiny_config(**{"run_length_threshold": 0.0, **settings})).eval()
    for name, parameter in model.named_parameters():
        if name.endswith("run_length_embedding.weight"):
            torch.nn.init.normal_(parameter)
    return model


def without_run_lengths(model):
    """The same weights in a model that keeps all tokens."""
    full = copy.deepcopy(model)
    full.config.run_length_threshold = None
    return full


def clips_with_runs(config):
    """Three clips: one in which some patches repeat, one in which nothing repeats, one in which everything does."""
    clips = random_clips(config, 3)
    clips[0, 2:, :, :16] = clips[0, :1, :, :16]
    clips[0, 6:, :, 16:, :8] = clips[0, 4:5, :, 16:, :8]
    clips[2] = clips[2, :1]
    return clips


def explicit_features(model, clip):
    """The features of one clip from a loop over its patches; the layers see the kept tokens of this clip alone."""
    config, (t, h, w) = model.config, model.config.token_grid
    patches = clip[: t * 2].reshape(t, 2, 3, h, 8, w, 8)
    owners, kept, lengths = {}, [], []
    for time in range(t):
        for place in range(h * w):
            row, column = divmod(place, w)
            old, new = (patches[max(time - 1, 0), 0], patches[time, 1]) if time else (None, None)
            if time and (new[:, row, :, column] - old[:, row, :, column]).abs().mean() <= config.run_length_threshold:
                owners[time, place] = owners[time - 1, place]
                lengths[owners[time, place]] += 1
            else:
                owners[time, place] = len(kept)
                kept.append(time * h * w + place)
                lengths.append(1)
    tokens = model.embeddings(clip[None])[0]
    prefix = int(config.use_class_token)
    lengths = torch.tensor([1] * prefix + lengths, dtype=tokens.dtype)
    chosen = list(range(prefix)) + [prefix + index for index in kept]
    tokens = tokens[chosen]
    if config.use_run_length_embedding:
        tokens = tokens + lengths.log()[:, None] * model.embeddings.run_length_embedding.weight
    rotary = None
    if model.rotary_embedding is not None:
        angles = F.pad(model.rotary_embedding(config.token_grid, tokens.device)[0], (0, 0, prefix, 0))[chosen]
        rotary = angles.cos()[None, None], angles.sin()[None, None]
    for layer in model.layers:
        tokens = layer(tokens[None], rotary)[0]
    tokens = tokens if model.layernorm is None else model.layernorm(tokens)
    places = list(range(prefix)) + [prefix + owners[time, place] for time in range(t) for place in range(h * w)]
    return tokens[places]


@pytest.mark.parametrize("attn_implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("settings", VARIANTS)
def test_features_and_gradients_are_those_of_a_loop_over_clips(settings, attn_implementation):
    model = make(VideoViTModel, attn_implementation=attn_implementation, run_length_threshold=0.1, **settings).double()
    clips = clips_with_runs(model.config).double()
    clips[0, 5] += 0.08
    results = {}
    for name in ("packed", "loop"):
        features = (
            model(clips).last_hidden_state
            if name == "packed"
            else torch.stack([explicit_features(model, clip) for clip in clips])
        )
        weights = torch.linspace(-1, 1, features.numel(), dtype=torch.float64).view_as(features)
        gradients = torch.autograd.grad((features * weights).sum(), list(model.parameters()), materialize_grads=True)
        results[name] = [features, *gradients]
    for packed, loop in zip(results["packed"], results["loop"], strict=True):
        torch.testing.assert_close(packed, loop, rtol=1e-10, atol=1e-10)
    assert max(gradient.abs().max() for gradient in results["packed"][1:]) > 0.1


@pytest.mark.parametrize("settings", VARIANTS)
def test_nothing_repeated_gives_equal_bits(settings):
    model = make(VideoViTForVideoClassification, **settings)
    clips = random_clips(model.config)
    assert torch.equal(model(clips).logits, without_run_lengths(model)(clips).logits)


def test_a_fresh_length_embedding_changes_nothing():
    config = tiny_config(run_length_threshold=0.0, use_run_length_embedding=True)
    model = VideoViTModel(config).eval()
    clips = clips_with_runs(config)
    expected = {}
    for embedding in (model.embeddings.run_length_embedding, None):
        model.embeddings.run_length_embedding = embedding
        for mixed in (False, True):
            with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
                features = model(clips).last_hidden_state
            assert torch.equal(expected.setdefault(mixed, features), features)
            assert expected[mixed].dtype == features.dtype


@pytest.mark.parametrize("tubelet_size", [1, 2, 3])
def test_a_patch_is_compared_with_the_one_before_it(tubelet_size):
    """The first frame of the one, the last frame of the other; pixels that fill no patch do not count."""
    generator = torch.Generator().manual_seed(0)
    clips = torch.rand(2, 4 * tubelet_size, 3, 9, 17, generator=generator)
    for threshold in (0.0, 0.3, 0.36, 2.0):
        repeated = repeated_tokens(clips, (tubelet_size, 4, 8), threshold)
        assert repeated.shape == (2, 4, 4)
        for clip, time, row, column in torch.cartesian_prod(*(torch.arange(size) for size in (2, 4, 2, 2))).tolist():
            patch = clips[clip, :, :, 4 * row : 4 * row + 4, 8 * column : 8 * column + 8]
            previous, last = patch[(time - 1) * tubelet_size], patch[(time + 1) * tubelet_size - 1]
            expected = time > 0 and bool((last - previous).abs().mean() <= threshold)
            assert repeated[clip, time, 2 * row + column] == expected


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bfloat16])
def test_a_difference_is_taken_in_float32(dtype):
    """In uint8, 1 - 255 would be 2; in bfloat16, 256 - 0.75 would be 256."""
    clip = torch.zeros(1, 4, 3, 8, 8)
    clip[:, 0], clip[:, 3] = (255, 1) if dtype == torch.uint8 else (0.75, 256)
    clip, difference = clip.to(dtype), 254 if dtype == torch.uint8 else 255.25
    assert repeated_tokens(clip, (2, 8, 8), difference).flatten().tolist() == [False, True]
    assert not repeated_tokens(clip, (2, 8, 8), difference - 0.1).any()
    assert not repeated_tokens(clip, (2, 8, 8), 3).any()


def test_a_ragged_batch_equals_its_clips_alone():
    model = make(VideoViTForVideoClassification, use_class_token=True).double()
    clips = clips_with_runs(model.config).double()
    alone = torch.cat([model(clip[None]).logits for clip in clips])
    torch.testing.assert_close(model(clips).logits, alone, rtol=1e-10, atol=1e-10)


def test_a_still_clip_keeps_one_frame_of_tokens():
    model = make(VideoViTModel, hidden_dropout_prob=0.0)
    clips = random_clips(model.config)[:, :1].expand(-1, 8, -1, -1, -1)
    sizes = []
    model.layers[0].register_forward_hook(lambda module, inputs, output: sizes.append(output.shape))
    features = model(clips).last_hidden_state
    assert sizes == [(1, 2 * 16, 36)]
    frames = features.unflatten(1, (4, 16))
    assert torch.equal(frames, frames[:, :1].expand_as(frames))


def test_hidden_states_and_feature_maps_are_filled():
    model = make(VideoViTBackbone, out_features=["stem", "stage2"], use_class_token=True)
    clips = clips_with_runs(model.config)
    outputs = model(clips, output_hidden_states=True)
    assert [states.shape for states in outputs.hidden_states] == [(3, 65, 36)] * 4
    for feature_map in outputs.feature_maps:
        assert feature_map.shape == (3, 36, 4, 4, 4)
        repeated = repeated_tokens(clips, model.config.patch_shape, 0.0).unflatten(2, (4, 4))
        equal = (feature_map[:, :, 1:] == feature_map[:, :, :-1]).all(dim=1)
        assert torch.equal(equal, repeated[:, 1:])


def test_stochastic_depth_skips_whole_clips():
    model = make(VideoViTModel, drop_path_rate=0.5, num_hidden_layers=2).train()
    clips = clips_with_runs(model.config)[:1].expand(64, -1, -1, -1, -1)
    states = []
    model.layers[1].register_forward_hook(lambda module, inputs, output: states.extend([inputs[0], output]))
    model(clips)
    unchanged = (states[0] == states[1]).all(dim=-1)[0].unflatten(0, (64, -1))
    assert torch.equal(unchanged.any(dim=1), unchanged.all(dim=1))
    assert 4 <= unchanged.all(dim=1).sum() <= 28  # a quarter of the clips on average


def test_recomputed_layers_have_the_same_gradients():
    gradients = []
    for recompute in (False, True):
        model = make(VideoViTModel, drop_path_rate=0.5, use_class_token=True).train()
        if recompute:
            model.gradient_checkpointing_enable()
        set_seed(1)
        model(clips_with_runs(model.config)).last_hidden_state.square().sum().backward()
        gradients.append(model.embeddings.patch_embeddings.projection.weight.grad)
    assert torch.equal(*gradients)


def test_flash_attention_gets_the_places_of_the_clips():
    """A stand-in for FlashAttention computes with what it is given; its kernels need a GPU."""

    def flash(module, query, key, value, mask, *, cu_seq_lens_q, cu_seq_lens_k, max_length_q, max_length_k, **kwargs):
        assert mask is None and cu_seq_lens_q is cu_seq_lens_k and cu_seq_lens_q.dtype == torch.int32
        assert max_length_q == max_length_k == cu_seq_lens_q.diff().max()
        pieces = [states.split(cu_seq_lens_q.diff().tolist(), dim=2) for states in (query, key, value)]
        contexts = [F.scaled_dot_product_attention(*clip) for clip in zip(*pieces, strict=True)]
        return torch.cat(contexts, dim=2).transpose(1, 2), None

    model = make(VideoViTModel)
    clips = clips_with_runs(model.config)
    expected = model(clips).last_hidden_state
    AttentionInterface.register("flash_attention_stand_in", flash)
    model.config._attn_implementation_internal = "flash_attention_stand_in"
    torch.testing.assert_close(model(clips).last_hidden_state, expected)


def test_half_precision():
    model = make(VideoViTForVideoClassification)
    clips = clips_with_runs(model.config)
    expected = model(clips).logits
    outputs = model.to(torch.bfloat16)(clips).logits
    assert outputs.dtype == torch.bfloat16
    torch.testing.assert_close(outputs.float(), expected, rtol=0.05, atol=0.02)


@pytest.mark.slow
def test_compiled_models_take_other_numbers_of_tokens():
    model = make(VideoViTModel, num_hidden_layers=1, use_class_token=True, use_run_length_embedding=True)
    compiled = torch.compile(model)
    for frames in (2, 4, 6):
        clips = clips_with_runs(model.config)
        clips[1, frames:, :, :8] = clips[1, :1, :, :8]
        torch.testing.assert_close(compiled(clips).last_hidden_state, model(clips).last_hidden_state)
    compiled(clips).last_hidden_state.sum().backward()
    assert model.layers[0].mlp.fc1.weight.grad.abs().sum() > 0


def test_saved_and_loaded(tmp_path):
    model = make(VideoViTForVideoClassification, use_run_length_embedding=True)
    clips = clips_with_runs(model.config)
    model.save_pretrained(tmp_path)
    loaded = VideoViTForVideoClassification.from_pretrained(tmp_path)
    assert loaded.config.run_length_threshold == 0.0
    torch.testing.assert_close(loaded(clips).logits, model(clips).logits)


def test_a_checkpoint_without_the_embedding_loads(tmp_path):
    make(VideoViTForVideoClassification, run_length_threshold=None).save_pretrained(tmp_path)
    model, report = VideoViTForVideoClassification.from_pretrained(
        tmp_path, run_length_threshold=0.1, use_run_length_embedding=True, output_loading_info=True
    )
    assert set(report["missing_keys"]) == {"videovit.embeddings.run_length_embedding.weight"}
    assert not model.videovit.embeddings.run_length_embedding.weight.any()


def test_trainer_and_processor(tmp_path):
    """The saved configuration is enough: the processor and the data loader do not know of run lengths."""
    model = make(VideoViTForVideoClassification, use_run_length_embedding=True, num_labels=2)
    clips = clips_with_runs(model.config)
    items = [{"pixel_values": clip, "labels": number % 2} for number, clip in enumerate(clips)]
    before = model.videovit.embeddings.run_length_embedding.weight.detach().clone()
    arguments = TrainingArguments(
        tmp_path, max_steps=1, per_device_train_batch_size=3, use_cpu=True, report_to=[], save_strategy="no"
    )
    trainer = Trainer(model, arguments, train_dataset=items)
    trainer.train()
    assert not torch.equal(model.videovit.embeddings.run_length_embedding.weight, before)
    trainer.save_model(tmp_path)
    size = {"height": 32, "width": 32}
    processor = VideoClipProcessor(num_frames=8, size=size, crop_size=size)
    loaded = VideoViTForVideoClassification.from_pretrained(tmp_path)
    frames = torch.randint(0, 256, (1, 3, 32, 32), dtype=torch.uint8).expand(8, -1, -1, -1)
    sizes = []
    loaded.videovit.layers[0].register_forward_hook(lambda module, inputs, output: sizes.append(output.shape[1]))
    logits = loaded(**processor(frames, return_tensors="pt")).logits
    assert sizes == [16]
    assert logits.shape == (1, 2)


def test_what_cannot_be_done_is_said():
    model = make(VideoViTModel, attn_implementation="eager")
    clips = random_clips(model.config)
    with pytest.raises(ValueError, match="attention weights of another size in every clip: set `config.run_length"):
        model(clips, output_attentions=True)
    model.config.output_attentions = True
    with pytest.raises(ValueError, match="attention weights of another size in every clip: set `config.run_length"):
        model(clips)
    model.config.output_attentions = False
    with pytest.raises(ValueError, match="cannot be masked"):
        model(clips, bool_masked_pos=torch.arange(64).expand(2, -1) > 9)
    with pytest.raises(ValueError, match="cannot be exported, as their number depends on the input"):
        torch.export.export(model, (clips,))
    with pytest.raises(ValueError, match="chooses its tokens by masks: leave out `run_length_threshold`, got 0.0"):
        VideoViTForPreTraining(model.config)
    with pytest.raises(StrictDataclassError, match="`run_length_threshold` must be at least 0, got -0.1"):
        tiny_config(run_length_threshold=-0.1)
