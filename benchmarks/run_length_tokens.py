"""Run-length tokens of VideoViT against all tokens: the same weights and clips in one run, in turn.

A figure is printed only after outputs agree: the features of the kept tokens with those of the plain model that sees,
by a mask, these tokens alone, and all logits with those of the plain model if nothing repeats. On 2 cores the
inference takes about a minute, and a training of three seeds about half an hour.

    python benchmarks/run_length_tokens.py                      # VideoViT-B, 16 x 224 x 224, inference
    python benchmarks/run_length_tokens.py --training           # trains the demo's model both ways, on moving digits
    python benchmarks/run_length_tokens.py [--training] --smoke # tiny and short: does it run?
"""

import copy
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from helpers.measurement import GOAL_MISSED, make_parser, print_machine, print_ratio
from torch.utils.data import DataLoader
from transformers import get_cosine_schedule_with_warmup, set_seed

from hf_video.data import ClipDataset, collate_clips, load_video_dataset
from hf_video.demo import write_moving_digits
from hf_video.models.videovit import VideoViTConfig, VideoViTForVideoClassification
from hf_video.models.videovit.run_lengths_videovit import repeated_tokens
from hf_video.processing import VideoClipProcessor
from hf_video.training.optimization import parameter_groups, parameter_settings

STATIC_GOAL, CHANGING_GOAL, TRAINING_GOAL = 0.35, 1.03, 0.5
TOLERANCE = 1e-4
DEMO_SIZES = {"image_size": 48, "patch_size": 8, "num_frames": 8, "hidden_size": 128, "intermediate_size": 512}
DEMO_SIZES |= {"num_hidden_layers": 4, "num_attention_heads": 4, "num_labels": 8}


def make_clips(config: VideoViTConfig, share: float, batch_size: int) -> torch.Tensor:
    """Clips of a static camera: in every token frame after the first, this share of the patches has other values."""
    generator = torch.Generator().manual_seed(0)
    t, h, w = config.token_grid
    frames = [torch.randn(batch_size, 3, *config.image_shape, generator=generator)]
    for _ in range(t - 1):
        changed = torch.zeros(batch_size, h * w, dtype=torch.bool)
        for row in changed:
            row[torch.randperm(h * w, generator=generator)[: round(share * h * w)]] = True
        pixels = changed.view(batch_size, 1, h, w).repeat_interleave(config.patch_shape[1], 2)
        pixels = pixels.repeat_interleave(config.patch_shape[2], 3)
        other = torch.randn(frames[-1].shape, generator=generator)
        frames.append(torch.where(pixels, other, frames[-1]))
    return torch.stack(frames, dim=1).repeat_interleave(config.tubelet_size, 1)


def with_run_lengths(model: VideoViTForVideoClassification, threshold: float) -> VideoViTForVideoClassification:
    """A model that shares the weights."""
    shared = copy.deepcopy(model, {id(parameter): parameter for parameter in model.parameters()})
    shared.config.run_length_threshold = threshold
    return shared


@torch.no_grad()
def check_features(full: VideoViTForVideoClassification, packed: VideoViTForVideoClassification, clips: torch.Tensor):
    """Stop unless the kept tokens have the features that they have in the plain model without the dropped ones."""
    repeated = repeated_tokens(clips, full.config.patch_shape, packed.config.run_length_threshold).flatten(1)
    features = packed.videovit(clips).last_hidden_state
    for clip, mask, filled in zip(clips, repeated, features, strict=True):
        expected = full.videovit(clip[None], bool_masked_pos=mask[None]).last_hidden_state[0]
        torch.testing.assert_close(filled[~mask], expected, rtol=TOLERANCE, atol=TOLERANCE)


def least_seconds(runs: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Seconds of each, taken in turn after a round of warm-up."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for round_number in range(rounds + 1):
        for name, run in runs.items():
            begin = time.perf_counter()
            run()
            if round_number:
                seconds[name].append(time.perf_counter() - begin)
    return {name: min(values) for name, values in seconds.items()}


@torch.inference_mode()
def predict(model: VideoViTForVideoClassification, batches: list[dict[str, torch.Tensor]]) -> torch.Tensor:
    model.eval()
    return torch.cat([model(batch["pixel_values"]).logits for batch in batches])


@torch.inference_mode()
def unweighted_logits(model: VideoViTForVideoClassification, batches: list[dict[str, torch.Tensor]]) -> torch.Tensor:
    """Logits if the mean took every kept token once, however long its run."""
    logits = []
    for batch in batches:
        clips = batch["pixel_values"]
        kept = ~repeated_tokens(clips, model.config.patch_shape, model.config.run_length_threshold).flatten(1)
        features = model.videovit(clips).last_hidden_state * kept[..., None]
        logits.append(model.classifier(model.fc_norm(features.sum(dim=1) / kept.sum(dim=1, keepdim=True))))
    return torch.cat(logits)


@torch.inference_mode()
def compare_inference(sizes: dict, rounds: int, batch_size: int) -> bool:
    """Print the ratio of seconds for a static camera and for clips that repeat nothing; whether they meet goals."""
    set_seed(0)
    full = VideoViTForVideoClassification(VideoViTConfig(num_labels=400, **sizes)).eval()
    packed = with_run_lengths(full, 0.1)
    passed = True
    for name, share, goal in (("static camera", 0.1, STATIC_GOAL), ("every patch changes", 1.0, CHANGING_GOAL)):
        clips = make_clips(full.config, share, batch_size)
        check_features(full, packed, clips)
        kept = 1 - repeated_tokens(clips, full.config.patch_shape, 0.1).float().mean().item()
        if share == 1:
            torch.testing.assert_close(packed(clips).logits, full(clips).logits, rtol=0, atol=0)
        seconds = least_seconds({"full": lambda c=clips: full(c), "packed": lambda c=clips: packed(c)}, rounds)
        ratio = seconds["packed"] / seconds["full"]
        passed &= ratio <= goal
        print(
            f"{name}: {kept:.0%} of the tokens kept, {seconds['full']:.3f} s with all, {seconds['packed']:.3f} s "
            f"without repetitions, ratio {ratio:.3f} (goal {goal})"
        )
        print_ratio(f"{name}, forward", ratio, "all tokens")
        if share < 1:
            batches = [{"pixel_values": clips}]
            expected = predict(full, batches)
            others = {"by run length": predict(packed, batches), "plain": unweighted_logits(packed, batches)}
            for mean, logits in others.items():
                distance = (logits - expected).norm() / (expected - expected.mean()).norm()
                print(f"    logits with a mean {mean}: {distance:.3f} of their spread off those with all tokens")
    return passed


class Training:
    """One model's training, one batch at a time. It adds up its seconds and never those of the data."""

    def __init__(self, model: VideoViTForVideoClassification, num_steps: int):
        self.model = model.train()
        groups = parameter_groups(model, parameter_settings(model, weight_decay=0.05), learning_rate=1e-3)
        self.optimizer = torch.optim.AdamW(groups, fused=True)
        self.schedule = get_cosine_schedule_with_warmup(self.optimizer, num_steps // 10, num_steps)
        self.seconds = 0.0

    def step(self, batch: dict[str, torch.Tensor]) -> None:
        begin = time.perf_counter()
        self.model(**batch).loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.schedule.step()
        self.optimizer.zero_grad()
        self.seconds += time.perf_counter() - begin


def endless(dataset: ClipDataset, batch_size: int, seed: int) -> Iterator[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    epoch = 0
    while True:
        dataset.set_epoch(epoch)
        yield from DataLoader(
            dataset, batch_size, shuffle=True, drop_last=True, generator=generator, collate_fn=collate_clips
        )
        epoch += 1


def compare_training(folder: Path, num_steps: int, seeds: int, per_class: tuple[int, int], threshold: float) -> bool:
    """Train the demo's model both ways on the same batches; print seconds and accuracies; whether goals are met."""
    data = load_video_dataset(write_moving_digits(folder, train_per_class=per_class[0], test_per_class=per_class[1]))
    processor = VideoClipProcessor(num_frames=8, sampling_strategy="uniform", size=48, crop_size=48)
    clips = ClipDataset(data["test"], processor, training=False)
    test = list(DataLoader(clips, 32, collate_fn=collate_clips))
    labels = torch.cat([batch["labels"] for batch in test])
    kept = (
        1
        - torch.cat([repeated_tokens(batch["pixel_values"], (2, 8, 8), threshold).flatten() for batch in test])
        .float()
        .mean()
    )
    print(f"moving digits, threshold {threshold}: {kept:.0%} of the tokens kept, {num_steps} steps", flush=True)
    accuracies: dict[str, list[float]] = {"full": [], "packed": []}
    seconds = {"full": 0.0, "packed": 0.0}
    for seed in range(seeds):
        set_seed(seed)
        full = VideoViTForVideoClassification(VideoViTConfig(**DEMO_SIZES))
        set_seed(seed)
        packed_config = VideoViTConfig(**DEMO_SIZES, run_length_threshold=threshold, use_run_length_embedding=True)
        packed = VideoViTForVideoClassification(packed_config)
        packed.load_state_dict(full.state_dict(), strict=False)
        check_features(full.eval(), packed.eval(), test[0]["pixel_values"][:2])
        trainings = {"full": Training(full, num_steps), "packed": Training(packed, num_steps)}
        batches = endless(ClipDataset(data["train"], processor, training=True, seed=seed), 16, seed)
        for _ in range(num_steps):
            batch = next(batches)
            for training in trainings.values():
                training.step(batch)
        logits = {name: predict(training.model, test) for name, training in trainings.items()}
        for name, training in trainings.items():
            seconds[name] += training.seconds
            accuracies[name].append((logits[name].argmax(-1) == labels).float().mean().item())
        untrained = with_run_lengths(full, threshold)
        weighted, unweighted = predict(untrained, test), unweighted_logits(untrained, test)
        distances = [(other - logits["full"]).square().mean().sqrt().item() for other in (weighted, unweighted)]
        print(
            f"seed {seed}: accuracy {accuracies['full'][-1]:.1%} with all tokens, {accuracies['packed'][-1]:.1%} "
            f"without repetitions, {(weighted.argmax(-1) == labels).float().mean():.1%} if they are left out after "
            f"training alone; those logits are {distances[0]:.2f} off with a mean by run length, {distances[1]:.2f} "
            "with a plain mean",
            flush=True,
        )
    ratio = seconds["packed"] / seconds["full"]
    means = {name: sum(values) / seeds for name, values in accuracies.items()}
    print(
        f"model's share of a training: {seconds['full'] / seeds:.0f} s and {seconds['packed'] / seeds:.0f} s, ratio "
        f"{ratio:.3f} (goal {TRAINING_GOAL}); mean accuracy {means['full']:.2%} and {means['packed']:.2%}"
    )
    print_ratio("moving digits, training", ratio, "all tokens")
    return ratio <= TRAINING_GOAL and means["packed"] >= means["full"] - 0.005


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--training", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=1, help="clips of the inference")
    parser.add_argument("--steps", type=int, default=800, help="steps of a training; the demo has about as many")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--threshold", type=float, default=0.1, help="of the training")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    print_machine("torch", threads=args.threads)
    if args.training:
        with tempfile.TemporaryDirectory() as folder:
            sizes = (2, 1) if args.smoke else (100, 25)
            steps, seeds = (2, 1) if args.smoke else (args.steps, args.seeds)
            passed = compare_training(Path(folder, "digits"), steps, seeds, sizes, args.threshold)
    else:
        tiny = {"image_size": 32, "hidden_size": 24, "num_attention_heads": 2, "num_hidden_layers": 2}
        passed = compare_inference(tiny if args.smoke else {}, args.rounds, args.batch_size)
    return 0 if passed or args.smoke else GOAL_MISSED


if __name__ == "__main__":
    sys.exit(main())
