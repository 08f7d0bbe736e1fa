"""Measures the steps of a training: clips a second, waiting for videos, memory, and how long the rest will take."""

import math
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from threading import Timer
from typing import Any

import torch
from tqdm.auto import tqdm
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from hf_video.data.kept_frames import KeptFrames
from hf_video.data.loader import available_cores

# The scalars that our trainers log beside each training loss.
THROUGHPUT_SCALARS = ("clips_per_second", "data_wait_fraction", "peak_memory_gib")
# After so many steps the speed is printed.
FIRST_STEPS = 20
# After so long it is printed how long the decoding of kept frames takes.
DECODING_SECONDS = 60.0
# A training that waits more is told what shortens it, and one that takes longer how long.
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
        kept: what frames the training keeps. If it is known, the speed is printed after 20 steps and at the end, and
            how long the rest of a long training will take, and what shortens it if most of its time is waiting.
            If frames are kept, these steps come after all are decoded or after the first whole epoch, also of a
            resumed run, and after a minute of decoding it is printed how long the rest of it will take.
    """

    kept: KeptFrames | None = None
    _begin: float | None = None
    _is_decoding: bool = False
    _decoded_after: int = 1

    def __init__(self) -> None:
        self._step, self._logged, self._first, self._all = _Steps(), _Steps(), _Steps(), _Steps()

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._begin = None
        self._step, self._logged, self._first, self._all = _Steps(), _Steps(), _Steps(), _Steps()
        self._is_decoding = self.kept is not None and bool(str(self.kept))
        self._decoded_after = math.ceil(state.epoch or 0) + 1
        if self._is_decoding and state.is_world_process_zero:
            # The first step may decode hours of video.
            timer = Timer(DECODING_SECONDS, self._tell_decoding, [self.kept])
            timer.daemon = True
            timer.start()

    def _tell_decoding(self, kept: KeptFrames) -> None:
        if (share := kept.share_decoded()) and (rest := DECODING_SECONDS * (1 - share) / share) > DECODING_SECONDS:
            tqdm.write(f"{share:.0%} of the frames to keep are decoded; the others will take about {_tell(rest)}.")

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
            clips = batch.get("pixel_values", [])
            self._step.clips += len(clips) if isinstance(clips, list) else math.prod(clips.shape[:-4])
            yield batch

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if self._begin is None:
            return
        step, self._step = self._step, _Steps()
        step.lasted, self._begin = time.perf_counter() - self._begin, None
        for steps in (self._logged, self._first, self._all):
            steps.number += 1
            steps.clips += step.clips
            steps.waited += step.waited
            steps.lasted += step.lasted
        if self._is_decoding:
            self._first = _Steps()
            self._is_decoding = self.kept is not None and (
                (state.epoch or 0) < self._decoded_after and self.kept.share_decoded() < 1
            )
        if self._first.number == FIRST_STEPS and self.kept is not None and state.is_world_process_zero:
            tqdm.write(_describe(self._first, args) + self._estimate(args, state, self.kept))

    def on_train_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if self._all.number > FIRST_STEPS and self.kept is not None and state.is_world_process_zero:
            tqdm.write(f"In all: {_describe(self._all, args)}")

    def collect(self, args: TrainingArguments, of_all: bool = False) -> dict[str, float]:
        """The scalars since the last call, or of all steps so far; empty if no step was measured.

        Returns:
            `clips_per_second`: clips per second of all processes together; each view of a video is a clip.
            `data_wait_fraction`: share of the time that this process waited for a batch, 0 to 1.
            `peak_memory_gib`: the most memory so far, in GiB: allocated by PyTorch on a CUDA device, otherwise
            resident in this process. It is missing on Windows.
        """
        steps, self._logged = self._all if of_all else self._logged, _Steps()
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

    def _estimate(self, args: TrainingArguments, state: TrainerState, kept: KeptFrames) -> str:
        """How long the rest of a long training will take, and what shortens it if it waits most of its time."""
        steps, num_left = self._first, state.max_steps - state.global_step
        rest = steps.lasted / steps.number * num_left
        if rest <= SHORT_SECONDS:
            return ""
        way_out = f" {_way_out(args, kept)}" if steps.waited > WAITING_SHARE * steps.lasted else ""
        return f" The other {num_left:,} steps will take about {_tell(rest)}; --epochs sets their number.{way_out}"


def _describe(steps: _Steps, args: TrainingArguments) -> str:
    speed = f"{steps.clips / steps.lasted:.3g} clips a second" + (" in each process" if args.world_size > 1 else "")
    return f"{speed}, {steps.waited / steps.lasted:.0%} of the time waiting for videos."


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
