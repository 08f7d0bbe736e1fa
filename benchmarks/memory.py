"""
Memory of training V-JEPA 2 ViT-L, by the way of training and the length of a clip: what fits on a card.

Nothing of that size is computed: a step runs on tensors without contents (`FakeTensorMode`), and the largest sum of
tensors that are alive at once is counted: weights, gradients, states of AdamW, what is saved for the backward pass,
and what both passes make on their way. A step has one clip of 256 x 256 pixels. A small model is counted in the same
way, and really trained on this CPU, where the profiler tells what PyTorch's allocator held at most. It takes about 5
minutes on a CPU core.

Not counted: the context of CUDA, workspaces of its kernels, and gaps between tensors.

    python benchmarks/memory.py [--smoke]
"""

import gc
import weakref
from typing import Any, NamedTuple

import torch
from helpers.measurement import make_parser, print_machine
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.profiler import profile
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from hf_video.models.videovit import VideoViTConfig, VideoViTForFrameClassification, VideoViTForVideoClassification
from hf_video.training import add_lora, freeze_layers, make_linear_probe

VITL = {"image_size": 256, "hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16}
SMALL = {"image_size": 128, "hidden_size": 192, "num_hidden_layers": 12, "num_attention_heads": 3}
VJEPA2: dict[str, Any] = {
    **{"position_embedding_type": "rope", "rope_theta": 10000.0, "rope_layout": "vjepa2", "key_bias": True},
    **{"use_mean_pooling": False, "use_final_norm": True, "num_labels": 100},
}
LORA_RANK = 16


class Way(NamedTuple):
    """A way of training: how much of the model learns, and how."""

    name: str
    half: bool = True  # bfloat16 of autocast
    recompute: bool = False
    frozen: float = 0.0  # share of the layers
    lora: bool = False
    probe: bool = False
    frames: bool = False
    train: bool = True


WAYS = (
    Way("whole model, float32 (`--no-bf16`)", half=False),
    Way("whole model"),
    Way("whole model, `--gradient-checkpointing`", recompute=True),
    Way("first half of the layers frozen (`--freeze-layers 13`)", frozen=0.5),
    Way("half frozen, `--gradient-checkpointing`", frozen=0.5, recompute=True),
    Way(f"LoRA (`--lora-rank {LORA_RANK}`)", lora=True),
    Way("LoRA, `--gradient-checkpointing`", lora=True, recompute=True),
    Way("encoder frozen (`--linear-probe --pooler-type attentive`)", probe=True),
    Way("frame labels, first half frozen; clips of a long video", frozen=0.5, frames=True),
    Way("frame labels, encoder frozen; clips of a long video", frozen=1.0, frames=True),
    Way("frame labels of a long video by the trained model, float32", half=False, frames=True, train=False),
)


class Counted(NamedTuple):
    """Bytes."""

    fixed: int  # weights and states of AdamW
    peak: int  # what else a step has at most


class LiveTensors(TorchDispatchMode):
    """Bytes of the tensors that operators made and that are still alive, and the most that there were."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = self.peak = 0
        self.known = weakref.WeakKeyDictionary[torch.UntypedStorage, None]()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        inputs = {each.untyped_storage()._cdata for each in tree_leaves((args, kwargs)) if torch.is_tensor(each)}
        outputs = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(outputs):
            if torch.is_tensor(tensor) and (storage := tensor.untyped_storage())._cdata not in inputs:
                if storage not in self.known:
                    self.known[storage] = None
                    self.add(storage.nbytes())
                    weakref.finalize(storage, self.add, -storage.nbytes())
        return outputs

    def add(self, number: int) -> None:
        self.bytes += number
        self.peak = max(self.peak, self.bytes)


def make_model(way: Way, sizes: dict[str, int], num_frames: int) -> Any:
    """A model of random weights, prepared as `hf-video train` does."""
    pooler = {"pooler_type": "attentive"} if way.probe else {}
    config = VideoViTConfig(
        **VJEPA2, **sizes, **pooler, intermediate_size=4 * sizes["hidden_size"], num_frames=num_frames
    )
    # Adapters join a model on the meta device: PEFT makes tensors of its own.
    with torch.device("meta"):
        model = (VideoViTForFrameClassification if way.frames else VideoViTForVideoClassification)(config)
        freeze_layers(model, round(way.frozen * config.num_hidden_layers) + 1 if way.frozen else 0)
        if way.probe:
            make_linear_probe(model, with_pooler=True)
        if way.recompute:
            model.gradient_checkpointing_enable()
        model = add_lora(model, LORA_RANK) if way.lora else model
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            empty = torch.empty(parameter.shape).normal_(std=0.02)
            setattr(module, name, torch.nn.Parameter(empty, requires_grad=parameter.requires_grad))
        # As autocast does on a GPU, but not on a CPU.
        if way.half and isinstance(module, torch.nn.LayerNorm):
            module.register_forward_pre_hook(lambda _, inputs: (inputs[0].float(),))
    return model.train(way.train)


def step(model: Any, way: Way, sizes: dict[str, int], num_frames: int) -> None:
    """Forward and backward pass of one clip."""
    clip = torch.rand(1, num_frames, 3, sizes["image_size"], sizes["image_size"])
    with torch.autocast("cpu", torch.bfloat16, enabled=way.half), torch.set_grad_enabled(way.train):
        logits = model(pixel_values=clip).logits
        loss = logits.float().logsumexp(-1).mean()
    if way.train:
        loss.backward()


def count(way: Way, sizes: dict[str, int], num_frames: int) -> Counted:
    with FakeTensorMode(allow_non_fake_inputs=True):
        model = make_model(way, sizes, num_frames)
        fixed = count_fixed(model, way)
        with LiveTensors() as live:
            step(model, way, sizes, num_frames)
    return Counted(fixed, live.peak)


def count_fixed(model: Any, way: Way) -> int:
    """Bytes of weights, and of the two states of AdamW for those that learn."""
    sizes = [(each.nbytes, each.requires_grad and way.train) for each in model.parameters()]
    return sum(number * (3 if learns else 1) for number, learns in sizes)


def measure(way: Way, sizes: dict[str, int], num_frames: int) -> int:
    """The bytes that the allocator of this CPU held at most in a step, beyond those before it."""
    model = make_model(way, sizes, num_frames)
    gc.collect()
    with profile(profile_memory=True) as profiler:
        step(model, way, sizes, num_frames)
    events = [each for each in profiler.profiler.kineto_results.events() if each.name() == "[memory]"]
    held = peak = 0
    for event in sorted(events, key=lambda each: each.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    return peak


def tell(way: Way, cells: list[str]) -> None:
    print(f"| {' | '.join([way.name, *cells])} |", flush=True)


def main() -> None:
    parser = make_parser(__doc__)
    smoke = parser.parse_args().smoke
    torch.set_num_threads(1)
    print_machine("torch", "transformers", "peft", threads=1)
    sizes, lengths = (SMALL | {"num_hidden_layers": 2}, (4, 8)) if smoke else (VITL, (16, 32, 64))
    print("\nGB of a step with one clip, counted\n")
    print(f"| | weights, AdamW | {' | '.join(f'{length} frames' for length in lengths)} |")
    print("|---|---|" + "---|" * len(lengths))
    for way in WAYS:
        found = [count(way, sizes, length) for length in lengths]
        tell(way, [f"{found[0].fixed / 1e9:.1f}", *(f"{sum(each) / 1e9:.1f}" for each in found)])
    small, length = (sizes, 4) if smoke else (SMALL, 16)
    print("\nMB of a step beyond weights and AdamW, of a small model\n\n| | counted | measured | difference |")
    print("|---|---|---|---|")
    for way in WAYS:
        counted, measured = count(way, small, length).peak, measure(way, small, length)
        tell(way, [f"{counted / 1e6:.1f}", f"{measured / 1e6:.1f}", f"{counted / measured - 1:+.1%}"])


if __name__ == "__main__":
    main()
