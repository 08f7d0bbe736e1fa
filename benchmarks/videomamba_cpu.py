"""
VideoMamba-M on the CPU, 8 x 224 x 224, float32, batch 1: against its own matrix products timed alone, and against the
same model on the scan of Transformers' Mamba. A figure is printed only when the outputs on both scans agree.

Then it prints time in bfloat16 and under autocast, next to float32 and to the matrix products in bfloat16, and the
memory of training on 32 frames: only where the outputs are at least as near to float32 as they are without the fused
mixer. At last it prints what the parts of the `cpu` backend are worth that cost the most to keep: time and memory
without each, as a multiple of those with it. All of it takes about thirteen minutes on 2 CPU cores. `--bfloat16`,
`--parts` and `--bound` print their part alone, in six minutes, in four and in two. The bound is the least time: the
matrix products, and the least instructions of all updates of the states. `videomamba_lengths.py` measures longer
clips.

    python benchmarks/videomamba_cpu.py [--rounds 3] [--threads 2] [--parts] [--bfloat16] [--bound] [--smoke]
"""

import functools
import importlib.util
import os
import time
from collections.abc import Callable
from unittest import mock

import torch
import torch.nn.functional as F
from helpers.clip_models import (
    SMALL,
    in_bfloat16,
    make_clip,
    make_model,
    measure,
    run_model,
    sizes,
    without_mixer,
)
from helpers.measurement import (
    in_own_process,
    make_parser,
    peak_memory,
    print_machine,
    print_ratio,
    require_agreement,
)
from transformers.models.mamba.modeling_mamba import mamba_selective_scan

from hf_video import VideoMambaConfig, VideoMambaForVideoClassification, selective_scan
from hf_video.ops import numba_threads
from hf_video.ops.selective_scan.dispatch import BACKEND_VARIABLE, BACKENDS, Backend
from hf_video.ops.selective_scan.reference import add_and_gate

TOLERANCE = 1e-3
PASSES = {False: "forward", True: "forward+backward"}


def transformers_scan(inputs):
    """Mamba's scan in Transformers as a backend; it has one direction, no groups, no initial state and no addend."""
    u, delta, A, B, C, D, z, delta_bias, delta_softplus, reverse, _, addend = inputs
    sequences = (u, delta, B[:, 0], C[:, 0])
    u, delta, B, C = (tensor.flip(-1) for tensor in sequences) if reverse else sequences
    output = mamba_selective_scan(u, delta, A, B, C, D, None, delta_bias, delta_softplus)
    return add_and_gate(output.flip(-1) if reverse else output, addend, z), None


def make_products(
    model: torch.nn.Module, clip: torch.Tensor, dtype: torch.dtype = torch.float32
) -> Callable[[bool], None]:
    """The matrix products of one pass, with the patch embedding, on tensors of the shapes that the model has."""
    shapes = []

    def record(module, inputs, output):
        rows = output.shape[1:-1].numel() if isinstance(module, torch.nn.Linear) else output.shape[2:].numel()
        shapes.append((rows, module.weight[0].numel(), module.weight.shape[0]))

    kinds = torch.nn.Linear | torch.nn.Conv3d
    handles = [module.register_forward_hook(record) for module in model.modules() if isinstance(module, kinds)]
    with torch.no_grad():
        model(clip)
    for handle in handles:
        handle.remove()
    pairs = {
        (rows, width, size): (
            torch.randn(rows, width, dtype=dtype),
            torch.randn(size, width, dtype=dtype, requires_grad=True),
        )
        for rows, width, size in shapes
    }
    # Pixels need no gradient.
    for x, _ in [pairs[shape] for shape in shapes[1:]]:
        x.requires_grad_()

    def run(backward: bool) -> None:
        for shape in shapes:
            output = F.linear(*pairs[shape])
            if backward:
                output.backward(output.detach())

    return run


def compare_model(rounds: int) -> None:
    model, clip = make_model("videomamba", 8).eval(), make_clip(8)
    seconds, logits = {}, {}
    for backend in ("transformers", "cpu"):
        os.environ[BACKEND_VARIABLE] = backend
        with torch.no_grad():
            start = time.perf_counter()
            logits[backend] = model(clip).logits
            seconds[backend] = time.perf_counter() - start
    error = (logits["cpu"] - logits["transformers"]).abs().max() / logits["transformers"].abs().max()
    require_agreement("The logits on both scans", error.item(), TOLERANCE)
    runs = {"model": run_model(model, clip), "products": make_products(model, clip)}
    for backward, name in PASSES.items():
        least = measure(runs, backward, rounds)
        ratio = least["model"] / least["products"]
        print(f"{name:16}  model {least['model']:6.2f} s  products {least['products']:6.2f} s  {ratio:5.2f}x")
        if not backward:
            slow = seconds["transformers"]
            print(f"{'':16}  on Transformers' eager scan {slow:6.2f} s  {slow / least['model']:.1f} times as long")
            print_ratio(f"{name}, float32", least["model"] / slow, "Transformers' eager scan")
        print_ratio(f"{name}, float32", ratio, "its matrix products", is_limit=True)


def compare_bfloat16(rounds: int) -> None:
    model, clip = make_model("videomamba", 8).eval(), make_clip(8)
    narrow = in_bfloat16(model)
    autocast = torch.autocast("cpu", torch.bfloat16)
    with torch.no_grad():
        exact, fused = model(clip).logits, narrow(clip).logits
        modules = without_mixer(lambda: narrow(clip).logits, narrow)()
        mixed = autocast(model)(clip).logits
        mixed_modules = without_mixer(lambda: autocast(model)(clip).logits, model)()
    for name, found, allowed in (("bfloat16", fused, modules), ("autocast", mixed, mixed_modules)):
        error, tolerance = ((logits - exact).norm().item() / exact.norm().item() for logits in (found, allowed))
        print(f"{name:16}  relative error of the logits {error:.1e}, without the fused mixer {tolerance:.1e}")
        require_agreement(f"The logits in float32 and in {name}", error, tolerance)
    runs = {
        "float32": run_model(model, clip),
        "bfloat16": run_model(narrow, clip),
        "autocast": autocast(run_model(model, clip)),
        "without the fused mixer": without_mixer(run_model(narrow, clip), narrow),
        "float32 products": make_products(model, clip),
        "bfloat16 products": make_products(model, clip, torch.bfloat16),
    }
    for backward, name in PASSES.items():
        seconds = measure(runs, backward, rounds)
        print_ratio(f"{name}, bfloat16", seconds["bfloat16"] / seconds["float32"], "the same in float32")
        limit = seconds["bfloat16"] / seconds["bfloat16 products"]
        print_ratio(f"{name}, bfloat16", limit, "its matrix products", is_limit=True)
        for kind, value in seconds.items():
            ratios = [value / seconds[other] for other in ("bfloat16 products", "float32")]
            print(
                f"{name:16}  {kind:24} {value:6.2f} s  {ratios[0]:5.2f}x bfloat16 products  {ratios[1]:5.2f}x float32"
            )


def compare_scans(rounds: int) -> None:
    """One direction of one layer: 1,152 channels x 1,569 tokens x 16 states."""
    channels, length = (64, 33) if sizes else (1152, 1569)
    u, delta = torch.randn(1, length, channels).mT, torch.randn(1, length, channels).mT - 3
    A, D, bias = -torch.rand(channels, 16) - 0.1, torch.ones(channels), torch.zeros(channels)
    B, C = torch.randn(1, 16, length), torch.randn(1, 16, length)
    settings = {"eager": {}, "compiled use_associative_scan": {"use_associative_scan": True}}
    if importlib.util.find_spec("mambapy"):
        settings["mambapy"] = {"use_mambapy": True}
    else:
        print("mambapy is not installed: `pip install mambapy` to have it measured.")
    expected = selective_scan(u, delta, A, B, C, D, delta_bias=bias, delta_softplus=True, backend="cpu")
    runs = {"ours": lambda: selective_scan(u, delta, A, B, C, D, None, bias, True, backend="cpu")}
    for name, options in settings.items():
        function = mamba_selective_scan
        if "compiled" in name:
            # The compiler takes most of a minute.
            function = torch.compile(function, disable=bool(sizes))
        runs[f"Transformers, {name}"] = lambda function=function, options=options: function(
            u, delta, A, B, C, D, None, bias, True, **options
        )
    found = {}
    for name, run in runs.items():
        with torch.no_grad():
            error = (run() - expected).abs().max() / expected.abs().max()
        require_agreement(f"The outputs of the scans, ours and {name},", error.item(), TOLERANCE)
        milliseconds = 1e3 * measure({name: lambda _, run=run: run()}, False, rounds)[name]
        print(f"one scan, {name:44}  {milliseconds:7.1f} ms")
        found[name] = milliseconds
    for name in list(found)[1:]:
        print_ratio("one scan", found["ours"] / found[name], name)


def measure_memory(family: str, num_frames: int) -> float:
    """Peak memory in GiB of a forward and a backward pass."""
    run_model(make_model(family, num_frames).eval(), make_clip(num_frames))(True)
    return peak_memory()


def measure_part_memory(num_frames: int, is_fused: bool) -> float:
    """Peak memory in GiB of a training step."""
    model = make_part_model("middle", num_frames, 224, 8)
    run = run_model(model, make_clip(num_frames))
    (run if is_fused else without_mixer(run, model))(True)
    return peak_memory()


def make_part_model(preset: str, num_frames: int, image_size: int, num_layers: int) -> torch.nn.Module:
    torch.manual_seed(0)
    settings = {"num_frames": num_frames, "image_size": image_size, "num_hidden_layers": num_layers} | sizes
    return VideoMambaForVideoClassification(
        VideoMambaConfig.preset(preset, **settings, time_step_init_scheme="random")
    ).eval()


def compare_parts(rounds: int) -> None:
    for preset, num_frames, image_size, num_layers in (("middle", 8, 224, 4), ("tiny", 4, 112, 24)):
        model = make_part_model(preset, num_frames, image_size, num_layers)
        image_size = model.config.image_size
        clip = torch.randn(1, num_frames, 3, image_size, image_size)
        run, forward = run_model(model, clip), functools.partial(model, clip)
        with torch.no_grad():
            whole, unfused = forward().logits, without_mixer(forward, model)().logits
        error = (whole - unfused).abs().max() / whole.abs().max()
        require_agreement("The logits with and without the fused mixer", error.item(), TOLERANCE)
        runs = {
            "whole": run,
            "the fused mixer": without_mixer(run, model),
            "PyTorch's threads": mock.patch.object(numba_threads, "openmp_team", lambda: None)(run),
        }
        for backward, name in PASSES.items():
            seconds = measure(runs, backward, rounds)
            least = seconds.pop("whole")
            ratios = [f"without {part} {value / least:5.2f}x" for part, value in seconds.items()]
            print(f"{preset:6}  {name:16}  {1e3 * least:7.1f} ms  {'  '.join(ratios)}")


def compare_vectors(rounds: int) -> None:
    """The scan of one block of channels, and the same in loops that the compiler vectorises by itself."""
    import numba
    import numpy as np

    from hf_video.ops import numba_vectors as v
    from hf_video.ops.cpu_kernels import scan_forward_unit

    E0, E1, E2, E3, E4, ONE, LANES = v.E0, v.E1, v.E2, v.E3, v.E4, v.ONE, v.LANES
    HALF, BIAS, SHIFT = np.float32(0.5), np.int32(127), np.int32(23)

    @numba.njit(cache=True, error_model="numpy", fastmath={"contract", "reassoc", "nnan", "ninf", "nsz"})
    def scan_by_loops(u, delta, rates, B, C, D, state, y):
        scaled, output, mantissa = (
            np.empty(LANES, np.float32),
            np.empty(LANES, np.float32),
            np.empty(LANES, np.float32),
        )
        bits = np.empty(LANES, np.int32)
        powers = bits.view(np.float32)
        for t in range(u.shape[1]):
            for lane in range(LANES):
                scaled[lane] = delta[0, t, lane] * u[0, t, lane]
                output[lane] = D[lane] * u[0, t, lane]
            for n in range(rates.shape[1]):
                for lane in range(LANES):
                    x = max(delta[0, t, lane] * rates[0, n, lane], -126.0)
                    whole = np.floor(x + HALF)
                    f = x - whole
                    mantissa[lane] = f * (f * (f * (f * (f * E4 + E3) + E2) + E1) + E0) + ONE
                    bits[lane] = (np.int32(whole) + BIAS) << SHIFT
                for lane in range(LANES):
                    h = mantissa[lane] * powers[lane] * state[0, 0, n, lane] + scaled[lane] * B[0, t, 0, n]
                    state[0, 0, n, lane] = h
                    output[lane] += h * C[0, t, 0, n]
            y[0, t] = output

    length, num_states, random = 1569, 16, np.random.default_rng(0)
    u, delta, B, C, D = (
        random.standard_normal(shape, np.float32)
        for shape in ((1, length, LANES),) * 2 + ((1, length, 1, num_states),) * 2 + ((LANES,),)
    )
    delta, rates = abs(delta), -random.random((1, num_states, LANES), np.float32)
    borders, outputs = np.empty((1, 0, 1, num_states, LANES), np.float32), np.empty((2, *u.shape), np.float32)

    def with_vectors(_: bool) -> None:
        state = np.zeros((1, 1, num_states, LANES), np.float32)
        options = (False, None, False, 0, 0, 0, 1)
        scan_forward_unit(u, delta, rates, B, C, D, np.zeros_like(D), state, outputs[0], borders, *options)

    def with_loops(_: bool) -> None:
        scan_by_loops(u, delta, rates, B, C, D, np.zeros((1, 1, num_states, LANES), np.float32), outputs[1])

    seconds = measure({"vectors": with_vectors, "loops": with_loops}, False, rounds)
    error = np.max(abs(outputs[0] - outputs[1]) - 1e-3 * abs(outputs[1]))
    require_agreement("The scans with and without vectors", error, 1e-4)
    ratio = seconds["loops"] / seconds["vectors"]
    print(f"scan of {LANES} channels, forward  {1e3 * seconds['vectors']:7.2f} ms  without vectors {ratio:5.2f}x")


def make_updates(
    model: VideoMambaForVideoClassification, num_tokens: int, is_rough: bool, threads: int
) -> Callable[[bool], None]:
    """
    The least instructions of all updates of the states of a pass, on registers and the nearest cache.

    An update of the forward is one power, a product and two multiply-adds. The backward computes the states again,
    and has two more products and six more multiply-adds: the gradient of the state, before and after its decay, those
    of B, C, the input and the exponent, and from this those of the step and the rate.
    """
    import numpy as np

    from hf_video.ops.numba_vectors import (
        LANES,
        compiled,
        exp2_of_product,
        load,
        multiply_add,
        rough_exp2_of_product,
        store,
    )

    power = rough_exp2_of_product if is_rough else exp2_of_product

    @compiled
    def update_unit(numbers, results, backward, count):
        """States are independent, so that each processor can work on several at once."""
        step, output = load(numbers, (0, 0)), load(numbers, (1, 0))
        dB = dC = dinput = dstep = drate = output
        for _ in range(count // len(results)):
            for n in range(len(results)):
                decay = power(step, load(numbers, (n, 0)))
                state = multiply_add(decay, load(results, (n, 0)), step * numbers[n, 0])
                output = multiply_add(state, numbers[n, 1], output)
                if backward is not None:
                    grad = multiply_add(output, numbers[n, 2], decay)
                    faded = grad * decay
                    exponent = faded * state
                    dB = multiply_add(grad, step, dB)
                    dC = multiply_add(output, state, dC)
                    dinput = multiply_add(grad, numbers[n, 3], dinput)
                    dstep = multiply_add(exponent, load(numbers, (n, 0)), dstep)
                    drate = multiply_add(exponent, step, drate)
                store(results, (n, 0), state)
        store(results, (0, 0), output + dB + dC + dinput + dstep + drate)

    config = model.config
    states = config.hidden_size * config.expand * 2 * config.num_hidden_layers
    count = num_tokens * states * config.state_size // LANES // (4 * threads)
    numbers = np.full((config.state_size, LANES), -1e-3, np.float32)

    def run(backward: bool) -> None:
        for kind in (None, True) if backward else (None,):
            units = [(np.zeros_like(numbers), kind, count) for _ in range(4 * threads)]
            numba_threads.run_units(update_unit, (numbers,), units)

    return run


def compare_bound(rounds: int) -> None:
    """The model against its least time: its products in the quickest dtype, and the updates of its states."""
    model, clip = make_part_model("middle", 8, 224, 8), make_clip(8)
    with torch.no_grad():
        num_tokens = model.base_model(clip).last_hidden_state.shape[1]
        whole, unfused = model(clip).logits, without_mixer(lambda: model(clip).logits, model)()
    error = (whole - unfused).abs().max() / whole.abs().max()
    require_agreement("The logits with and without the fused mixer", error.item(), TOLERANCE)
    products = {dtype: make_products(model, clip, dtype) for dtype in (torch.float32, torch.bfloat16)}
    seconds = measure(products, False, 1)
    for dtype, candidate in ((torch.float32, model), (torch.bfloat16, in_bfloat16(model))):
        name = str(dtype).removeprefix("torch.")
        runs = {
            "model": run_model(candidate, clip),
            "products": products[min((torch.float32, dtype), key=seconds.__getitem__)],
            "updates": make_updates(model, num_tokens, dtype == torch.bfloat16, torch.get_num_threads()),
        }
        for backward, kind in PASSES.items():
            times = measure(runs, backward, rounds)
            ratio = times["model"] / (times["products"] + times["updates"])
            print(
                f"{kind:16}  {name:8}  model {times['model']:6.2f} s  products {times['products']:6.2f} s  "
                f"updates {times['updates']:6.2f} s  {ratio:5.2f}x"
            )
            print_ratio(f"{kind}, 8 layers, {name}", ratio, "its matrix products and updates", is_limit=True)
    print(f"memory of both models and passes   {peak_memory():5.2f} GiB")


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--parts", action="store_true")
    parser.add_argument("--bfloat16", action="store_true")
    parser.add_argument("--bound", action="store_true")
    arguments = parser.parse_args()
    if arguments.smoke:
        sizes.update(SMALL)
        arguments.rounds = 1
    run_apart = functools.partial(in_own_process, arguments.threads)
    BACKENDS["transformers"] = Backend(transformers_scan, lambda situation: None, automatic=False)
    print_machine("torch", "transformers", threads=arguments.threads)
    num_frames = 2 if arguments.smoke else 32
    if not arguments.parts and not arguments.bfloat16:
        run_apart(compare_bound, arguments.rounds)
    if arguments.bound:
        return
    if not arguments.parts and not arguments.bfloat16:
        run_apart(compare_model, arguments.rounds)
        run_apart(compare_scans, arguments.rounds)
    if not arguments.parts:
        run_apart(compare_bfloat16, arguments.rounds)
        for family in ("videomamba", "videomamba-bfloat16"):
            memory = run_apart(measure_memory, family, num_frames)
            print(f"forward+backward  {family:20}  {num_frames:3} frames  {memory:6.2f} GiB")
    if arguments.bfloat16:
        return
    run_apart(compare_parts, arguments.rounds)
    whole, unfused = (run_apart(measure_part_memory, num_frames, is_fused) for is_fused in (True, False))
    ratio = unfused / whole
    print(f"training on {num_frames} frames, 8 layers   {whole:5.2f} GiB  without the fused mixer {ratio:5.2f}x")
    run_apart(compare_vectors, 5 * arguments.rounds)


if __name__ == "__main__":
    main()
