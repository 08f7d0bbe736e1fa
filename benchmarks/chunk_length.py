"""
How much of the answer of a bidirectional VideoMamba stays if it sees a video in chunks, by their length.

Small models with the scans and the positions of the released weights learn clips of 8 frames, of three sets:

- digits: which of ten digits goes around a square;
- motions: in which of eight ways it does, which the order of the frames alone shows;
- events: a digit moves left, right, up or down, stands still, or is not there, in a video that does not end.

Then they read clips of other digits in chunks, and answer from the class token once a chunk. Of digits and motions the
last answer of a clip counts; of events each answer, for every frame of its chunk. At 8 frames the model does what it
learned. The backward scans see a chunk alone. The forward scans can remember earlier chunks in two ways:

- through: the class token is a part of the sequence, before the patches of each chunk, as it was in training;
- beside: it reads the state, but earlier patches are followed by patches. In a new stream it goes first.

Both are measured with a state that begins anew after 8 frames, the length of a clip in training, and of events also
with one that goes on to the end. `VideoMambaState` has the first way. It takes about 15 minutes on an idle core.

    python benchmarks/chunk_length.py [--sets digits motions events] [--seeds 1] [--threads 1] [--smoke]
"""

import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from helpers.captioned_digits import IMAGE_SIZE, Scene, render_scene
from helpers.event_training import (
    NUM_FRAMES,
    make_clip_classifier,
    make_frame_classifier,
    read_frames,
    read_windows,
    train,
)
from helpers.event_video import write_event_video
from helpers.measurement import make_parser, print_machine
from torch.nn.functional import one_hot
from transformers import PreTrainedModel, set_seed

from hf_video.demo import MOTIONS, load_labelled_scans
from hf_video.models.videomamba import VideoMambaConfig, VideoMambaForVideoClassification, VideoMambaState
from hf_video.models.videomamba.modeling_videomamba import LayerState, VideoMambaMixer

SETS = ("digits", "motions", "events")
LENGTHS = (1, 2, 4, 8)
# Samples from one clip of the training video to the next.
TRAINING_STRIDE = 3


class Learned(NamedTuple):
    """A trained model, and a test.

    Attributes:
        frames: (num_streams, num_frames, C, H, W); a stream is a clip or the whole video.
        classes: (num_streams, num_frames).
        is_stream: whether each answer counts, else the last of a clip.
    """

    model: PreTrainedModel
    frames: torch.Tensor
    classes: torch.Tensor
    is_stream: bool


class MixerBeside(VideoMambaMixer):
    """The class token reads the state of a stream, and the patches do not read the class token."""

    def go_on(
        self, hidden_states: torch.Tensor, gate: torch.Tensor, state: LayerState
    ) -> tuple[torch.Tensor, LayerState]:
        if not state[1].any():
            return super().go_on(hidden_states, gate, state)
        of_class_token, _ = self.forward_scan(hidden_states[..., :1], state=state)
        patches = hidden_states[..., 1:]
        mixed, scan_state = self.forward_scan(patches, state=state)
        mixed = self.backward_scan(hidden_states, addend=torch.cat([of_class_token, mixed], dim=-1))
        conv_state = torch.cat([state[1], patches], dim=-1)[..., patches.shape[-1] :]
        return self.out_proj((mixed * self.gate_fn(gate)).mT), (scan_state, conv_state)


@torch.inference_mode()
def accuracy(learned: Learned, length: int, memory: int, mixer: type[VideoMambaMixer]) -> float:
    """The share of right answers in chunks of `length` frames, with a state that begins anew after `memory` frames."""
    for layer in learned.model.base_model.layers:
        layer.mixer.__class__ = mixer
    frames = learned.frames if learned.is_stream else learned.frames[:, -memory:]
    classes = learned.classes[:, -frames.shape[1] :]
    frames, classes = (each.unflatten(1, (-1, memory)).flatten(0, 1) for each in (frames, classes))
    right = []
    for some, wanted in zip(frames.split(64), classes.split(64), strict=True):
        state, answers = VideoMambaState(learned.model.config, batch_size=len(some)), []
        for chunk in some.split(length, dim=1):
            outputs = learned.model(chunk, state=state)
            state = outputs.state
            answers.append(outputs.logits.argmax(dim=-1))
        answer = torch.stack(answers, dim=1).repeat_interleave(length, dim=1)
        right.append((answer == wanted) if learned.is_stream else (answer == wanted)[:, -1:])
    return torch.cat(right).float().mean().item()


def learn_events(seed: int, smoke: bool) -> Learned:
    training_seconds, seconds, epochs = (12, 12, 1) if smoke else (600, 300, 16)
    with tempfile.TemporaryDirectory() as folder:
        video = Path(folder) / "training.mp4"
        events = write_event_video(video, seconds=training_seconds, seed=seed, held_out=False)
        # The labels of frames teach the encoder sooner than those of clips, which one token has to learn from.
        frames = read_frames(video, events, num_frames=32, stride=8)
        encoder = train(make_frame_classifier(32, bidirectional=True), *frames, epochs, 8, learning_rate=3e-3)
        model = make_clip_classifier()
        # Its positions over time are new.
        model.load_state_dict(encoder.state_dict(), strict=False)
        train(model, *read_windows(video, events, NUM_FRAMES, TRAINING_STRIDE), -(-epochs // 2))
        video = Path(folder) / "test.mp4"
        events = write_event_video(video, seconds=seconds, seed=seed, held_out=True)
        frames, shares = read_windows(video, events, 1, 1)
    length = len(frames) // NUM_FRAMES * NUM_FRAMES
    return Learned(model, frames[None, :length, 0], shares[None, :length].argmax(dim=-1), is_stream=True)


def learn_clips(name: str, seed: int, smoke: bool) -> Learned:
    classes = list(MOTIONS) if name == "motions" else list(range(10))
    num_train, num_test, epochs = (16, 8, 1) if smoke else (4000, 800, 6)

    def draw(count: int, is_test: bool) -> tuple[torch.Tensor, torch.Tensor]:
        scans, digits = load_labelled_scans(seed=0)[is_test]
        generator = np.random.default_rng([seed, is_test])
        clips, targets = [], []
        for _ in range(count):
            index, motion = generator.integers(len(scans)), str(generator.choice(list(MOTIONS)))
            scene = Scene(int(digits[index]), "big", "white", "slowly", motion)
            clips.append(render_scene(scene, scans[index], generator))
            targets.append(classes.index(motion if name == "motions" else scene.number))
        return torch.from_numpy(np.stack(clips)).movedim(-1, 2).float() / 127.5 - 1, torch.tensor(targets)

    config = VideoMambaConfig(
        image_size=IMAGE_SIZE,
        patch_size=8,
        num_frames=NUM_FRAMES,
        hidden_size=64,
        num_hidden_layers=4,
        num_labels=len(classes),
        time_step_init_scheme="random",
    )
    clips, targets = draw(num_train, is_test=False)
    shares = one_hot(targets, len(classes)).float()
    model = train(VideoMambaForVideoClassification(config), clips, shares, epochs, are_events=False)
    clips, targets = draw(num_test, is_test=True)
    return Learned(model, clips, targets[:, None].expand(-1, NUM_FRAMES), is_stream=False)


def print_table(name: str, learned: Learned, seed: int) -> None:
    answers = f"right frames of {learned.classes.numel():,}"
    if not learned.is_stream:
        answers = f"right clips of {len(learned.classes):,}"
    tubelet_size = learned.model.config.tubelet_size
    lengths = [length for length in LENGTHS if length >= tubelet_size]
    print(f"{name}, seed {seed}: {answers}, by the frames of a chunk")
    print(f"  {'':32}" + "".join(f"{each:>8}" for each in lengths))
    ways = [("each chunk alone", None, VideoMambaMixer)]
    memories = {"8 frames": NUM_FRAMES} | ({"the video": learned.frames.shape[1]} if learned.is_stream else {})
    for of, memory in memories.items():
        ways.append((f"state of {of}, through", memory, VideoMambaMixer))
        ways.append((f"state of {of}, beside", memory, MixerBeside))
    for way, memory, mixer in ways:
        found = [accuracy(learned, length, memory or length, mixer) for length in lengths]
        print(f"  {way:32}" + "".join(f"{each:>8.1%}" for each in found), flush=True)


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--sets", nargs="+", choices=SETS, default=SETS)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    print_machine("torch", "transformers", "av", threads=arguments.threads)
    for seed in range(1 if arguments.smoke else arguments.seeds):
        for name in arguments.sets:
            set_seed(seed)
            is_small = arguments.smoke
            learned = learn_events(seed, is_small) if name == "events" else learn_clips(name, seed, is_small)
            print_table(name, learned, seed)


if __name__ == "__main__":
    main()
