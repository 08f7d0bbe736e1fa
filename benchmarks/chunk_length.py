"""
How much of the answer of a bidirectional VideoMamba stays if it sees a video in chunks, by their length.

In the videos a digit moves left, right, up or down, stands still, or is not there. A small VideoMamba with the scans
and the positions of the released weights learns clips of 8 frames. Then it reads a video of other digits in chunks. It
gives one answer a chunk, from its class token, which is right for the frames of the chunk that show that class.

- no state: each chunk alone.
- state of 8 frames: the forward scans go on through the chunks of 8 frames, as long as a clip in training.
- state of the video: they go on through all of it.

The backward scans see a chunk alone. At 8 frames without a state the model does what it learned. It takes about four
minutes for a seed on an idle core.

    python benchmarks/chunk_length.py [--seeds 1] [--epochs 12] [--threads 1] [--smoke]
"""

import tempfile
from pathlib import Path

import torch
from helpers.event_training import NUM_FRAMES, make_clip_classifier, read_windows, train
from helpers.event_video import write_event_video
from helpers.measurement import make_parser, print_machine
from transformers import PreTrainedModel, set_seed

from hf_video.models.videomamba import VideoMambaState

LENGTHS = (1, 2, 4, 8)
WAYS = ("no state", "state of 8 frames", "state of the video")
# Samples from one clip of the training video to the next.
TRAINING_STRIDE = 3


@torch.inference_mode()
def accuracy(model: PreTrainedModel, frames: torch.Tensor, classes: torch.Tensor, length: int, way: str) -> float:
    """The share of frames (N, C, H, W) whose class (N,) is the answer of their chunk."""
    # Streams side by side: each chunk, each 8 frames, or the whole video.
    streams = {"no state": length, "state of 8 frames": NUM_FRAMES, "state of the video": len(frames)}[way]
    frames = frames.unflatten(0, (-1, streams))
    state, answers = VideoMambaState(model.config, batch_size=len(frames)), []
    for chunk in frames.split(length, dim=1):
        outputs = model.base_model(chunk, state=state)
        state = outputs.state
        answers.append(model.classifier(outputs.last_hidden_state[:, 0]).argmax(dim=-1))
    answer = torch.stack(answers, dim=1).repeat_interleave(length, dim=1).flatten()
    return (answer == classes).float().mean().item()


def measure(folder: Path, seed: int, training_seconds: float, epochs: int, seconds: float) -> None:
    set_seed(seed)
    events = write_event_video(folder / "training.mp4", seconds=training_seconds, seed=seed, held_out=False)
    clips = read_windows(folder / "training.mp4", events, NUM_FRAMES, TRAINING_STRIDE)
    model = train(make_clip_classifier(tubelet_size=1), *clips, epochs)
    events = write_event_video(folder / "test.mp4", seconds=seconds, seed=seed, held_out=True)
    frames, shares = read_windows(folder / "test.mp4", events, 1, 1)
    length = len(frames) // NUM_FRAMES * NUM_FRAMES
    frames, classes = frames[:length, 0], shares[:length].argmax(dim=-1)
    print(f"seed {seed}; right frames of {length:,}, by the length of a chunk")
    print(f"  {'':20}" + "".join(f"{each:>8}" for each in LENGTHS))
    for way in WAYS:
        found = [accuracy(model, frames, classes, each, way) for each in LENGTHS]
        print(f"  {way:20}" + "".join(f"{each:>8.1%}" for each in found), flush=True)


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    print_machine("torch", "transformers", "av", threads=arguments.threads)
    seeds, training_seconds, epochs, seconds = (
        (1, 12, 1, 12) if arguments.smoke else (arguments.seeds, 600, arguments.epochs, 300)
    )
    for seed in range(seeds):
        with tempfile.TemporaryDirectory() as folder:
            measure(Path(folder), seed, training_seconds, epochs, seconds)


if __name__ == "__main__":
    main()
