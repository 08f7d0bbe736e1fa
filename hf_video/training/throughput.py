"""Measures the steps of a training: clips a second, waiting for videos, memory, and how long the rest will take."""

import math
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from tqdm.auto import tqdm
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from hf_video.data.kept_frames import KeptFrames
from hf_video.data.loader import available_cores

# The scalars that our trainers log beside each training loss.
THROUGHPUT_SCALARS = ("clips_per_second", "data_wait_fraction", "peak_memory_gib")
# After so many steps and seconds it is said how long the rest will take.
MIN_STEPS, MIN_SECONDS = 10, 30.0
# Trainings that wait less, or end sooner, are fast enough.
WAITING_SHARE, SHORT_SECONDS = 0.5, 300.0


@dataclass
class _Steps:
    """What was measured of some steps; the times are in seconds."""

    number: int = 0
    clips: int = 0
    waited: float = 0.0
    lasted: float = 0.0


class ThroughputCallback(TrainerCallback):
    """Measures the steps of a training: clips per second, share of time without a batch, and memory.

    A step lasts from the request for its first batch until the weights have changed. Evaluating, saving and logging do
    not count. The trainer passes its batches through `watch`, and adds `collect()` to every log of a training loss.

    Attributes:
        kept: what frames the training keeps. If it is known, one line says after some steps how long a training will
            take that waits for videos in most of its time, and what would shorten it. If frames are kept, steps
            count for it from the second epoch, in which no video is decoded.
    """

    kept: KeptFrames | None = None
    _begin: float | None = None

    def __init__(self) -> None:
        self._step, self._logged, self._estimated = _Steps(), _Steps(), _Steps()
        self._is_told = False

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._begin = None
        self._step, self._logged, self._estimated = _Steps(), _Steps(), _Steps()

    def watch(self, batches: Iterator[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
        """The batches of one step. Counts their clips and measures how long each batch is waited for."""
        self._begin = self._begin or time.perf_counter()
        while True:
            asked = time.perf_counter()
            try:
                batch = next(batches)
            except StopIteration:
                return
            self._step.waited += time.perf_counter() - asked
            self._step.clips += math.prod(batch["pixel_values"].shape[:-4]) if "pixel_values" in batch else 0
            yield batch

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if self._begin is None:
            return
        step, self._step = self._step, _Steps()
        step.lasted, self._begin = time.perf_counter() - self._begin, None
        for steps in (self._logged, self._estimated):
            steps.number += 1
            steps.clips += step.clips
            steps.waited += step.waited
            steps.lasted += step.lasted
        if self.kept is not None:
            self._estimate(args, state, self.kept)

    def collect(self, args: TrainingArguments) -> dict[str, float]:
        """The scalars since the last call; empty if no step was measured.

        Returns:
            `clips_per_second`: clips per second of all processes together; each view of a video is a clip.
            `data_wait_fraction`: share of the time that this process waited for a batch, 0 to 1.
            `peak_memory_gib`: the most memory so far, in GiB: allocated by PyTorch on a CUDA device, otherwise
            resident in this process. It is missing on Windows.
        """
        steps, self._logged = self._logged, _Steps()
        if not steps.lasted:
            return {}
        scalars = {
            "clips_per_second": steps.clips * args.world_size / steps.lasted,
            "data_wait_fraction": steps.waited / steps.lasted,
        }
        if args.device.type == "cuda":
            scalars["peak_memory_gib"] = torch.cuda.max_memory_allocated(args.device) / 2**30
        elif sys.platform != "win32":
            import resource

            unit = 1 if sys.platform == "darwin" else 1024
            scalars["peak_memory_gib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**30
        return scalars

    def _estimate(self, args: TrainingArguments, state: TrainerState, kept: KeptFrames) -> None:
        if str(kept) and (state.epoch or 0) <= 1:
            self._estimated = _Steps()
        steps = self._estimated
        if self._is_told or steps.number < MIN_STEPS or steps.lasted < MIN_SECONDS:
            return
        self._is_told = True
        num_left = state.max_steps - state.global_step
        rest = steps.lasted / steps.number * num_left
        if steps.waited > WAITING_SHARE * steps.lasted and rest > SHORT_SECONDS and state.is_world_process_zero:
            tqdm.write(
                f"The other {num_left:,} steps will take about {_tell(rest)}, {steps.waited / steps.lasted:.0%} of it "
                f"waiting for videos. {_way_out(args, kept)}"
            )


def _way_out(args: TrainingArguments, kept: KeptFrames) -> str:
    ways = []
    if kept.gib_needed:
        gib = math.ceil(kept.gib_needed)
        ways.append(f"--kept-frames-gib {gib}, with {2 * gib} GiB of free disk, decodes each frame once")
    if not args.dataloader_num_workers and available_cores() > 2:
        ways.append(f"--num-workers {available_cores() - 1} reads with more processes")
    ways.append("smaller copies decode faster: ffmpeg -i VIDEO -vf scale=-2:256 -g 12 COPY.mp4")
    return f"To shorten it: {'; '.join(ways)}."


def _tell(seconds: float) -> str:
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min"
