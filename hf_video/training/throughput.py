"""What a training run costs while it goes on: clips a second, time without a batch, memory."""

import math
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

# The scalars that `VideoTrainer` logs beside each training loss.
THROUGHPUT_SCALARS = ("clips_per_second", "data_wait_fraction", "peak_memory_gib")


class ThroughputCallback(TrainerCallback):
    """Measures steps from the moment a batch is asked for until the weights have changed; evaluating, saving and
    logging do not count.

    `VideoTrainer` passes its batches through `watch` and adds `collect()` to every log of a training loss, for
    `report_to` and `trainer.state.log_history`.
    """

    def __init__(self) -> None:
        self._begin: float | None = None
        self._clear()

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._begin = None
        self._clear()

    def watch(self, batches: Iterator[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
        """The batches of one step, counted, and how long each was waited for."""
        self._begin = self._begin or time.perf_counter()
        while True:
            asked = time.perf_counter()
            try:
                batch = next(batches)
            except StopIteration:
                return
            self._waited += time.perf_counter() - asked
            self._num_clips += math.prod(batch["pixel_values"].shape[:-4]) if "pixel_values" in batch else 0
            yield batch

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self._begin is not None:
            self._seconds += time.perf_counter() - self._begin
            self._begin = None

    def collect(self, args: TrainingArguments) -> dict[str, float]:
        """The scalars since the last call; nothing when no step was measured.

        Returns:
            `clips_per_second` of all processes together, each view of a video a clip; `data_wait_fraction`, the share
            of the time that this process waited for a batch, 0 to 1; and `peak_memory_gib`, the most memory so far,
            allocated by PyTorch on a CUDA device, else resident in this process (left out on Windows).
        """
        if not self._seconds:
            return {}
        scalars = {
            "clips_per_second": self._num_clips * args.world_size / self._seconds,
            "data_wait_fraction": self._waited / self._seconds,
        }
        memory = _peak_memory(args.device)
        self._clear()
        return scalars if memory is None else {**scalars, "peak_memory_gib": memory / 2**30}

    def _clear(self) -> None:
        self._num_clips, self._seconds, self._waited = 0, 0.0, 0.0


def _peak_memory(device: torch.device) -> int | None:
    """Bytes."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        import resource
    except ImportError:  # Windows
        return None
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
