"""What VideoMamba carries from one part of a video to the next: explicit, of constant size."""

import copy
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from .configuration_videomamba import VideoMambaConfig

NAMES = ("scan_states", "conv_states", "is_new")


class VideoMambaState:
    """
    What the forward scans of a VideoMamba know of streams of video. A call takes a state and returns the next one; the
    state that it takes stays as it is.

        state = VideoMambaState(model.config)
        for frames in chunks:  # (1, num_frames, num_channels, height, width), any number of whole tubelets
            outputs = model(frames, state=state)
            state = outputs.state

    Rows of a call have as many frames. Streams that have none are left out with [`~VideoMambaState.take`] and
    [`~VideoMambaState.put`]. Gradients flow through a state until it is detached.

    A causal model (`bidirectional=False`, `use_temporal_position_embeddings=False`) gives in chunks of any size what
    it gives for the whole. Its class token is fed once, before the first chunk of a stream. In a bidirectional model
    each chunk is the class token and its patches: the forward scans go on, and the backward scans see the chunk alone.

    Args:
        config ([`VideoMambaConfig`]): configuration of the model.
        batch_size (`int`, defaults to 1): number of streams.
        device (`torch.device`, *optional*): device of the states.

    Attributes:
        scan_states (`torch.Tensor` of shape `(num_hidden_layers, batch_size, intermediate_size, state_size)`):
            States of the forward scans, float32 (float64 in a float64 model).
        conv_states (`torch.Tensor` of shape `(num_hidden_layers, batch_size, intermediate_size, conv_kernel - 1)`):
            The last inputs of their convolutions, in the same dtype.
        is_new (`torch.BoolTensor` of shape `(batch_size,)`): true for streams of which no frame was read.
        has_new (`bool`): false if no stream is new, so that no call has to wait for a device to know it.
    """

    def __init__(self, config: VideoMambaConfig, batch_size: int = 1, device: torch.device | str | None = None):
        rows = (config.num_hidden_layers, batch_size, config.intermediate_size)
        self.scan_states = torch.zeros(*rows, config.state_size, dtype=torch.float32, device=device)
        self.conv_states = torch.zeros(*rows, config.conv_kernel - 1, dtype=torch.float32, device=device)
        self.is_new = torch.ones(batch_size, dtype=torch.bool, device=device)
        self.has_new = True

    @property
    def nbytes(self) -> int:
        """Size of the states of all streams in bytes."""
        return self.scan_states.nbytes + self.conv_states.nbytes

    def next(self, layer_states: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> "VideoMambaState":
        """The state after a call, from those of its layers, which may be on several devices."""
        scan_states, conv_states = (
            torch.stack([each.to(self.is_new.device) for each in states]) for states in zip(*layer_states, strict=True)
        )
        return self._read(scan_states, conv_states)

    def where_new(self, start: "VideoMambaState") -> "VideoMambaState":
        """This state, with that of the only stream of `start` in place of new streams."""
        is_new = self.is_new[:, None, None]
        scan_states = torch.where(is_new, start.scan_states, self.scan_states)
        return self._read(scan_states, torch.where(is_new, start.conv_states, self.conv_states))

    def clone(self) -> "VideoMambaState":
        """An independent copy, to go on in two ways."""
        return self._each(torch.clone)

    def detach(self) -> "VideoMambaState":
        """The state without its gradients, to train over the chunks of a long video. It shares its memory with this
        one."""
        return self._each(torch.detach)

    def to(self, device: torch.device | str) -> "VideoMambaState":
        """Move the state to a device, in place, and return it. Dtypes stay as they are."""
        vars(self).update(vars(self._each(lambda tensor: tensor.to(device))))
        return self

    def reset(self, rows: torch.Tensor | None = None) -> None:
        """Begin new streams, in place: all, or those of `rows`, int64 or one bool for each stream."""
        index = self._index(slice(None) if rows is None else rows)
        self.scan_states = self.scan_states.index_fill(1, index, 0.0)
        self.conv_states = self.conv_states.index_fill(1, index, 0.0)
        self.is_new = self.is_new.index_fill(0, index, True)
        self.has_new = True

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Keep the streams `indices`, in this order. The indices are int64, or one bool for each stream."""
        index = self._index(indices)
        self.scan_states, self.conv_states = self.scan_states[:, index], self.conv_states[:, index]
        self.is_new = self.is_new[index]

    def take(self, rows: torch.Tensor) -> "VideoMambaState":
        """A state with copies of the streams `rows`, int64 or one bool for each stream."""
        state = copy.copy(self)
        state.batch_select_indices(rows)
        return state

    def put(self, rows: torch.Tensor, state: "VideoMambaState") -> None:
        """Write back the streams that [`~VideoMambaState.take`] copied."""
        index = self._index(rows)
        self.scan_states = self.scan_states.index_copy(1, index, state.scan_states.to(self.scan_states))
        self.conv_states = self.conv_states.index_copy(1, index, state.conv_states.to(self.conv_states))
        self.is_new = self.is_new.index_copy(0, index, state.is_new)
        self.has_new = self.has_new or state.has_new

    def save(self, path: str | os.PathLike) -> None:
        """Write a safetensors file. It appears complete or not at all, and replaces an older file of this name."""
        unfinished = Path(path).with_name(f".{Path(path).name}.{os.getpid()}")
        tensors = {name: getattr(self, name).detach().contiguous() for name in NAMES}
        save_file(tensors, unfinished, {"format": "videomamba_state"})
        unfinished.replace(path)

    @classmethod
    def load(cls, path: str | os.PathLike, device: torch.device | str = "cpu") -> "VideoMambaState":
        """
        Read a file that [`~VideoMambaState.save`] wrote.

        Raises:
            ValueError: if it is another kind of file, or damaged.
            OSError: if the file cannot be opened.
        """
        state = object.__new__(cls)
        try:
            with safe_open(path, "pt", device=str(device)) as file:
                vars(state).update({name: file.get_tensor(name) for name in NAMES})
        except SafetensorError as error:
            raise ValueError(f"{path} is not a file that `VideoMambaState.save` wrote: {error}") from error
        state.has_new = bool(state.is_new.any())
        return state

    def _read(self, scan_states: torch.Tensor, conv_states: torch.Tensor) -> "VideoMambaState":
        """A state of streams of which frames, or the class token, were read."""
        state = copy.copy(self)
        state.scan_states, state.conv_states = scan_states, conv_states
        state.is_new, state.has_new = torch.zeros_like(self.is_new), False
        return state

    def _each(self, function: Callable[[torch.Tensor], torch.Tensor]) -> "VideoMambaState":
        """A state with a function of each tensor."""
        state = copy.copy(self)
        vars(state).update({name: function(getattr(self, name)) for name in NAMES})
        return state

    def _index(self, rows: torch.Tensor | slice) -> torch.Tensor:
        return torch.arange(len(self.is_new), device=self.is_new.device)[rows]


def check_state(state: VideoMambaState, config: VideoMambaConfig, pixel_values: torch.Tensor, has_mask: bool) -> None:
    """Raise `ValueError` if a model cannot continue a state with these frames. The message says why."""
    batch_size, num_frames = pixel_values.shape[:2]
    if config.scan_order != "spatial_first":
        raise ValueError(
            f"A state needs scan_order='spatial_first', got {config.scan_order!r}: its scans go through all frames of "
            "a place, of which later ones are not there yet."
        )
    if has_mask:
        raise ValueError(
            "A state cannot be given with a mask: rows of a call have as many new frames. Leave out the streams that "
            "have none with `state.take(rows)` and `state.put(rows, outputs.state)`."
        )
    if num_frames % config.tubelet_size:
        raise ValueError(
            f"{num_frames} frames are no whole tubelets of {config.tubelet_size}, and the rest would be lost: keep "
            "them for the next call."
        )
    if config.use_pool_norm and not config.bidirectional:
        raise ValueError("With `use_pool_norm` each frame needs the class token, which a causal model reads once.")
    expected = VideoMambaState(config, batch_size, device="meta")
    shapes = [(each.scan_states.shape, each.conv_states.shape) for each in (state, expected)]
    if shapes[0] != shapes[1]:
        raise ValueError(
            f"The state has tensors of {shapes[0]}; this model and the batch need {shapes[1]}: begin with "
            f"VideoMambaState(model.config, batch_size={batch_size}), or select streams with `state.take`."
        )
