"""
A causal VideoMamba live for 10,000 frames, a tubelet of two at a time: its time, memory, and equality with the whole.

A state holds what earlier frames have left. The median time of a tubelet in the last 1,000 frames must be within 3 %
of that in the first 1,000; it is that of the processor, on one thread. The speed of a machine changes within half a
minute, so it is measured in turns as well, and that decides: a tubelet of the stream that has seen 10,000 frames, then
one of a stream that is new. Logits must equal those in chunks of 100 frames to 1e-5 of the largest one, and memory
must be flat.

With `--model`, the folder `frames` of `frame_labels.py --save`, F1 at a temporal IoU of 0.5 in the last tenth of the
video must be within 2 points of that in the first. Whether the age of the state or the video makes the difference, a
state that begins anew before the last tenth tells. Without a model, weights are random. It takes a minute on an idle
core.

    python benchmarks/live.py [--model FOLDER] [--frames 10000] [--smoke]
"""

import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import torch
from helpers.event_training import (
    FPS,
    TUBELET_SIZE,
    figures_at_half,
    find_events,
    make_frame_classifier,
    read_windows,
)
from helpers.event_video import CLASSES, write_event_video
from helpers.measurement import GOAL_MISSED, make_parser, print_machine, require_agreement
from transformers import PreTrainedModel

from hf_video.models.videomamba import VideoMambaForFrameClassification, VideoMambaState

MOST_DRIFT, TOLERANCE, MOST_F1_LOST = 0.03, 1e-5, 0.02
CHUNK = 100
# Of the test videos of other benchmarks, 0 and up.
SEED = 100


def step(model: PreTrainedModel, frames: torch.Tensor, state: VideoMambaState) -> tuple[Any, float]:
    """The outputs for frames (N, C, H, W), and the seconds of the processor that they took."""
    begin = time.thread_time()
    outputs = model(frames[None], state=state)
    return outputs, time.thread_time() - begin


def run(model: PreTrainedModel, frames: torch.Tensor, size: int) -> tuple[torch.Tensor, list[float], Any, list[float]]:
    """Logits (N / TUBELET_SIZE, classes) by chunks of a size, seconds of each chunk, the last state, and MiB of memory
    by tenths."""
    state, process = VideoMambaState(model.config), psutil.Process()
    logits, seconds, memory = [], [], []
    for number, chunk in enumerate(frames.split(size)):
        outputs, took = step(model, chunk, state)
        state = outputs.state
        logits.append(outputs.logits[0])
        seconds.append(took)
        if (number + 1) % max(len(frames) // size // 10, 1) == 0:
            memory.append(process.memory_info().rss / 2**20)
    return torch.cat(logits), seconds, state, memory


def drift_in_turns(model: PreTrainedModel, frames: torch.Tensor, old: VideoMambaState) -> float:
    """Time of a tubelet of a stream that is old, relative to one that is new."""
    new, pairs = VideoMambaState(model.config), []
    for tubelet in frames.split(TUBELET_SIZE):
        old_outputs, late = step(model, tubelet, old)
        new_outputs, early = step(model, tubelet, new)
        old, new = old_outputs.state, new_outputs.state
        pairs.append((late, early))
    late, early = (statistics.median(column) for column in zip(*pairs, strict=True))
    return late / early - 1


def f1_between(model: PreTrainedModel, logits: torch.Tensor, events: Sequence[Any], tenth: int) -> float:
    """F1 of the events whose middles lie in a tenth of the video."""
    times = [number * TUBELET_SIZE / FPS for number in range(len(logits) + 1)]
    late = logits[model.config.frame_delay :].softmax(dim=-1).numpy()
    length = times[-1] / 10

    def chosen(segments: Sequence[Any]) -> list[Any]:
        return [each for each in segments if tenth <= (each.start + each.end) / 2 / length < tenth + 1]

    return figures_at_half(chosen(find_events(model, zip(times, times[1:], late, strict=False))), chosen(events))[0]


@torch.inference_mode()
def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--model", help="folder of a frame model; by default one with random weights")
    parser.add_argument("--frames", type=int, default=10_000)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print_machine("torch", "transformers", threads=1)
    num_frames = 400 if arguments.smoke else arguments.frames
    window = num_frames // 10
    torch.manual_seed(0)
    model = (
        VideoMambaForFrameClassification.from_pretrained(arguments.model)
        if arguments.model
        else make_frame_classifier(num_frames=32)
    ).eval()
    with tempfile.TemporaryDirectory() as folder:
        video = Path(folder) / "live.mp4"
        events = write_event_video(video, seconds=num_frames / FPS, seed=SEED, held_out=True)
        # The video ends with the frame that passes its last second.
        frames = read_windows(video, events, 1, 1)[0][:num_frames, 0]
    run(model, frames[:20], TUBELET_SIZE)  # warms up
    logits, seconds, state, memory = run(model, frames, TUBELET_SIZE)
    ends = window // TUBELET_SIZE
    early, late = (statistics.median(part) for part in (seconds[:ends], seconds[-ends:]))
    turns = drift_in_turns(model, frames[:window], state)
    whole = run(model, frames, CHUNK)[0]
    difference = ((logits - whole).abs().max() / whole.abs().max()).item()
    require_agreement(f"The logits in chunks of {TUBELET_SIZE} and of {CHUNK} frames", difference, TOLERANCE)
    print(f"{len(frames):,} frames; a state of {state.nbytes / 1024:.0f} KiB; {len(CLASSES)} classes")
    print(
        f"a tubelet: {early * 1e3:.2f} ms in the first {window:,}, {late * 1e3:.2f} ms in the last, "
        f"{late / early - 1:+.1%}; in turns {turns:+.1%}; wanted: at most {MOST_DRIFT:.0%}"
    )
    print(f"memory: {memory[0]:.0f} MiB after a tenth, {memory[-1]:.0f} MiB at the end")
    print(f"chunks of {TUBELET_SIZE} and of {CHUNK} frames differ by {difference:.1e} of the largest logit")
    is_good = turns <= MOST_DRIFT and memory[-1] <= 1.01 * memory[0]
    if arguments.model:
        tenths = [f1_between(model, logits, events, tenth) for tenth in range(10)]
        first, last = tenths[0], tenths[-1]
        print(f"F1: {first:.3f} in the first tenth, {last:.3f} in the last; wanted: at most {MOST_F1_LOST} less")
        cut = len(frames) * 4 // 5 // TUBELET_SIZE
        anew = torch.cat([logits[:cut], run(model, frames[cut * TUBELET_SIZE :], CHUNK)[0]])
        young = f1_between(model, anew, events, 9)
        print(f"F1 by tenths: {' '.join(f'{each:.3f}' for each in tenths)}")
        print(f"F1 in the last tenth with a state that begins anew one tenth before: {young:.3f}")
        is_good &= first - last <= MOST_F1_LOST
    return 0 if is_good or arguments.smoke else GOAL_MISSED


if __name__ == "__main__":
    sys.exit(main())
