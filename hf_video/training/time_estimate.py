"""Says how long a training will take whose steps wait for videos, and what would shorten it."""

import math
import time
from typing import Any

from tqdm.auto import tqdm
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from hf_video.data.kept_frames import KeptFrames
from hf_video.data.loader import available_cores

# After so many steps and seconds it is said.
MIN_STEPS, MIN_SECONDS = 10, 30.0
# Trainings that wait less, or end sooner, are fast enough.
WAITING_SHARE, SHORT_SECONDS = 0.5, 300.0


class TimeEstimateCallback(TrainerCallback):
    """Prints one line after some steps of a training that waits for videos in most of its time. If frames are kept,
    steps count from the second epoch, in which no video is decoded."""

    def __init__(self, kept: KeptFrames):
        self.kept = kept
        self._num_steps, self._waited, self._seconds = 0, 0.0, 0.0
        self._since = 0.0
        self._is_told = False

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._since = time.perf_counter()

    # A step begins when its batches are there.
    def on_step_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._waited += self._lap()

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._seconds += self._lap()
        self._num_steps += 1
        if str(self.kept) and (state.epoch or 0) <= 1:
            self._num_steps, self._waited, self._seconds = 0, 0.0, 0.0
        total = self._waited + self._seconds
        if self._is_told or self._num_steps < MIN_STEPS or total < MIN_SECONDS:
            return
        self._is_told = True
        rest = total / self._num_steps * (state.max_steps - state.global_step)
        if self._waited > WAITING_SHARE * total and rest > SHORT_SECONDS and state.is_world_process_zero:
            tqdm.write(
                f"The other {state.max_steps - state.global_step:,} steps will take about {_tell(rest)}, "
                f"{self._waited / total:.0%} of it waiting for videos. {self._way_out(args)}"
            )

    def on_evaluate(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._lap()

    def on_save(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._lap()

    def _lap(self) -> float:
        """Seconds since the last call."""
        before, self._since = self._since, time.perf_counter()
        return self._since - before

    def _way_out(self, args: TrainingArguments) -> str:
        ways = []
        if self.kept.gib_needed:
            gib = math.ceil(self.kept.gib_needed)
            ways.append(f"--kept-frames-gib {gib}, with {2 * gib} GiB of free disk, decodes each frame once")
        if not args.dataloader_num_workers and available_cores() > 2:
            ways.append(f"--num-workers {available_cores() - 1} reads with more processes")
        ways.append("smaller copies decode faster: ffmpeg -i VIDEO -vf scale=-2:256 -g 12 COPY.mp4")
        return f"To shorten it: {'; '.join(ways)}."


def _tell(seconds: float) -> str:
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min"
