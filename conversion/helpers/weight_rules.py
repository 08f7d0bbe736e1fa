"""Renames, joins, inflates and drops the tensors of a checkpoint by a table of rules, and checks their values."""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from einops import repeat
from torch import nn

from hf_video.settings import few

from .checkpoint import ConversionError, name_left_out

# Without eight-bit floats, whose scales are stored elsewhere.
FLOAT_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


class Rule(NamedTuple):
    """What happens to the tensors whose whole names match the regular expression `source`: they get a `target`, with
    the groups of the match filled in, and another form by `transform`, which may return several tensors by the words
    that take the place of `*`. Without a target they are dropped, for a `reason`."""

    source: str
    target: str | None
    transform: Callable[[torch.Tensor], torch.Tensor | dict[str, torch.Tensor]] = lambda tensor: tensor
    reason: str = ""


# The rule that one tensor gets another name and, with a transform, another form.
rename = Rule


def drop(source: str, reason: str) -> Rule:
    """The rule that tensors are left out, for a reason."""
    return Rule(source, None, reason=reason)


def inside(source: str, rules: Iterable[Rule], move: Callable[[str], str]) -> list[Rule]:
    """The rules of a model that is a part of another one: its names stand after `source`, and `move` gives the target
    that a target has there."""
    return [
        rule._replace(source=f"{source}(?:{rule.source})", target=rule.target and move(rule.target)) for rule in rules
    ]


def apply_rules(weights: dict[str, torch.Tensor], rules: Iterable[Rule]) -> dict[str, torch.Tensor]:
    """Rename, transform and drop tensors; the first rule with a matching source decides. What is dropped is named. A
    tensor that is unknown, kept and not finite, or a second one for its place is a `ConversionError`."""
    converted: dict[str, torch.Tensor] = {}
    unknown, dropped = [], defaultdict(list)
    for name, tensor in weights.items():
        for rule in rules:
            if match := re.fullmatch(rule.source, name):
                break
        else:
            unknown.append(name)
            continue
        if rule.target is None:
            dropped[rule.reason].append(name)
            continue
        check_values(name, tensor)
        target = match.expand(rule.target)
        try:
            made = rule.transform(tensor)
        except (RuntimeError, ValueError, IndexError) as error:
            raise ConversionError(f"{target} cannot be made of {name} {tuple(tensor.shape)}: {error}") from error
        for word, part in (made if isinstance(made, dict) else {"*": made}).items():
            place = target.replace("*", word)
            if place in converted:
                raise ConversionError(f"The tensor {name} is a second one for {place}: keep one of them.")
            converted[place] = part
    if unknown:
        raise ConversionError(f"{len(unknown)} tensors of the checkpoint are unknown: {few(sorted(unknown))}.")
    for reason, names in dropped.items():
        name_left_out(names, reason)
    return converted


def load_converted(model: nn.Module, weights: dict[str, torch.Tensor], keep_initial: Iterable[str] = ()) -> None:
    """Load weights into a model. Those whose whole names match one of `keep_initial` may be absent, and stay as
    initialised. Others that are missing, superfluous or of another shape are listed in a `ConversionError`."""
    expected = model.state_dict()
    missing = [
        name for name in expected if name not in weights and not any(re.fullmatch(k, name) for k in keep_initial)
    ]
    superfluous = [name for name in weights if name not in expected]
    misshapen = [
        f"{name} {tuple(weights[name].shape)} instead of {tuple(tensor.shape)}"
        for name, tensor in expected.items()
        if name in weights and weights[name].shape != tensor.shape
    ]
    problems = {"missing": missing, "superfluous": superfluous, "of another shape": misshapen}
    if any(problems.values()):
        listed = "; ".join(f"{kind}: {few(names)}" for kind, names in problems.items() if names)
        raise ConversionError(f"The checkpoint does not fit {type(model).__name__}. {listed}.")
    model.load_state_dict(weights, strict=False)


def check_values(name: str, tensor: torch.Tensor) -> None:
    """Refuse (`ConversionError`) a tensor unless it is dense, of floating-point numbers that are finite as float32."""
    if tensor.dtype not in FLOAT_DTYPES or tensor.layout != torch.strided:
        raise ConversionError(f"The tensor {name} is of {tensor.dtype} and {tensor.layout}, which no weight is.")
    if tensor.is_meta:
        return
    finite = tensor.detach().float().isfinite()
    if not finite.all():
        broken = finite.numel() - int(finite.sum())
        raise ConversionError(
            f"The tensor {name} has {broken} of {finite.numel()} values that are NaN or infinite in float32: the "
            "training diverged or the file is damaged, so take an earlier checkpoint."
        )


def inflate_patches(kernel: torch.Tensor, tubelet_size: int, inflation: str) -> torch.Tensor:
    """A kernel `(hidden_size, num_channels, tubelet_size, height, width)` that gives a still video the tokens of its
    image. `"mean"` shares the weights out over the frames ("Quo Vadis, Action Recognition?", arXiv 1705.07750, section
    2.4); anything else gives all to the middle frame (ViViT, arXiv 2103.15691, section 3.4)."""
    if inflation == "mean":
        return repeat(kernel / tubelet_size, "d c h w -> d c t h w", t=tubelet_size)
    inflated = kernel.new_zeros(*kernel.shape[:2], tubelet_size, *kernel.shape[2:])
    inflated[:, :, tubelet_size // 2] = kernel
    return inflated
