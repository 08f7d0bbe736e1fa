"""A layer of VideoMamba: norm, the mixer with its scans in two directions, and stochastic depth."""

from typing import cast

import torch
import torch.nn.functional as F
from torch import nn
from transformers.activations import ACT2FN
from transformers.modeling_layers import GradientCheckpointingLayer

from .configuration_videomamba import VideoMambaConfig

try:
    from hf_video.ops.mamba_mixer import Direction, can_fuse_mixer, convolve_and_scan, mamba_mixer
    from hf_video.ops.selective_scan import selective_scan

    HAS_OPS = True
except ImportError:
    from .plain_scan_videomamba import selective_scan

    HAS_OPS = False

ScanOrder = tuple[torch.Tensor, torch.Tensor]


class VideoMambaNorm(nn.Module):
    """
    RMS or layer norm that computes in the precision of its input, which is that of the residual stream, and answers in
    the dtype of its weight, which is that of the layers behind it.
    """

    def __init__(self, config: VideoMambaConfig):
        super().__init__()
        self.eps = config.layer_norm_eps
        self.weight = nn.Parameter(torch.empty(config.hidden_size))
        self.bias = nn.Parameter(torch.empty(config.hidden_size)) if config.norm_type == "layer_norm" else None

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        weight = self.weight.to(hidden_states.dtype)
        if self.bias is None:
            normalized = F.rms_norm(hidden_states, weight.shape, weight, self.eps)
        else:
            bias = self.bias.to(hidden_states.dtype)
            normalized = F.layer_norm(hidden_states, weight.shape, weight, bias, self.eps)
        return normalized.to(self.weight.dtype)

    def extra_repr(self) -> str:
        return f"{len(self.weight)}, eps={self.eps}"


class VideoMambaConv1d(nn.Conv1d):
    """Depthwise convolution over a token and those that the scan visited before it: behind it where it runs back."""

    def __init__(self, config: VideoMambaConfig, reverse: bool):
        super().__init__(
            config.intermediate_size,
            config.intermediate_size,
            config.conv_kernel,
            groups=config.intermediate_size,
            padding=config.conv_kernel - 1,
            bias=config.use_conv_bias,
        )
        self.reverse = reverse

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        weight = self.weight.flip(-1) if self.reverse else self.weight
        padding = cast(int, self.padding[0])
        convolved = F.conv1d(hidden_states, weight, self.bias, padding=padding, groups=self.groups)
        return convolved.narrow(-1, padding if self.reverse else 0, hidden_states.shape[-1])


class VideoMambaTimeStepProjection(nn.Linear):
    """Multiplies by its weight alone: its bias is added in float32 inside the scan."""

    def forward(self, time_steps: torch.Tensor) -> torch.Tensor:
        return F.linear(time_steps, self.weight)


class VideoMambaOutputProjection(nn.Linear):
    """Ends a residual branch: its initial weights are smaller the deeper the model is."""


class VideoMambaScan(nn.Module):
    """One direction of a mixer: convolution, projections to time steps, B and C, and the selective scan."""

    def __init__(self, config: VideoMambaConfig, reverse: bool):
        super().__init__()
        self.reverse = reverse
        rank = cast(int, config.time_step_rank)
        self.sizes = [rank, config.state_size, config.state_size]
        self.conv1d = VideoMambaConv1d(config, reverse)
        self.activation_fn = ACT2FN[config.hidden_act]
        self.fuses_silu = config.hidden_act in ("silu", "swish")
        self.x_proj = nn.Linear(config.intermediate_size, sum(self.sizes), bias=False)
        self.dt_proj = VideoMambaTimeStepProjection(rank, config.intermediate_size)
        self.A_log = nn.Parameter(torch.empty(config.intermediate_size, config.state_size))
        self.D = nn.Parameter(torch.empty(config.intermediate_size))

    def weights(self) -> "Direction":
        """What the operator for a whole branch takes."""
        conv_bias = torch.zeros_like(self.D) if self.conv1d.bias is None else self.conv1d.bias
        projections = self.x_proj.weight, self.dt_proj.weight, self.dt_proj.bias
        return Direction(self.conv1d.weight[:, 0], conv_bias, *projections, self.rates(), self.D)

    def rates(self) -> torch.Tensor:
        """A of the recurrence, in float32 at least."""
        return -self.A_log.to(torch.promote_types(self.A_log.dtype, torch.float32)).exp()

    def project(self, inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Time steps, B and C of the recurrence, with time last."""
        time_steps, B, C = self.x_proj(inputs.mT).split(self.sizes, dim=-1)
        return self.dt_proj(time_steps).mT, B.mT, C.mT

    def forward(
        self, hidden_states: torch.Tensor, gate: torch.Tensor | None = None, addend: torch.Tensor | None = None
    ) -> torch.Tensor:
        """
        All tensors are `(batch_size, intermediate_size, sequence_length)`. The addend, what the other direction gave,
        is added before the gate, which goes through SiLU here.
        """
        conv1d, options = self.conv1d, {"reverse": self.reverse, "addend": addend}
        weights = self.rates(), self.D, gate, self.dt_proj.bias
        # A module around the convolution, such as an adapter, has to be called.
        if HAS_OPS and self.fuses_silu and type(conv1d) is VideoMambaConv1d:
            return convolve_and_scan(hidden_states, conv1d.weight, conv1d.bias, self.project, *weights, **options)
        convolved = self.activation_fn(conv1d(hidden_states))
        time_steps, B, C = self.project(convolved)
        A, D, *others = weights
        return selective_scan(convolved, time_steps, A, B, C, D, *others, delta_softplus=True, **options)


class VideoMambaMixer(nn.Module):
    """
    Gated state space layer. In two directions it is VideoMamba's and Vision Mamba's: both scans read one input
    projection and share one gate, and their outputs are summed, not averaged. There is no `inference_params`, which
    continues mamba-ssm's `Mamba` token by token: two directions cannot be continued. `selective_scan` can, by its
    `initial_state`.
    """

    def __init__(self, config: VideoMambaConfig):
        super().__init__()
        self.reorder_forward = config.scan_order == "temporal_first"
        self.in_proj = nn.Linear(config.hidden_size, 2 * config.intermediate_size, bias=config.use_bias)
        self.forward_scan = VideoMambaScan(config, reverse=False)
        self.backward_scan = VideoMambaScan(config, reverse=True) if config.bidirectional else None
        self.activation_fn = ACT2FN[config.hidden_act]
        self.out_proj = VideoMambaOutputProjection(config.intermediate_size, config.hidden_size, bias=config.use_bias)

    def forward(self, hidden_states: torch.Tensor, temporal_first: ScanOrder | None = None) -> torch.Tensor:
        hidden_states, gate = self.in_proj(hidden_states).mT.chunk(2, dim=1)
        if self.forward_scan.fuses_silu and temporal_first is None:
            gated = self.scan_and_gate(hidden_states, gate)
        else:
            mixed = scan_in_order(self.forward_scan, hidden_states, temporal_first if self.reorder_forward else None)
            if self.backward_scan is not None:
                mixed = mixed + scan_in_order(self.backward_scan, hidden_states, temporal_first)
            gated = mixed * self.activation_fn(gate)
        return self.out_proj(gated.mT)

    def scan_and_gate(self, hidden_states: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        """The last scan adds the other one and applies the gate: some backends do so before anything is written."""
        if self.backward_scan is None:
            return self.forward_scan(hidden_states, gate)
        return self.backward_scan(hidden_states, gate, addend=self.forward_scan(hidden_states))


def scan_in_order(scan: VideoMambaScan, hidden_states: torch.Tensor, order: ScanOrder | None) -> torch.Tensor:
    """Run a scan over the tokens in another order, and put its output back into theirs."""
    if order is None:
        return scan(hidden_states)
    token_of_step, step_of_token = (index[:, None] for index in order)
    return scan(hidden_states.take_along_dim(token_of_step, dim=2)).take_along_dim(step_of_token, dim=2)


class VideoMambaDropPath(nn.Module):
    """Stochastic depth: in training, leaves out a residual branch for some clips (https://arxiv.org/abs/1603.09382)."""

    def __init__(self, drop_prob: float):
        super().__init__()
        self.drop_prob = drop_prob

    def forward(self, branch: torch.Tensor) -> torch.Tensor:
        if self.drop_prob == 0.0 or not self.training:
            return branch
        keep_prob = 1 - self.drop_prob
        kept = branch.new_empty(branch.shape[0], *[1] * (branch.ndim - 1)).bernoulli_(keep_prob)
        return branch * (kept / keep_prob)

    def extra_repr(self) -> str:
        return f"drop_prob={self.drop_prob}"


class VideoMambaLayer(GradientCheckpointingLayer):
    """Pre-norm block with a mixer and no MLP; takes and returns the residual stream."""

    def __init__(self, config: VideoMambaConfig, drop_path_rate: float):
        super().__init__()
        self.norm = VideoMambaNorm(config)
        self.mixer = VideoMambaMixer(config)
        self.drop_path = VideoMambaDropPath(drop_path_rate)

    def forward(self, hidden_states: torch.Tensor, temporal_first: ScanOrder | None = None) -> torch.Tensor:
        if temporal_first is None and self.can_fuse(hidden_states):
            mixer = self.mixer
            directions = [scan.weights() for scan in (mixer.forward_scan, mixer.backward_scan) if scan is not None]
            branch = mamba_mixer(
                *(hidden_states, self.norm.weight, self.norm.eps),
                *(mixer.in_proj.weight, mixer.out_proj.weight, directions),
            )
        else:
            branch = self.mixer(self.norm(hidden_states), temporal_first)
        return hidden_states + self.drop_path(branch)

    def can_fuse(self, hidden_states: torch.Tensor) -> bool:
        """Whether norm and mixer can run as one operator: where there is one, with plain modules."""
        mixer = self.mixer
        return (
            HAS_OPS
            and can_fuse_mixer(hidden_states, *mixer.forward_scan.A_log.shape)
            and self.norm.bias is None
            and mixer.in_proj.bias is None
            and all(is_plain(module) for module in (self.norm, *mixer.modules()))
        )


PLAIN_MODULES = (
    VideoMambaNorm,
    VideoMambaMixer,
    VideoMambaScan,
    VideoMambaConv1d,
    VideoMambaTimeStepProjection,
    VideoMambaOutputProjection,
    nn.Linear,
    type(ACT2FN["silu"]),
)


def is_plain(module: nn.Module) -> bool:
    """Whether float32 weights alone decide what a module does: no adapter, quantised weight or hook."""
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    weights = module.parameters(recurse=False)
    return (
        type(module) in PLAIN_MODULES
        and not any(hooks)
        # accelerate puts a function in its place.
        and "forward" not in vars(module)
        and all(type(weight) is nn.Parameter and weight.dtype == torch.float32 for weight in weights)
    )
