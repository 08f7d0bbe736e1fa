"""VideoMamba beyond Transformers' common tests: options, sizes, precision, losses, and what its errors say."""

import copy
import logging
import math

import pytest
import torch
import torch.nn.functional as F
from accelerate import cpu_offload
from huggingface_hub.errors import StrictDataclassError
from peft import LoraConfig, get_peft_model
from transformers import AutoModel, AutoModelForVideoClassification

from hf_video import (
    VideoMambaBackbone,
    VideoMambaForImageClassification,
    VideoMambaForPreTraining,
    VideoMambaForVideoClassification,
    VideoMambaModel,
    VideoMambaState,
)
from hf_video.models.videomamba import modeling_videomamba
from hf_video.models.videomamba.modeling_videomamba import temporal_first_order

from .videomamba_testing import make, random_clips, record_blocks, tiny_config


@pytest.mark.parametrize("tubelet_size", [1, 2])
def test_tokens_are_in_the_order_time_row_column_behind_the_class_token(tubelet_size):
    """Changing one patch changes that patch's embedding alone."""
    model = make(VideoMambaModel, tubelet_size=tubelet_size)
    clips = random_clips(model.config, 1)
    changed = clips.clone()
    changed[:, 2, :, 8:16, 24:32] += 1
    difference = (model.embeddings(changed) - model.embeddings(clips)).abs().sum(-1)[0]
    (index,) = difference.nonzero(as_tuple=True)
    t, h, w = 2 // tubelet_size, 1, 3
    assert index.tolist() == [1 + (t * 4 + h) * 4 + w]


@pytest.mark.parametrize("scheme", ["zero_bias", "random", "constant"])
def test_initial_weights_are_the_same_by_construction_and_by_from_pretrained(tmp_path, scheme):
    """Loading a backbone into a classifier goes over the meta device and initialises the head alone."""
    settings = {"time_step_init_scheme": scheme, "hidden_size": 64}
    model = make(VideoMambaModel, **settings)
    model.save_pretrained(tmp_path)
    loaded = VideoMambaForVideoClassification.from_pretrained(tmp_path)
    for name, value in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[f"videomamba.{name}"], value), name
    assert 0.01 < loaded.classifier.weight.std() < 0.03 and not loaded.classifier.bias.any()

    # Nothing on disk but the embeddings: all mixers are initialised after the load.
    state = {name: value for name, value in model.state_dict().items() if "embeddings" in name}
    model.save_pretrained(tmp_path, state_dict=state)
    for mixer in (layer.mixer for layer in VideoMambaModel.from_pretrained(tmp_path).layers):
        for scan in (mixer.forward_scan, mixer.backward_scan):
            assert torch.equal(scan.A_log, torch.arange(1, 5).log().expand(128, 4)) and (scan.D == 1).all()
            assert scan.conv1d.weight.abs().max() <= 0.5 and scan.conv1d.bias.any()
            steps = F.softplus(scan.dt_bias)
            if scheme == "zero_bias":
                assert not scan.dt_bias.any() and 0.015 < scan.dt_proj.weight.std() < 0.025
            else:
                assert 0.001 <= steps.min() < 0.005 and 0.03 < steps.max() <= 0.1001
                assert scan.dt_proj.weight.abs().max() <= 4**-0.5
        bound = (128 * 3) ** -0.5
        assert 0.9 * bound < mixer.out_proj.weight.abs().max() <= bound


def test_both_directions_are_summed_and_none_is_dropped():
    mixer = make(VideoMambaModel).layers[0].mixer
    tokens = torch.randn(2, 17, 32)
    inner, gate = mixer.in_proj(tokens).mT.chunk(2, dim=1)
    forward, backward = mixer.forward_scan(inner)[0], mixer.backward_scan(inner)[0]
    torch.testing.assert_close(mixer(tokens)[0], mixer.out_proj(((forward + backward) * F.silu(gate)).mT))
    mixer.backward_scan.load_state_dict(mixer.forward_scan.state_dict())
    backward = mixer.backward_scan(inner.flip(-1))[0].flip(-1)
    torch.testing.assert_close(backward, forward, msg="the same weights, the other way round")


def test_one_direction_ignores_the_pixels_unless_pooled(caplog, monkeypatch):
    monkeypatch.setattr(modeling_videomamba.logger, "propagate", True)
    # Another test may have made the same warning, which is given once a process.
    type(modeling_videomamba.logger).warning_once.cache_clear()
    with caplog.at_level(logging.WARNING, logger=modeling_videomamba.logger.name):
        pooled = make(VideoMambaForVideoClassification, bidirectional=False, use_mean_pooling=True)
        assert not caplog.records
        blind = make(VideoMambaForVideoClassification, bidirectional=False)
    assert "`use_mean_pooling=True`" in caplog.text
    clips = random_clips(blind.config)
    assert torch.equal(blind(clips).logits, blind(clips + 1).logits)
    assert not torch.allclose(pooled(clips).logits, pooled(clips + 1).logits)


def test_temporal_first_visits_all_frames_of_a_place_before_the_next():
    order, step_of_token = temporal_first_order((2, 1, 3), None, torch.device("cpu"))
    assert order.tolist() == [[0, 1, 4, 2, 5, 3, 6]]
    assert step_of_token.gather(1, order).tolist() == [list(range(7))]
    places = torch.tensor([[1, 2, 3, 5], [0, 2, 4, 5]])
    order, _ = temporal_first_order((2, 1, 3), places, torch.device("cpu"))
    # Visible tokens of the first clip: (0, 1), (0, 2), (1, 0), (1, 2) in (frame, place).
    assert order.tolist() == [[0, 3, 1, 2, 4], [0, 1, 3, 2, 4]]


@pytest.mark.parametrize("masked", [False, True])
def test_temporal_first_is_spatial_first_of_the_video_turned_on_its_side(masked):
    """With rows of one patch, a video whose time and columns change places is scanned in the other order."""
    settings = {"image_size": [8, 32], "num_frames": 4, "use_temporal_position_embeddings": False}
    orders = ("spatial_first", "temporal_first", "spatiotemporal")
    spatial, temporal, both = (make(VideoMambaModel, **settings, scan_order=order) for order in orders)
    for model in (spatial, temporal, both):
        model.embeddings.position_embeddings.data.zero_()
        model.embeddings.cls_token.data.fill_(1)
        # Initial weights are so small that tokens hardly see each other.
        for layer in model.layers:
            layer.mixer.in_proj.weight.data *= 10
            layer.mixer.forward_scan.x_proj.weight.data *= 10
            layer.mixer.backward_scan.x_proj.weight.data *= 10
    clips = random_clips(spatial.config)
    turned = clips.unflatten(4, (4, 8)).transpose(1, 4).flatten(4, 5)
    mask = turned_mask = None
    if masked:
        mask = torch.arange(16).expand(2, -1) % 5 == 0
        turned_mask = mask.unflatten(1, (4, 4)).mT.flatten(1)
    with torch.no_grad():
        plain, found, wanted, mixed = (
            model(pixels, hidden).last_hidden_state
            for model, pixels, hidden in (
                (spatial, clips, mask),
                (temporal, clips, mask),
                (spatial, turned, turned_mask),
                (both, clips, mask),
            )
        )
    torch.testing.assert_close(found[:, 0], wanted[:, 0])
    if not masked:
        by_place, by_frame = (tokens[:, 1:].unflatten(1, (4, 4)) for tokens in (found, wanted))
        torch.testing.assert_close(by_place, by_frame.transpose(1, 2))
    for others in (found, mixed):
        assert (plain[:, 0] - others[:, 0]).abs().max() > 1e-2


def test_float32_parts_survive_loading_in_half_precision(tmp_path):
    make(VideoMambaForVideoClassification).save_pretrained(tmp_path)
    model = AutoModelForVideoClassification.from_pretrained(tmp_path, dtype=torch.bfloat16)
    scan = model.videomamba.layers[0].mixer.backward_scan
    patches = model.videomamba.embeddings.patch_embeddings.projection
    kept = {scan.A_log, scan.D, scan.dt_bias, patches.weight, patches.bias}
    assert {weight.dtype for weight in kept} == {torch.float32}
    assert {scan.dt_proj.weight.dtype, scan.x_proj.weight.dtype} == {torch.bfloat16}


@pytest.mark.parametrize("is_narrow", [False, True])
@pytest.mark.parametrize("how", ["from_pretrained", "autocast"])
def test_half_precision_keeps_the_residual_in_float32_and_stays_close(tmp_path, monkeypatch, how, is_narrow):
    """A CPU computes the mixers in float32, unless it is told to take the narrow dtype."""
    monkeypatch.setattr(modeling_videomamba, "NARROW_ON_CPU", is_narrow)
    model = make(VideoMambaForVideoClassification, time_step_init_scheme="random", num_hidden_layers=4)
    clips = random_clips(model.config)
    expected = model(clips).logits
    model.save_pretrained(tmp_path)
    if how == "from_pretrained":
        model = AutoModelForVideoClassification.from_pretrained(tmp_path, dtype=torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16, enabled=how == "autocast"), record_blocks(model.videomamba) as blocks:
        outputs = model(clips, output_hidden_states=True)
    assert {hidden_states.dtype for hidden_states in outputs.hidden_states} == {torch.float32}
    assert {mixed.dtype for mixed in blocks.mixed} == {torch.bfloat16 if is_narrow else torch.float32}
    torch.testing.assert_close(outputs.logits.float(), expected, atol=0.02, rtol=0.02)


def make_layer(**settings):
    torch.manual_seed(0)
    layer = modeling_videomamba.VideoMambaLayer(tiny_config(use_mean_pooling=True, **settings), drop_path_rate=0.0)
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    return layer


def values_and_gradients(layer, hidden_states, weights):
    leaf = hidden_states.clone().requires_grad_()
    outputs, _ = layer(leaf)
    names, parameters = zip(*layer.named_parameters(), strict=True)
    gradients = torch.autograd.grad((outputs * weights).sum(), [leaf, *parameters])
    return {"": outputs, **dict(zip(("input", *names), gradients, strict=True))}


@pytest.mark.parametrize("hidden_act", ["silu", "gelu"])
@pytest.mark.parametrize("residual_dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("how", ["weights", "autocast"])
def test_bfloat16_on_a_cpu_is_nearer_to_float64_than_products_in_bfloat16(
    monkeypatch, how, residual_dtype, hidden_act
):
    layer = make_layer(hidden_act=hidden_act)
    if how == "weights":
        for name, parameter in layer.named_parameters():
            if not name.endswith(("A_log", "D", "dt_bias")):
                parameter.data = parameter.data.bfloat16()
    inputs = torch.randn(2, 3, 70, 32).bfloat16()
    exact = values_and_gradients(copy.deepcopy(layer).double(), *inputs.double())
    found = {}
    for is_narrow in (False, True):
        monkeypatch.setattr(modeling_videomamba, "NARROW_ON_CPU", is_narrow)
        autocast = torch.autocast("cpu", torch.bfloat16, enabled=how == "autocast")
        with autocast, modeling_videomamba.without_autocast():
            found[is_narrow] = values_and_gradients(layer, *inputs.to(residual_dtype))
    assert found[False][""].dtype == found[True][""].dtype == residual_dtype
    ratios = {}
    for name, wanted in exact.items():
        assert found[False][name].dtype == found[True][name].dtype
        wide, narrow = (torch.linalg.vector_norm(found[each][name].double() - wanted) for each in (False, True))
        ratios[name] = (wide / narrow.clamp(min=1e-12)).item()
    assert ratios[""] <= 1 and sum(ratios.values()) / len(ratios) <= 1, ratios


@pytest.mark.parametrize("bidirectional", [True, False])
def test_gradients_that_fade_along_a_clip_hold_no_subnormal_numbers(bidirectional):
    """As behind a head that reads one token. Each layer below multiplies what the one above it gave."""
    layer, weights = make_layer(bidirectional=bidirectional), torch.zeros(1, 600, 32)
    weights[:, -1] = 1
    hidden_states = torch.randn(1, 600, 32)
    smallest = torch.finfo(torch.float32).smallest_normal
    for _ in range(3):
        gradient = values_and_gradients(layer, hidden_states, weights)["input"]
        assert (gradient == 0).any() and gradient.isfinite().all()
        assert not ((gradient != 0) & (gradient.abs() < smallest)).any()
        weights = gradient


def test_double_precision_is_not_lost_on_the_way():
    model = make(VideoMambaForVideoClassification)
    clips = random_clips(model.config)
    single = model(clips).logits
    double = model.double()(clips.double()).logits
    assert double.dtype == torch.float64
    torch.testing.assert_close(single.double(), double, atol=1e-5, rtol=1e-5)
    assert not torch.equal(double, double.float().double()), "float32 somewhere inside would leave float32 numbers"


def test_autocast_training_never_meets_a_nan():
    """Large inputs and steps, which make half-precision decays and time steps overflow."""
    model = make(VideoMambaForVideoClassification, drop_path_rate=0.2).train()
    clips, labels = 3 * random_clips(model.config, 4).bfloat16(), torch.tensor([0, 1, 2, 3])
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(30):
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(clips, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        assert all(p.grad.isfinite().all() and p.grad.dtype == p.dtype for p in model.parameters())
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.3 < losses[0]


def make_lively(model_class=VideoMambaForVideoClassification, **settings):
    """A model whose weights are large enough for every part to matter."""
    model = make(model_class, time_step_init_scheme="random", **settings)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn(weight.shape, generator=torch.Generator().manual_seed(1)), alpha=0.1)
    return model


@pytest.mark.parametrize("use_dora", [False, True], ids=["lora", "dora"])
@pytest.mark.parametrize("target", ["in_proj", "x_proj", "dt_proj", "out_proj", "projection", "classifier"])
def test_an_adapter_acts_as_the_weights_that_it_is_merged_into(target, use_dora):
    model = make_lively()
    clips = random_clips(model.config)
    before = model(clips).logits
    adapted = get_peft_model(
        model, LoraConfig(target_modules=[target], r=2, init_lora_weights=False, use_dora=use_dora)
    ).eval()
    for name, parameter in adapted.named_parameters():
        if "magnitude" in name:
            parameter.data *= 1.5
    logits = adapted(clips).logits
    assert (logits - before).abs().max() > 5e-4
    logits.square().sum().backward()
    untouched = [name for name, p in adapted.named_parameters() if p.requires_grad and not p.grad.any()]
    # The class token comes first, so what the last forward scan decides at later tokens cannot reach it.
    assert all("layers.2.mixer.forward_scan" in name for name in untouched)
    torch.testing.assert_close(adapted.merge_and_unload()(clips).logits, logits, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("place", ["cpu", "disk"])
@pytest.mark.parametrize("is_causal", [False, True])
@torch.no_grad()
def test_weights_that_wait_elsewhere_are_there_when_they_are_used(tmp_path, place, is_causal):
    causal = {"bidirectional": False, "use_temporal_position_embeddings": False, "use_mean_pooling": True}
    model = make_lively(**(causal if is_causal else {}))
    clips = random_clips(model.config)
    state = VideoMambaState(model.config, batch_size=2) if is_causal else None
    expected = model(clips, state=state).logits
    if place == "cpu":
        offloaded = cpu_offload(copy.deepcopy(model), torch.device("cpu"))
    else:
        model.save_pretrained(tmp_path / "model")
        places = {"videomamba.embeddings": "cpu"}
        places |= dict.fromkeys(("videomamba.layers", "videomamba.norm_f", "classifier"), "disk")
        offloaded = type(model).from_pretrained(
            tmp_path / "model", device_map=places, offload_folder=tmp_path / "offload"
        )
    for _ in range(2):
        torch.testing.assert_close(offloaded(clips, state=state).logits, expected)
    assert any(parameter.is_meta for parameter in offloaded.parameters())


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_a_block_compiles_without_graph_breaks_and_has_the_same_gradients(backend):
    torch._dynamo.reset()  # what other tests compiled may have marked these methods as not worth it
    layer, tokens = make(VideoMambaModel).layers[0], torch.randn(2, 9, 32)
    compiled = torch.compile(layer, fullgraph=True, backend=backend)
    found, wanted = (
        torch.autograd.grad(f(tokens)[0].square().sum(), list(layer.parameters())) for f in (compiled, layer)
    )
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-4)


@pytest.mark.slow
def test_the_model_exports_for_any_length_to_a_graph_of_one_size():
    model = make(VideoMambaForVideoClassification, num_hidden_layers=1)
    sizes = []
    for num_frames in (4, 6):
        clips = random_clips(model.config, num_frames=num_frames)
        model.videomamba.set_input_size(num_frames=num_frames)
        program = torch.export.export(model, (clips,))
        torch.testing.assert_close(program.module()(clips).logits, model(clips).logits)
        sizes.append(len(program.graph.nodes))
    assert sizes[0] == sizes[1]


def test_without_labels_the_output_is_the_pooled_feature():
    model = make(VideoMambaForVideoClassification, num_labels=0)
    clips = random_clips(model.config)
    tokens = model.videomamba(clips).last_hidden_state
    torch.testing.assert_close(model(clips).logits, tokens[:, 0])
    model = make(VideoMambaForVideoClassification, num_labels=0, use_mean_pooling=True)
    torch.testing.assert_close(model(clips).logits, tokens[:, 1:].mean(1))


@pytest.mark.parametrize("settings", [{}, {"use_temporal_position_embeddings": False}, {"patch_stride": 4}])
def test_an_input_of_another_size_gives_what_set_input_size_bakes_in(tmp_path, settings):
    model = make(VideoMambaModel, **settings)
    clips = random_clips(model.config, image_size=(24, 40), num_frames=6)
    expected = model(clips).last_hidden_state
    with pytest.raises(ValueError, match="set_input_size"):
        model(clips, interpolate_pos_encoding=False)
    model.set_input_size(image_size=(24, 40), num_frames=6)
    torch.testing.assert_close(model(clips, interpolate_pos_encoding=False).last_hidden_state, expected)
    model.save_pretrained(tmp_path)
    loaded = AutoModel.from_pretrained(tmp_path)
    assert loaded.config.token_grid[0] == 6
    torch.testing.assert_close(loaded(clips).last_hidden_state, expected)


@pytest.mark.parametrize(
    ("model_class", "by_its_encoder"),
    [(VideoMambaForVideoClassification, True), (VideoMambaForPreTraining, False), (VideoMambaBackbone, True)],
)
def test_every_class_can_change_its_input_size(model_class, by_its_encoder):
    model = make(model_class)
    clips = random_clips(model.config, image_size=(24, 40), num_frames=6)
    grid = model.config.token_grid_of(6, 24, 40)
    inputs = {"bool_masked_pos": torch.arange(math.prod(grid)).repeat(len(clips), 1) % 2 == 0}
    inputs = inputs if model_class is VideoMambaForPreTraining else {}
    (expected, *_) = model(clips, **inputs).to_tuple()
    (model.base_model if by_its_encoder else model).set_input_size(image_size=(24, 40), num_frames=6)
    (actual, *_) = model(clips, **inputs).to_tuple()
    torch.testing.assert_close(actual, expected)


def count_runs(model):
    """How often every layer's mixer starts, counted while the model runs: recomputation stops when it has enough."""
    runs = [0] * len(model.base_model.layers)

    def count(number):
        def hook(*_):
            runs[number] += 1

        return hook

    for number, layer in enumerate(model.base_model.layers):
        layer.mixer.register_forward_pre_hook(count(number))
    return runs


@pytest.mark.parametrize(
    ("model_class", "chosen", "recomputed"),
    [
        (VideoMambaModel, None, [0, 1, 2]),
        (VideoMambaBackbone, 2, [0, 1]),
        (VideoMambaForVideoClassification, [2, 0], [0, 2]),
        (VideoMambaForPreTraining, [2], [2]),
    ],
)
def test_the_layers_of_the_configuration_are_recomputed_and_no_others(model_class, chosen, recomputed):
    model = make(model_class, gradient_checkpointing_layers=chosen).train()
    clips, mask = random_clips(model.config), torch.arange(64).repeat(2, 1) % 2 == 0
    inputs = {"bool_masked_pos": mask} if model_class is VideoMambaForPreTraining else {}

    def gradients():
        model.zero_grad()
        output = model(clips, **inputs).to_tuple()[0]
        (output[0] if isinstance(output, tuple) else output).square().sum().backward()
        return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}

    runs, wanted = count_runs(model), gradients()
    assert runs == [1, 1, 1]
    model.gradient_checkpointing_enable()
    runs[:] = [0, 0, 0]
    found = gradients()
    assert [number for number, times in enumerate(runs) if times == 2] == recomputed and sum(runs) == 3 + len(
        recomputed
    )
    torch.testing.assert_close(found, wanted)
    model.gradient_checkpointing_disable()
    runs[:] = [0, 0, 0]
    gradients()
    assert runs == [1, 1, 1]


def test_a_call_that_leaves_layers_out_comes_before_the_configuration():
    model = make(VideoMambaForVideoClassification, gradient_checkpointing_layers=[1])
    model.activation_checkpointing_enable(every_n_layers=2)
    assert [layer.gradient_checkpointing for layer in model.videomamba.layers] == [True, False, True]


def test_backbone_maps_have_the_token_grid_and_the_final_norm():
    model = make(VideoMambaBackbone, out_features=["stage1", "stage3"])
    clips = random_clips(model.config, image_size=(40, 24), num_frames=5)
    outputs = model(clips)
    assert [tuple(feature_map.shape) for feature_map in outputs.feature_maps] == [(2, 32, 5, 5, 3)] * 2
    tokens = model.videomamba(clips).last_hidden_state
    torch.testing.assert_close(outputs.feature_maps[-1].flatten(2).mT, tokens[:, 1:])


def test_image_classifier_takes_images_with_overlapping_patches():
    model = make(VideoMambaForImageClassification, num_frames=1, patch_stride=4)
    images = torch.randn(2, 3, 32, 32)
    assert model.videomamba.embeddings.temporal_position_embeddings is None
    tokens = model.videomamba(images[:, None]).last_hidden_state
    assert tokens.shape[1] == 1 + 7 * 7
    torch.testing.assert_close(model(images).logits, model.classifier(tokens[:, 0]))
    with pytest.raises(ValueError, match="batch_size, num_channels, height, width"):
        model(images[:, None])
    with pytest.raises(ValueError, match="tubelet_size=1"):
        make(VideoMambaForImageClassification, tubelet_size=2)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"state_size": 0}, "`state_size` must be at least 1"),
        ({"expand": 0.01}, "`intermediate_size` must be at least 1"),
        ({"tubelet_size": 8}, "hold no patch"),
        ({"patch_stride": [1, 2, 3]}, "`patch_stride` must be one positive number or (height, width)"),
        ({"scan_order": "zigzag"}, "scan_order"),
        ({"scan_order": "spatiotemporal", "bidirectional": False}, "needs `bidirectional=True`"),
        ({"drop_path_rate": 1.5}, "`drop_path_rate` must be in [0, 1)"),
        ({"time_step_min": 0.2}, "not above `time_step_max`"),
        ({"time_step_init_scheme": "uniform"}, "time_step_init_scheme"),
        ({"gradient_checkpointing_layers": 4}, "must be a number of layers from 1 to 3"),
        ({"gradient_checkpointing_layers": [0, 3]}, "a list of their indices, which start at 0, got [0, 3]"),
        ({"normalize_features": False}, '`alignment_loss` to "mse" or "smooth_l1"'),
        ({"mask_ratio": 1.0}, "`mask_ratio` must be between 0 and 1"),
        ({"num_aligned_layers": 4}, "are the layers [-1, 0, 1, 2] of 3"),
        ({"num_aligned_layers": 2, "aligned_layer_interval": 0.5}, "are the layers [2, 2] of 3"),
    ],
)
def test_wrong_configurations_are_refused(settings, message):
    with pytest.raises((ValueError, StrictDataclassError)) as error:
        tiny_config(**settings)
    assert message in str(error.value)
