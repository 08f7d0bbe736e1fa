"""A residual branch as one operator on the CPU: the values and gradients of its modules, and when it steps aside."""

import copy
import functools

import peft
import pytest
import torch

from hf_video import VideoMambaForVideoClassification
from hf_video.models.videomamba import modeling_videomamba
from hf_video.ops import mamba_mixer
from hf_video.ops.cpu_choices import VARIABLE
from hf_video.ops.selective_scan import dispatch
from tests.models.videomamba.videomamba_testing import make, random_clips, tiny_config


@pytest.fixture(autouse=True)
def chosen(monkeypatch):
    monkeypatch.setenv(dispatch.BACKEND_VARIABLE, "cpu")


@pytest.fixture
def calls(monkeypatch):
    """How often the operator ran."""
    calls = []

    def count(*arguments):
        calls.append(arguments)
        return mamba_mixer.mamba_mixer(*arguments)

    monkeypatch.setattr(modeling_videomamba, "mamba_mixer", count)
    return calls


def make_layer(**settings):
    torch.manual_seed(0)
    layer = modeling_videomamba.VideoMambaLayer(tiny_config(use_mean_pooling=True, **settings), drop_path_rate=0.0)
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    return layer


def values_and_gradients(layer, hidden_states, weights):
    leaf = hidden_states.clone().requires_grad_()
    outputs = layer(leaf)
    parameters = {name.removeprefix("_orig_mod."): parameter for name, parameter in layer.named_parameters()}
    gradients = torch.autograd.grad((outputs * weights).sum(), [leaf, *parameters.values()])
    with torch.no_grad():
        inferred = layer(hidden_states)
    return {"": outputs, "inferred": inferred, **dict(zip(("input", *parameters), gradients, strict=True))}


@pytest.mark.parametrize("settings", [{}, {"bidirectional": False}, {"use_conv_bias": False}], ids=str)
@pytest.mark.parametrize(
    ("batch_size", "length", "tile_size"),
    [(2, 70, 2048), (5, 70, 150), (2, 300, 128), (1, 1, 2048), (1, 2, 2048), (2, 193, 64)],
)
def test_values_and_gradients_are_those_of_the_modules(calls, monkeypatch, settings, batch_size, length, tile_size):
    """Whole clips in a tile, some clips in a tile, clips in several tiles, and fewer tokens than taps."""
    monkeypatch.setattr(mamba_mixer, "TILE_SIZE", tile_size)
    layer = make_layer(**settings)
    hidden_states, weights = torch.randn(2, batch_size, length, 32)
    found = values_and_gradients(layer, hidden_states, weights)
    assert len(calls) == 2
    monkeypatch.setattr(type(layer), "can_fuse", lambda *_: False)
    monkeypatch.setenv(dispatch.BACKEND_VARIABLE, "reference")
    for name, wanted in values_and_gradients(layer, hidden_states, weights).items():
        scale = wanted.abs().max().clamp(min=1e-6)
        torch.testing.assert_close(found[name] / scale, wanted / scale, atol=1e-5, rtol=0, msg=name)


@pytest.mark.parametrize("bidirectional", [True, False])
def test_gradients_that_fade_along_a_clip_hold_no_subnormal_numbers(calls, bidirectional):
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
    assert len(calls) == 6


def test_rows_of_the_input_may_be_apart(calls):
    layer, hidden_states = make_layer(), torch.randn(2, 9, 64)[..., ::2]
    torch.testing.assert_close(layer(hidden_states), layer(hidden_states.contiguous()))
    assert len(calls) == 2


@pytest.mark.parametrize("keeps_states", [True, False])
@pytest.mark.parametrize("bidirectional", [True, False])
def test_it_is_an_operator_that_torch_can_trace(calls, bidirectional, keeps_states):
    layer = make_layer(bidirectional=bidirectional)
    hidden_states = torch.randn(2, 70, 32)
    layer(hidden_states)
    _, _, eps, in_proj, out_proj, directions, *dtypes = calls[0]
    tensors = [hidden_states, layer.norm.weight, in_proj, out_proj, *(x for weights in directions for x in weights)]
    tensors = [tensor.detach().requires_grad_(keeps_states) for tensor in tensors]
    torch.library.opcheck(mamba_mixer.mixer_forward, (tensors, eps, keeps_states, *dtypes))
    if keeps_states:
        tensors = [tensor.detach() for tensor in tensors]
        outputs, *kept = mamba_mixer.mixer_forward(tensors, eps, True, *dtypes)
        torch.library.opcheck(mamba_mixer.mixer_backward, (torch.randn_like(outputs), kept, tensors, eps, dtypes[1]))


def test_a_layer_compiles_without_graph_breaks(calls):
    layer, hidden_states = make_layer(), torch.randn(2, 70, 32)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    weights = torch.randn(2, 70, 32)
    expected, found = (values_and_gradients(module, hidden_states, weights) for module in (layer, compiled))
    for wanted, value in zip(expected.values(), found.values(), strict=True):
        torch.testing.assert_close(value, wanted, atol=1e-5, rtol=1e-5)


def test_gradients_need_no_tensor_of_the_scans(calls):
    """Kept for the backward: the input, its projection, and what is small."""
    layer = make_layer()
    saved = {}

    def pack(tensor):
        saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    weights = {parameter.untyped_storage().data_ptr() for parameter in layer.parameters()}
    length = 640
    hidden_states = torch.randn(1, length, 32, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        layer(hidden_states)
    activations = sum(size for pointer, size in saved.items() if pointer not in weights) / (4 * length)
    hidden, inner, state_size = 32, 64, 4
    projected = layer.mixer.forward_scan.x_proj.out_features
    borders = inner * state_size / 64
    # Weights that were made of others, such as the rates, and scalars of the loss are few.
    assert activations <= hidden + 2 * inner + 2 * (projected + borders) + 16


@pytest.mark.parametrize(
    "disturb",
    [
        lambda layer: layer.mixer.in_proj.register_forward_hook(lambda *_: None),
        lambda layer: layer.mixer.register_forward_pre_hook(lambda *_: None),
        lambda layer: layer.norm.register_full_backward_hook(lambda *_: None),
        lambda layer: layer.mixer.backward_scan.double(),
        lambda layer: setattr(layer.mixer.out_proj, "forward", layer.mixer.out_proj.forward),
        lambda layer: torch.nn.utils.parametrizations.weight_norm(layer.mixer.in_proj),
    ],
    ids=["hook", "pre-hook", "backward hook", "double", "accelerate", "parametrization"],
)
def test_what_is_put_around_a_module_is_not_passed_by(calls, disturb):
    layer = make_layer()
    disturb(layer)
    assert not layer.can_fuse(torch.randn(1, 5, 32))


@pytest.mark.parametrize("register", [torch.nn.Module.register_forward_hook, None], ids=["hook", "global hook"])
def test_what_a_hook_keeps_of_a_branch_stays_as_it_was(register):
    layer, hidden_states, kept = make_layer(), torch.randn(2, 9, 32), []

    def keep(module, _, output):
        if module is layer.drop_path:
            kept.append(output)

    register = register or (lambda _, hook: torch.nn.modules.module.register_module_forward_hook(hook))
    handle = register(layer.drop_path, keep)
    try:
        outputs = layer(hidden_states)
    finally:
        handle.remove()
    torch.testing.assert_close(hidden_states + kept[0], outputs)


def test_a_branch_may_pass_a_module_that_needs_its_output_for_the_backward(calls):
    layer = make_layer()
    layer.drop_path = torch.nn.Sigmoid()
    layer(torch.randn(2, 9, 32)).sum().backward()
    assert calls and layer.norm.weight.grad.abs().sum() > 0


@pytest.mark.parametrize("settings", [{"use_bias": True}, {"hidden_size": 20}, {"norm_type": "layer_norm"}], ids=str)
def test_other_layers_run_as_modules(calls, settings):
    layer = make_layer(**settings)
    assert layer(torch.randn(2, 9, layer.norm.weight.shape[0])).isfinite().all() and not calls


def test_other_precisions_run_as_modules(calls):
    layer, hidden_states = make_layer(), torch.randn(2, 9, 32)
    with torch.autocast("cpu", torch.float16):
        layer(hidden_states)
    assert not calls and not layer.half().can_fuse(hidden_states.half())


ISLANDS = ("A_log", "D", "dt_proj.bias")


def in_bfloat16(layer, keeps_islands):
    """The layer with weights in bfloat16, without or with those that a model keeps in float32."""
    for name, parameter in layer.named_parameters():
        if not (keeps_islands and name.endswith(ISLANDS)):
            parameter.data = parameter.data.bfloat16()
    return layer


@pytest.mark.parametrize("product_dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("residual_dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("how", ["islands", "all weights", "autocast"])
@pytest.mark.parametrize(
    ("batch_size", "length", "tile_size", "settings"), [(2, 300, 128, {}), (3, 70, 2048, {"bidirectional": False})]
)
def test_bfloat16_is_at_least_as_near_to_float64_as_the_modules_are(
    calls, monkeypatch, how, residual_dtype, product_dtype, batch_size, length, tile_size, settings
):
    monkeypatch.setattr(mamba_mixer, "TILE_SIZE", tile_size)
    monkeypatch.setenv(VARIABLE, f"products={str(product_dtype).removeprefix('torch.')},mixer=fused")
    layer = make_layer(**settings)
    if how != "autocast":
        layer = in_bfloat16(layer, how == "islands")
    hidden_states, weights = torch.randn(2, batch_size, length, 32).bfloat16().to(residual_dtype)

    def run(layer, *inputs, enabled=how == "autocast"):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            return values_and_gradients(layer, *inputs)

    fused = run(layer, hidden_states, weights)
    assert len(calls) == 2
    with monkeypatch.context() as patch:
        patch.setattr(type(layer), "can_fuse", lambda *_: False)
        modules = run(layer, hidden_states, weights)
        patch.setenv(dispatch.BACKEND_VARIABLE, "reference")
        exact = run(copy.deepcopy(layer).double(), hidden_states.double(), weights.double(), enabled=False)
    ratios = {}
    for name, wanted in exact.items():
        assert fused[name].dtype == modules[name].dtype
        distances = [torch.linalg.vector_norm(found[name].double() - wanted) for found in (fused, modules)]
        ratios[name] = (distances[0] / distances[1].clamp(min=1e-12)).item()
    # Products in bfloat16 round as often as the modules do, so that chance decides which gradient is nearer.
    limit = 1.0 if product_dtype == torch.float32 else 1.15
    assert sum(ratios.values()) / len(ratios) <= limit and max(ratios[""], ratios["inferred"]) <= limit, ratios


@pytest.mark.parametrize("is_autocast", [True, False])
def test_bfloat16_can_be_traced_compiled_and_checkpointed(calls, is_autocast):
    layer, (hidden_states, weights) = make_layer(), torch.randn(2, 2, 70, 32)
    if not is_autocast:
        layer = in_bfloat16(layer, keeps_islands=True)
    with torch.autocast("cpu", torch.bfloat16, enabled=is_autocast):
        expected = values_and_gradients(layer, hidden_states, weights)
        compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
        found = values_and_gradients(compiled, hidden_states, weights)
        layer.gradient_checkpointing = True
        layer._gradient_checkpointing_func = functools.partial(torch.utils.checkpoint.checkpoint, use_reentrant=False)
        again = values_and_gradients(layer.train(), hidden_states, weights)
    for name, wanted in expected.items():
        torch.testing.assert_close(found[name], wanted, atol=0, rtol=0)
        torch.testing.assert_close(again[name], wanted, atol=0, rtol=0)
    _, _, eps, in_proj, out_proj, directions, *dtypes, state = calls[0]
    assert dtypes == [torch.bfloat16, torch.float32] and state is None
    tensors = [hidden_states, layer.norm.weight, in_proj, out_proj, *(x for weights in directions for x in weights)]
    tensors = [tensor.detach().requires_grad_() for tensor in tensors]
    torch.library.opcheck(mamba_mixer.mixer_forward, (tensors, eps, True, *dtypes))
    tensors = [tensor.detach() for tensor in tensors]
    outputs, *kept = mamba_mixer.mixer_forward(tensors, eps, True, *dtypes)
    torch.library.opcheck(mamba_mixer.mixer_backward, (torch.randn_like(outputs), kept, tensors, eps, dtypes[1]))


def test_adapters_change_what_a_model_gives_and_are_trained(calls):
    model = make(VideoMambaForVideoClassification)
    clips = random_clips(model.config)
    before = model(clips).logits
    assert len(calls) == 3
    layers = ["in_proj", "x_proj", "dt_proj", "out_proj"]
    adapted = peft.get_peft_model(model, peft.LoraConfig(target_modules=layers, init_lora_weights=False))
    calls.clear()
    adapted(clips).logits.sum().backward()
    assert not calls and (adapted(clips).logits - before).abs().max() > 1e-4
    assert all(p.grad is not None for n, p in adapted.named_parameters() if "lora" in n)
    merged = adapted.merge_and_unload()
    torch.testing.assert_close(merged(clips).logits, adapted(clips).logits, atol=1e-5, rtol=1e-4)
    assert len(calls) == 6
