"""
VideoMamba on one GPU, bfloat16: its block against the original formulation (two flips, causal-conv1d, mamba-ssm's
compiled scan) and against the roof of the scan, and whole models beside VideoViT-B and Transformers' VideoMAE.

The roof is the longer of two times: that of the bytes which have to move, at the bandwidth of a large copy, and that
of the exponentials which have to be taken, at the rate of a kernel that does nothing else. Both are measured in the
same run. A speed-up is printed only when outputs and gradients agree. Where there is no peer, or no CUDA device, the
figures are missing, and the script says so. It takes about ten minutes on one GPU.

The peer is built from source, for the architecture of the machine only (here 9.0, of H100 and H200):

    export TORCH_CUDA_ARCH_LIST=9.0 CAUSAL_CONV1D_FORCE_BUILD=TRUE MAMBA_FORCE_BUILD=TRUE
    pip install --no-build-isolation --no-binary :all: --no-deps causal-conv1d mamba-ssm
    python benchmarks/videomamba_gpu.py [--batches 1 8 32] [--frames 8 64]
        [--model-batch 8] [--model-frames 8 16 32 64] [--smoke]
"""

import datetime
import importlib.metadata
import itertools
import sys
from collections.abc import Callable

import torch
from helpers.measurement import SKIPPED, make_parser
from transformers import AutoModelForVideoClassification, VideoMAEConfig

from hf_video import VideoMambaConfig, VideoMambaForVideoClassification, VideoViTConfig, selective_scan
from hf_video.models.videomamba.modeling_videomamba import VideoMambaMixer

DTYPE = torch.bfloat16
TOLERANCE = 0.03
VIDEOMAMBAS = {"VideoMamba-Ti": "tiny", "VideoMamba-S": "small", "VideoMamba-M": "middle"}
PASSES = {False: "forward", True: "forward+backward"}

Function = Callable[..., torch.Tensor]


def median_ms(function: Callable[[], object]) -> float:
    from triton.testing import do_bench

    return do_bench(function, warmup=50, rep=300, return_mode="median")


def graph_ms(function: Callable[[], object]) -> float:
    """Milliseconds of a replayed CUDA graph, without the time that launching takes on the host."""
    from triton.testing import do_bench_cudagraph

    return do_bench_cudagraph(function, rep=300, return_mode="median")


def copy_bandwidth() -> float:
    """Bytes read and written per second by a copy of 2 GiB."""
    source = torch.randn(2**29, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.nbytes / (1e-3 * median_ms(lambda: target.copy_(source)))


def exponential_rate() -> float:
    """2^x per second by a kernel that does nothing else, in registers."""
    import triton
    import triton.language as tl

    @triton.jit
    def take_exponentials(values, rounds, BLOCK: tl.constexpr, UNROLLED: tl.constexpr):
        offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        x = tl.load(values + offsets)
        for _round in range(rounds):
            for _step in tl.static_range(UNROLLED):
                x = tl.exp2(-x)
        tl.store(values + offsets, x)

    programs, block, unrolled, rounds = 4096, 1024, 16, 64
    values = torch.rand(programs * block, device="cuda")
    seconds = 1e-3 * median_ms(
        lambda: take_exponentials[(programs,)](values, rounds, BLOCK=block, UNROLLED=unrolled, num_warps=4)
    )
    return values.numel() * unrolled * rounds / seconds


def scan_roof(shape: tuple[int, int, int], state_size: int, backward: bool, bandwidth: float, rate: float) -> float:
    """
    Least milliseconds of one scan over (batch, channels, length).

    Moved: u and delta in, y out; for the backward u, delta and the gradient of y in, those of u and delta out. What
    belongs to B and C is small beside these. Taken: a decay for each state, once in each pass, and two of softplus.
    """
    batch_size, channels, length = shape
    elements = batch_size * channels * length
    num_bytes = elements * DTYPE.itemsize * (3 + 5 * backward)
    exponentials = elements * (state_size + 2) * (1 + backward)
    return 1e3 * max(num_bytes / bandwidth, exponentials / rate)


def load_peer() -> tuple[Function, Function] | str:
    """`causal_conv1d_fn` and `selective_scan_fn`, or why they are missing."""
    try:
        from causal_conv1d import causal_conv1d_fn
        from mamba_ssm.ops.selective_scan_interface import selective_scan_fn
    except ImportError as error:
        return f"{type(error).__name__}: {error}"
    return causal_conv1d_fn, selective_scan_fn


def original_mixer(mixer: VideoMambaMixer, peer: tuple[Function, Function]) -> Function:
    """The same mixer as in VideoMamba's code: for the backward direction inputs are flipped, scanned, gated, and
    flipped again."""
    causal_conv1d, scan_compiled = peer

    def run(hidden_states: torch.Tensor) -> torch.Tensor:
        projected = mixer.in_proj(hidden_states).mT
        outputs = []
        for scan in (mixer.forward_scan, mixer.backward_scan):
            x, z = (projected.flip(-1) if scan.reverse else projected).chunk(2, dim=1)
            x = causal_conv1d(x, scan.conv1d.weight[:, 0], scan.conv1d.bias, activation="silu")
            time_steps, B, C = scan.x_proj(x.mT).split(scan.sizes, dim=-1)
            delta = scan.dt_proj(time_steps).mT
            bias = scan.dt_proj.bias.float()
            B, C = B.mT.contiguous(), C.mT.contiguous()
            y = scan_compiled(x, delta, -scan.A_log.float().exp(), B, C, scan.D.float(), z, bias, True)
            outputs.append(y.flip(-1) if scan.reverse else y)
        return mixer.out_proj((outputs[0] + outputs[1]).mT)

    return run


def make_block(config: VideoMambaConfig) -> VideoMambaMixer:
    """The mixer of the first layer of a model with random weights; the published dtypes."""
    torch.manual_seed(0)
    model = VideoMambaForVideoClassification(config).to(DTYPE).cuda()
    mixer = model.videomamba.layers[0].mixer
    for scan in (mixer.forward_scan, mixer.backward_scan):
        for parameter in (scan.A_log, scan.D, scan.dt_proj.bias):
            parameter.data = parameter.data.float()
    return mixer


def as_pass(function: Function, inputs: list[torch.Tensor], leaves: list[torch.Tensor], backward: bool):
    """One call that can be timed; returns the output, and with `backward` the gradients of the leaves, too."""

    def run() -> tuple[torch.Tensor, ...]:
        with torch.set_grad_enabled(backward):
            output = function(*inputs)
        return (output, *(torch.autograd.grad(output, leaves, output.detach()) if backward else ()))

    return run


def worst_error(found: tuple[torch.Tensor, ...], wanted: tuple[torch.Tensor, ...]) -> float:
    """Largest norm of a difference, relative to the norm of the expected tensor; NaN if any value is NaN."""
    errors = [(a.float() - b.float()).norm() / b.float().norm() for a, b in zip(found, wanted, strict=True)]
    return torch.stack(errors).max().item()


def scan_inputs(shape: tuple[int, int, int], state_size: int) -> dict[str, torch.Tensor]:
    """The inputs of one scan, in the memory layout that a mixer gives them."""
    batch_size, channels, length = shape

    def randn(*sizes: int) -> torch.Tensor:
        return torch.randn(*sizes, device="cuda", dtype=DTYPE).mT.requires_grad_()

    weights = {
        "A": -torch.arange(1.0, 1 + state_size, device="cuda").expand(channels, -1).contiguous(),
        "D": torch.ones(channels, device="cuda"),
        "delta_bias": torch.full((channels,), -4.0, device="cuda"),
    }
    sequences = {name: randn(batch_size, length, channels) for name in ("u", "delta")}
    projections = {name: randn(batch_size, length, state_size) for name in ("B", "C")}
    return sequences | projections | {name: weight.requires_grad_() for name, weight in weights.items()}


def compare_scans(shape: tuple[int, int, int], config: VideoMambaConfig, rates: tuple[float, float]) -> None:
    """One scan alone against its roof."""
    inputs = scan_inputs(shape, config.state_size)

    def run_on(backend: str, backward: bool):
        def scan(*tensors: torch.Tensor) -> torch.Tensor:
            arguments = dict(zip(inputs, tensors, strict=True))
            return selective_scan(**arguments, delta_softplus=True, reverse=True, backend=backend)

        return as_pass(scan, list(inputs.values()), list(inputs.values()), backward)

    error = worst_error(run_on("triton", True)(), run_on("reference", True)())
    for backward, name in PASSES.items():
        roof = scan_roof(shape, config.state_size, backward, *rates)
        if error <= TOLERANCE:
            ours = graph_ms(run_on("triton", backward))
            print(f"  scan   {name:16}  {ours:8.3f} ms   roof {roof:8.3f} ms   {roof / ours:5.0%} of the roof")
        else:
            print(f"  scan   {name:16}  outputs differ from the reference's by {error:.1e}: no figure means anything")


def compare_blocks(
    mixer: VideoMambaMixer, batch_size: int, length: int, peer: tuple[Function, Function] | str
) -> None:
    hidden_states = torch.randn(batch_size, length, mixer.in_proj.in_features, device="cuda", dtype=DTYPE)
    inputs = [hidden_states.requires_grad_()]
    leaves = [*inputs, *mixer.parameters()]
    original = None if isinstance(peer, str) else original_mixer(mixer, peer)
    for backward, name in PASSES.items():
        ours = as_pass(mixer, inputs, leaves, backward)
        our_ms = median_ms(ours)
        line = f"  block  {name:16}  {our_ms:8.3f} ms"
        if original is None:
            print(f"{line}   original formulation missing ({peer})")
            continue
        theirs = as_pass(original, inputs, leaves, backward)
        error, peer_ms = worst_error(ours(), theirs()), median_ms(theirs)
        ratio = f"{peer_ms / our_ms:5.2f}x" if error <= TOLERANCE else f"outputs differ by {error:.1e}"
        print(f"{line}   original {peer_ms:8.3f} ms   {ratio}")


def make_model(name: str, num_frames: int) -> torch.nn.Module:
    torch.manual_seed(0)
    settings = {"num_frames": num_frames, "num_labels": 400}
    if name in VIDEOMAMBAS:
        config = VideoMambaConfig.preset(VIDEOMAMBAS[name], **settings, time_step_init_scheme="random")
        return AutoModelForVideoClassification.from_config(config)
    config = {"VideoViT-B": VideoViTConfig, "VideoMAE-B": VideoMAEConfig}[name](**settings)
    return AutoModelForVideoClassification.from_config(config, attn_implementation="sdpa")


def measure_model(name: str, num_frames: int, batch_size: int, backward: bool) -> str:
    """Clips per second and peak memory."""
    model = make_model(name, num_frames).cuda().to(torch.float32 if backward else DTYPE).train(backward)
    clips = torch.randn(batch_size, num_frames, 3, 224, 224, device="cuda", dtype=next(model.parameters()).dtype)
    labels = torch.zeros(batch_size, dtype=torch.long, device="cuda")

    def run() -> None:
        with torch.set_grad_enabled(backward), torch.autocast("cuda", DTYPE, enabled=backward):
            loss = model(clips, labels=labels).loss
        if backward:
            model.zero_grad()
            loss.backward()

    try:
        run()
        torch.cuda.reset_peak_memory_stats()
        milliseconds = median_ms(run)
    except torch.cuda.OutOfMemoryError:
        return "out of memory"
    memory = torch.cuda.max_memory_allocated() / 2**30
    return f"{1e3 * batch_size / milliseconds:8.1f} clips/s  {memory:6.2f} GiB"


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--batches", type=int, nargs="*", default=[1, 8, 32])
    parser.add_argument("--frames", type=int, nargs="*", default=[8, 64])
    parser.add_argument("--model-batch", type=int, default=8)
    parser.add_argument("--model-frames", type=int, nargs="*", default=[8, 16, 32, 64])
    arguments = parser.parse_args()
    if arguments.smoke:
        arguments.batches, arguments.frames, arguments.model_batch, arguments.model_frames = [1], [2], 1, [2]
    if not torch.cuda.is_available():
        print("No CUDA device was found: all figures of VideoMamba on a GPU are missing.", file=sys.stderr)
        sys.exit(SKIPPED)

    packages = ("torch", "triton", "mamba-ssm", "causal-conv1d")
    installed = {each.metadata["Name"]: each.version for each in importlib.metadata.distributions()}
    versions = ", ".join(f"{name} {installed.get(name, 'not installed')}" for name in packages)
    print(f"{datetime.date.today()}, {torch.cuda.get_device_name()}, {versions}, {DTYPE}")
    rates = copy_bandwidth(), exponential_rate()
    print(f"copy {rates[0] / 1e12:.2f} TB/s read and written, {rates[1] / 1e12:.2f} T exponentials/s")

    config = VideoMambaConfig.preset("middle")
    mixer, peer = make_block(config), load_peer()
    for num_frames, batch_size in itertools.product(arguments.frames, arguments.batches):
        length = 1 + 14 * 14 * num_frames
        print(f"VideoMamba-M, {num_frames} frames, batch {batch_size}")
        compare_scans((batch_size, config.intermediate_size, length), config, rates)
        compare_blocks(mixer, batch_size, length, peer)

    models = (*VIDEOMAMBAS, "VideoViT-B", "VideoMAE-B")
    for backward, num_frames, name in itertools.product((False, True), arguments.model_frames, models):
        kind = "training" if backward else "inference"
        figures = measure_model(name, num_frames, arguments.model_batch, backward)
        print(f"{name:13}  {kind:9}  {num_frames:3} frames, batch {arguments.model_batch}:  {figures}")


if __name__ == "__main__":
    main()
