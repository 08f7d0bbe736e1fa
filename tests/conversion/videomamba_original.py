"""
The original VideoMamba from its formulas, in float64 and one number after the other; and checkpoints of it with random
numbers, for any arguments of its constructors.

Equations: https://arxiv.org/abs/2403.06977 (sections 3.1 and 3.3) and https://arxiv.org/abs/2312.00752 (algorithm 2).
"""

from typing import Any

import torch
import torch.nn.functional as F

DEFAULTS: dict[str, Any] = {
    "patch_size": 16,
    "channels": 3,
    "kernel_size": 1,
    "ssm_cfg": {},
    "norm_epsilon": 1e-5,
    "rms_norm": True,
    "fused_add_norm": True,
    "bimamba": True,
    "clip_norm_type": "l2",
    "clip_student_return_interval": 1,
}
SSM_DEFAULTS = {"d_state": 16, "d_conv": 4, "expand": 2, "dt_rank": "auto", "bias": False, "conv_bias": True}


def pair(size: int | list[int]) -> list[int]:
    return [size, size] if isinstance(size, int) else size


def grid_of(kwargs: dict[str, Any]) -> list[int]:
    """Rows and columns of patches; the constructor for images has a stride of 16 unless it is told another."""
    patch = pair(kwargs.get("patch_size", 16))
    stride = patch if "num_frames" in kwargs else pair(kwargs.get("stride", 16))
    sizes = zip(pair(kwargs["img_size"]), patch, stride, strict=True)
    return [(size - length) // step + 1 for size, length, step in sizes]


def random_weights(**kwargs: Any) -> dict[str, torch.Tensor]:
    """
    A state dict of the original.

    Args:
        kwargs: of its constructor; with `num_frames` that for videos, with `clip_output_dim` that for pre-training.
    """
    settings, ssm = {**DEFAULTS, **kwargs}, {**SSM_DEFAULTS, **kwargs.get("ssm_cfg", {})}
    generator = torch.Generator().manual_seed(0)
    width, state_size = settings["embed_dim"], ssm["d_state"]
    inner = int(ssm["expand"] * width)
    rank = -(-width // 16) if ssm["dt_rank"] == "auto" else ssm["dt_rank"]
    is_video = "num_frames" in settings
    kernel = [settings["kernel_size"]] if is_video else []
    rows, columns = grid_of(kwargs)
    shapes: dict[str, tuple[int, ...]] = {
        "patch_embed.proj.weight": (width, settings["channels"], *kernel, *pair(settings["patch_size"])),
        "patch_embed.proj.bias": (width,),
        "cls_token": (1, 1, width),
        "pos_embed": (1, 1 + rows * columns, width),
    }
    if is_video:
        shapes["temporal_pos_embedding"] = (1, settings["num_frames"] // settings["kernel_size"], width)
    pre_trains = "clip_output_dim" in settings
    norms = [f"layers.{i}.norm" for i in range(settings["depth"])] + ["norm" if pre_trains else "norm_f"]
    shapes |= {f"{norm}.weight": (width,) for norm in norms}
    shapes |= {} if settings["rms_norm"] else {f"{norm}.bias": (width,) for norm in norms}
    for mixer in (f"layers.{i}.mixer." for i in range(settings["depth"])):
        shapes |= {f"{mixer}in_proj.weight": (2 * inner, width), f"{mixer}out_proj.weight": (width, inner)}
        if ssm["bias"]:
            shapes |= {f"{mixer}in_proj.bias": (2 * inner,), f"{mixer}out_proj.bias": (width,)}
        for b in ("", "_b") if settings["bimamba"] else ("",):
            shapes |= {
                f"{mixer}conv1d{b}.weight": (inner, 1, ssm["d_conv"]),
                f"{mixer}x_proj{b}.weight": (rank + 2 * state_size, inner),
                f"{mixer}dt_proj{b}.weight": (inner, rank),
                f"{mixer}dt_proj{b}.bias": (inner,),
                f"{mixer}A{b}_log": (inner, state_size),
                f"{mixer}D{b}": (inner,),
            }
            shapes |= {f"{mixer}conv1d{b}.bias": (inner,)} if ssm["conv_bias"] else {}
    for i in range(settings.get("clip_return_layer", 1) if pre_trains else 0):
        size = settings["clip_output_dim"]
        shapes |= {f"clip_decoder.{i}.head.weight": (size, width)}
        shapes |= {f"clip_decoder.{i}.{name}": (size,) for name in ("head.bias", "norm.weight", "norm.bias")}
    if settings.get("num_classes", 0):
        shapes |= {"head.weight": (settings["num_classes"], width), "head.bias": (settings["num_classes"],)}
    return {name: torch.randn(shape, generator=generator) * 0.3 for name, shape in shapes.items()}


class Original:
    """
    Args:
        weights: of a state dict.
        kwargs: of the constructor.
    """

    def __init__(self, weights: dict[str, torch.Tensor], **kwargs: Any):
        self.weights = {name: value.double() for name, value in weights.items()}
        self.kwargs, self.settings = kwargs, {**DEFAULTS, **kwargs}

    def logits(self, pixels: torch.Tensor) -> torch.Tensor:
        """Of `(batch, channels, frames, height, width)`; the class token's feature where there is no head."""
        residuals = self.residuals(self.embed(pixels))
        feature = self.norm("norm_f", residuals[-1])[:, 0]
        if "head.weight" not in self.weights:
            return feature
        return feature @ self.weights["head.weight"].T + self.weights["head.bias"]

    def aligned(self, pixels: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        """Features for the teacher's `(batch, layers, visible tokens, channels)`, layers in rising order."""
        visible = F.pad(~hidden, (1, 0), value=True)
        residuals = self.residuals(self.embed(pixels)[visible].unflatten(0, (len(pixels), -1)))
        depth, width = self.settings["depth"], self.settings["embed_dim"]
        positions = torch.arange(visible.shape[1]).double()[:, None] / 10000 ** (
            2 * (torch.arange(width) // 2).double() / width
        )
        positions[:, 0::2], positions[:, 1::2] = positions[:, 0::2].sin(), positions[:, 1::2].cos()
        positions = positions.expand(len(pixels), -1, -1)[visible].unflatten(0, (len(pixels), -1))
        interval, features = self.settings["clip_student_return_interval"], []
        layers = sorted(depth - 1 - int(i * interval) for i in range(self.settings.get("clip_return_layer", 1)))
        for number, layer in enumerate(layers):
            if layer < depth - 1:
                feature = self.norm("norm", residuals[layer + 1])
            else:
                feature = residuals[layer if self.settings["fused_add_norm"] else layer + 1]
            head = f"clip_decoder.{number}."
            feature = (feature + positions) @ self.weights[f"{head}head.weight"].T + self.weights[f"{head}head.bias"]
            feature = self.normalise(f"{head}norm", feature, 1e-5, rms=False)
            if self.settings["clip_norm_type"] == "l2":
                feature = feature / feature.square().sum(-1, keepdim=True).sqrt()
            features.append(feature)
        return torch.stack(features, dim=1)

    def embed(self, pixels: torch.Tensor) -> torch.Tensor:
        """Tokens with their positions, the class token first, then frame by frame and row by row."""
        kernel, positions = self.weights["patch_embed.proj.weight"], self.weights["pos_embed"][0]
        kernel = kernel if kernel.ndim == 5 else kernel[:, :, None]
        (rows, columns), (frames, height, width) = grid_of(self.kwargs), kernel.shape[2:]
        down, right = (height, width) if "num_frames" in self.kwargs else pair(self.kwargs.get("stride", 16))
        tokens = [self.weights["cls_token"][0, 0].expand(len(pixels), -1) + positions[0]]
        for t in range(pixels.shape[2] // frames):
            for row in range(rows):
                for column in range(columns):
                    patch = pixels.double()[:, :, t * frames : (t + 1) * frames]
                    patch = patch[..., row * down : row * down + height, column * right : column * right + width]
                    token = torch.einsum("bcthw,dcthw->bd", patch, kernel) + self.weights["patch_embed.proj.bias"]
                    token = token + positions[1 + row * columns + column]
                    if "temporal_pos_embedding" in self.weights:
                        token = token + self.weights["temporal_pos_embedding"][0, t]
                    tokens.append(token)
        return torch.stack(tokens, dim=1)

    def residuals(self, tokens: torch.Tensor) -> list[torch.Tensor]:
        """The residual stream before every block, and after the last one."""
        residuals = [tokens]
        for i in range(self.settings["depth"]):
            normed = self.norm(f"layers.{i}.norm", residuals[-1])
            residuals.append(residuals[-1] + self.mix(f"layers.{i}.mixer.", normed))
        return residuals

    def norm(self, name: str, x: torch.Tensor) -> torch.Tensor:
        return self.normalise(name, x, self.settings["norm_epsilon"], self.settings["rms_norm"])

    def normalise(self, name: str, x: torch.Tensor, eps: float, rms: bool) -> torch.Tensor:
        if not rms:
            x = x - x.mean(-1, keepdim=True)
        normed = x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * self.weights[f"{name}.weight"]
        return normed if rms else normed + self.weights[f"{name}.bias"]

    def mix(self, name: str, tokens: torch.Tensor) -> torch.Tensor:
        projected = tokens @ self.weights[f"{name}in_proj.weight"].T + self.weights.get(f"{name}in_proj.bias", 0)
        total = self.scan(name, "", projected)
        if self.settings["bimamba"]:
            total = total + self.scan(name, "_b", projected.flip(1)).flip(1)
        return total @ self.weights[f"{name}out_proj.weight"].T + self.weights.get(f"{name}out_proj.bias", 0)

    def scan(self, name: str, b: str, projected: torch.Tensor) -> torch.Tensor:
        """One direction, gated; `b` is what the names of the backward one have."""
        x, gate = projected.chunk(2, dim=-1)
        taps = self.weights[f"{name}conv1d{b}.weight"][:, 0]
        x_proj, dt_proj = (self.weights[f"{name}{which}_proj{b}.weight"] for which in ("x", "dt"))
        A, D = -self.weights[f"{name}A{b}_log"].exp(), self.weights[f"{name}D{b}"]
        state, outputs = x.new_zeros(len(x), *A.shape), []
        for t in range(x.shape[1]):
            u = torch.zeros_like(x[:, 0]) + self.weights.get(f"{name}conv1d{b}.bias", 0)
            for tap in range(taps.shape[1]):
                source = t - (taps.shape[1] - 1) + tap
                if source >= 0:
                    u = u + taps[:, tap] * x[:, source]
            u = u * u.sigmoid()
            low_rank, into, out_of = (u @ x_proj.T).split([dt_proj.shape[1], A.shape[1], A.shape[1]], dim=-1)
            step = (1 + (low_rank @ dt_proj.T + self.weights[f"{name}dt_proj{b}.bias"]).exp()).log()
            state = (step[..., None] * A).exp() * state + (step * u)[..., None] * into[:, None]
            outputs.append((state * out_of[:, None]).sum(-1) + D * u)
        return torch.stack(outputs, dim=1) * gate * gate.sigmoid()
