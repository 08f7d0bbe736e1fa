"""
Trains the start of small fine-tunings, `hf_video/start`, on generated videos and on pictures. About three hours on two
cores.

    python examples/train_start.py MOTION [--steps 2500] [--seed 0] [--size 128 4 4]
    python examples/train_start.py SHAPE --model MOTION/start --steps 4500
    python examples/start_pictures.py PICTURES
    python examples/train_start.py SIGHT --model SHAPE/start --steps 6100 --pictures PICTURES

A VideoViT learns the targets of `generated_motion.py`: for every token how far what it shows moves and which edges it
has, and for the clip the kinds of motion, their rates, the place, the shape and the textures. The first command begins
with motion: the level of its clips rises from 0 to 1, and later they have all levels. The second one goes on with
shapes, textures and single motions. Most of its clips have two frames, in which a shape is seen four times as often at
the same cost. The last one goes on with letters, clip art, photographs and textures: which they are, and what a
network that knows ImageNet sees in them. It keeps what the model before it knows of motion. `--without` leaves one of
these parts out.

The same command goes on after an interruption, from the last checkpoint. It writes `start`, a classifier of the main
object's motion in bfloat16 with its processor, and `figures.json`, the accuracy on clips that no step has seen.
"""

import argparse
import json
import math
import os
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from generated_motion import (
    IMAGE_SIZE,
    KINDS,
    MOTIONS,
    NUM_FRAMES,
    OBJECT_LIMITS,
    PATCH_SIZE,
    TUBELET_SIZE,
    UNKNOWN,
    VALUES,
    Clips,
    draw_clips,
)
from generated_pictures import NUM_SHAPES, TEXTURES
from start_pictures import LETTERS, Pictures
from start_teacher import FRAME_AXES, PATCH_AXES, Teacher
from torch import Tensor, nn
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments, set_seed
from transformers.trainer_utils import get_last_checkpoint

from hf_video import VideoClipProcessor, VideoViTConfig, VideoViTForVideoClassification

# A step has two batches, one after the other or, with two processes, side by side. They have so many clips, and with
# `--model` the first has clips of a single tubelet, the second whole ones.
BATCHES, BATCH_SIZE, SHORT_BATCH_SIZE, WHOLE_BATCH_SIZE = 2, 16, 32, 8
# With pictures, of both and how much the loss on what the model before knows counts: first and, from some share of the
# steps on, at last.
SIGHT_BATCH_SIZES, KEPT_BATCH_SIZES, KEPT_WEIGHTS = (56, 28), (6, 14), (1.5, 3.0)
LAST_PART = 0.79
# What the third training can go without, to see what it brings: the network that knows ImageNet, photographs and
# textures of games, and clips of all frames.
PARTS = ("teacher", "photographs", "motion")
SIGHT_SCENES = ("picture", "picture", "letter", "letter", "letter", "stamp")
# Held-out clips have seeds of their own.
HELD_OUT_SEED = 10**9
# Steps of a scale that is finer around zero, on either side of zero.
FINENESS, SIDE = 3.0, 7
NUM_BINS = 2 * SIDE + 1
# Directions of edges.
NUM_EDGES = 8


class GeneratedBatches(Dataset):
    """Whole batches of generated clips; the number of a batch decides its clips and, for training, their level.

    Args:
        course: "motion", "shape" and "sight" are the three trainings, "test" has whole clips of level 1.
        sight: gives pictures and further targets.
    """

    def __init__(self, num_batches: int, seed: int, course: str, sight: "Sight | None" = None):
        self.sight = sight
        self.num_batches = num_batches
        self.seed = seed
        self.course = course

    def __len__(self) -> int:
        return self.num_batches

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        batch = asdict(self.draw(index))
        batch = {"pixel_values": normalize(batch.pop("frames"))} | batch
        if self.sight is not None:
            batch |= self.sight.targets(batch["pixel_values"])
            return batch | {"kept_weight": torch.tensor(KEPT_WEIGHTS[index / self.num_batches >= LAST_PART])}
        return {name: value for name, value in batch.items() if name not in ("letter", "file")}

    def draw(self, index: int) -> Clips:
        seed, progress = self.seed + index, index / self.num_batches
        # Multiples of the golden ratio spread evenly.
        any_level = index * 0.618034 % 1
        if self.course == "test":
            return draw_clips(BATCH_SIZE, seed)
        if self.course == "motion":
            rising = min(max((progress - 0.1) / 0.35, 0.0), 1.0)
            return draw_clips(BATCH_SIZE, seed, rising if progress < 0.5 else any_level, ("all",))
        if self.sight is not None:
            pictures, ease, part = self.sight.pictures, max(0.0, 1 - 5 * progress), progress >= LAST_PART
            if index % BATCHES == 0 or self.sight.without == "motion":
                count = SIGHT_BATCH_SIZES[part]
                return draw_clips(count, seed, any_level, self.sight.scenes, TUBELET_SIZE, pictures, ease)
            count = KEPT_BATCH_SIZES[part]
            return draw_clips(count, seed, any_level, ("camera", "object", "all"), pictures=pictures)
        if index % BATCHES == 0:
            return draw_clips(SHORT_BATCH_SIZE, seed, any_level, ("form", "form", "camera"), TUBELET_SIZE)
        return draw_clips(WHOLE_BATCH_SIZE, seed, any_level, ("camera", "object", "all"))


class Sight:
    """
    The pictures of the third training, and what its teachers see in its clips: a network in single frames, the model
    before it in whole clips.

    Args:
        folder: what `start_pictures.py` wrote.
        model: the folder of the model before.
        without: one of `PARTS`, which is left out.
    """

    def __init__(self, folder: Path, model: Path, without: str | None = None):
        self.without = without
        takes_parts = without != "photographs"
        self.pictures, self.teacher = Pictures(folder, takes_parts), Teacher(folder)
        self.scenes = tuple(scene for scene in SIGHT_SCENES if takes_parts or scene != "picture")
        self.before = VideoViTForVideoClassification.from_pretrained(model, dtype=torch.float32).eval()
        drawn = [draw_clips(64, HELD_OUT_SEED - index, 0.5, self.scenes, 2, self.pictures) for index in range(1, 31)]
        self.teacher.fit(normalize(torch.cat([clips.frames[:, 0] for clips in drawn])))

    @torch.no_grad()
    def targets(self, pixel_values: Tensor) -> dict[str, Tensor]:
        """For clips of one tubelet what the network sees in the first frame, for whole ones `kept` features."""
        if pixel_values.shape[1] == TUBELET_SIZE:
            if self.without == "teacher":
                return {}
            of_frame, of_patches = self.teacher(pixel_values[:, 0])
            return {"of_frame": of_frame, "of_patches": of_patches}
        return {"kept": self.before.pool(self.before.videovit(pixel_values).last_hidden_state)}


def the_batch(items: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    return items[0]


def make_processor() -> VideoClipProcessor:
    return VideoClipProcessor(
        num_frames=NUM_FRAMES, sampling_strategy="uniform", size=IMAGE_SIZE, crop_size=IMAGE_SIZE, antialias=True
    )


def normalize(frames: Tensor) -> Tensor:
    """Frames in [0, 1], (..., 3, H, W), as the processor gives them to the model."""
    processor = make_processor()
    mean, std = (torch.tensor(each)[:, None, None] for each in (processor.image_mean, processor.image_std))
    return (frames - mean) / std


def make_config(width: int, layers: int, heads: int) -> VideoViTConfig:
    return VideoViTConfig(
        image_size=IMAGE_SIZE,
        patch_size=PATCH_SIZE,
        num_frames=NUM_FRAMES,
        tubelet_size=TUBELET_SIZE,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=4 * width,
        position_embedding_type="rope",
        key_bias=True,
        # At this width the usual 0.02 is far below what keeps the scale of the activations, and training stalls.
        initializer_range=0.08,
        id2label=dict(enumerate(KINDS)),
        label2id={name: index for index, name in enumerate(KINDS)},
    )


def bin_shares(values: Tensor, limits: Tensor) -> Tensor:
    """Which bins hold values, (..., NUM_BINS): the two nearest share a value. All are 0 for NaN."""
    bins = (values / limits).clamp(-1, 1) * math.sinh(FINENESS)
    bins = bins.asinh() / FINENESS * SIDE + SIDE
    return (1 - (bins[..., None] - torch.arange(NUM_BINS)).abs()).clamp(min=0).nan_to_num()


def bin_values(limits: Tensor) -> Tensor:
    """The values of the bins, (len(limits), NUM_BINS)."""
    steps = torch.arange(-SIDE, SIDE + 1) / SIDE * FINENESS
    return limits[:, None] * steps.sinh() / math.sinh(FINENESS)


def shared_cross_entropy(logits: Tensor, shares: Tensor) -> Tensor:
    """The mean cross-entropy of what is known."""
    known = shares.sum(dim=-1)
    return -(shares * logits.log_softmax(dim=-1)).sum() / known.sum().clamp(min=1)


def edges_of(pixel_values: Tensor) -> Tensor:
    """
    What each token shows of clips (B, T, 3, H, W), (B, N, NUM_EDGES + 3): the strength of edges by their direction, as
    histograms of gradients have it (Dalal and Triggs 2005), and the mean colour.
    """
    grey = F.pad(pixel_values.mean(dim=2), (0, 1, 0, 1), "replicate")
    right, down = grey.diff(dim=3)[..., :-1, :], grey.diff(dim=2)[..., :-1]
    angles = [math.pi * index / NUM_EDGES for index in range(NUM_EDGES)]
    edges = torch.stack([(right * math.cos(angle) + down * math.sin(angle)).abs() for angle in angles], dim=1)
    size = (TUBELET_SIZE, PATCH_SIZE, PATCH_SIZE)
    strength = (1 + 10 * F.avg_pool3d(edges, size)).log()
    return torch.cat([strength, F.avg_pool3d(pixel_values.transpose(1, 2), size)], dim=1).flatten(2).transpose(1, 2)


def known_cross_entropy(logits: Tensor, indices: Tensor) -> Tensor:
    """The mean cross-entropy of logits (..., K) where the indices (...) are known; 0 where none is."""
    total = F.cross_entropy(logits.flatten(0, -2), indices.flatten(), ignore_index=UNKNOWN, reduction="sum")
    return total / (indices != UNKNOWN).sum().clamp(min=1)


class MotionLearner(VideoViTForVideoClassification):
    """A classifier of the main object's motion with further heads, which serve its training alone."""

    def __init__(self, config: VideoViTConfig):
        super().__init__(config)
        width = config.hidden_size
        self.token_norm = nn.LayerNorm(width)
        self.token_head = nn.Linear(width, 2 * NUM_BINS + 1)
        self.edge_head = nn.Linear(width, NUM_EDGES + 3)
        self.kind_head = nn.Linear(width, (len(MOTIONS) - 1) * len(KINDS))
        self.value_head = nn.Linear(width, len(VALUES) * NUM_BINS)
        self.shape_head = nn.Linear(width, NUM_SHAPES)
        self.texture_head = nn.Linear(width, 2 * len(TEXTURES))
        self.post_init()

    def forward(self, **clips: Tensor) -> dict[str, Tensor]:
        return self.learn(**clips)[0]

    def learn(
        self,
        pixel_values: Tensor,
        flow: Tensor,
        is_object: Tensor,
        kinds: Tensor,
        values: Tensor,
        shape: Tensor,
        textures: Tensor,
    ) -> tuple[dict[str, Tensor], Tensor]:
        """The loss and what is found, and the tokens of the encoder."""
        tokens = self.videovit(pixel_values).last_hidden_state
        normalized = self.token_norm(tokens)
        of_tokens = self.token_head(normalized)
        flow_logits = of_tokens[..., 1:].unflatten(-1, (2, NUM_BINS))
        feature = self.pool(tokens)
        kind_logits = torch.cat([self.classifier(feature), self.kind_head(feature)], dim=-1)
        kind_logits = kind_logits.unflatten(-1, (len(MOTIONS), len(KINDS)))
        value_logits = self.value_head(feature).unflatten(-1, (len(VALUES), NUM_BINS))
        shape_logits = self.shape_head(feature)
        texture_logits = self.texture_head(feature).unflatten(-1, (2, len(TEXTURES)))
        value_limits, flow_limits = torch.tensor(list(VALUES.values())), torch.tensor(OBJECT_LIMITS[:2])
        loss = (
            shared_cross_entropy(flow_logits, bin_shares(flow, flow_limits))
            + F.binary_cross_entropy_with_logits(of_tokens[..., 0], is_object)
            + shared_cross_entropy(value_logits, bin_shares(values, value_limits))
            + 0.5 * known_cross_entropy(kind_logits, kinds)
            + F.smooth_l1_loss(self.edge_head(normalized), edges_of(pixel_values))
            + known_cross_entropy(shape_logits, shape)
            + 0.5 * known_cross_entropy(texture_logits, textures)
        )
        outputs = {
            "loss": loss,
            "flow": (flow_logits.softmax(dim=-1) * bin_values(flow_limits)).sum(dim=-1),
            "is_object": of_tokens[..., 0],
            "kinds": kind_logits.argmax(dim=-1),
            "values": (value_logits.softmax(dim=-1) * bin_values(value_limits)).sum(dim=-1),
            "shape": shape_logits.argmax(dim=-1),
            "textures": texture_logits.argmax(dim=-1),
        }
        return outputs, tokens


class SightLearner(MotionLearner):
    """One with heads for letters, files and what the teacher sees."""

    def __init__(self, config: VideoViTConfig, num_files: int):
        super().__init__(config)
        width = config.hidden_size
        self.letter_head = nn.Linear(width, len(LETTERS))
        self.file_head = nn.Linear(width, num_files)
        self.frame_head = nn.Sequential(nn.Linear(width, 3 * width), nn.GELU(), nn.Linear(3 * width, FRAME_AXES))
        self.linear_frame_head = nn.Linear(width, FRAME_AXES)
        self.patch_head = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, PATCH_AXES))
        self.post_init()

    def forward(
        self,
        letter: Tensor | None = None,
        file: Tensor | None = None,
        of_frame: Tensor | None = None,
        of_patches: Tensor | None = None,
        kept: Tensor | None = None,
        kept_weight: Tensor | float = 1.0,
        **clips: Tensor,
    ) -> dict[str, Tensor]:
        outputs, tokens = self.learn(**clips)
        feature, loss = self.pool(tokens), outputs["loss"]
        if letter is not None:
            loss = loss + known_cross_entropy(self.letter_head(feature), letter)
            loss = loss + 0.4 * known_cross_entropy(self.file_head(feature), file)
        if kept is not None:
            loss = loss + kept_weight * F.smooth_l1_loss(feature, kept, beta=0.5)
        if of_frame is not None:
            linear = self.linear_frame_head(feature)
            loss = loss + F.smooth_l1_loss(self.frame_head(feature), of_frame) + F.smooth_l1_loss(linear, of_frame)
            loss = loss + F.smooth_l1_loss(self.patch_head(self.token_norm(tokens)), of_patches)
            # Which of the batch's frames the teacher saw (van den Oord et al. 2018).
            likeness = F.normalize(linear, dim=-1) @ F.normalize(of_frame, dim=-1).T
            loss = loss + 0.4 * F.cross_entropy(likeness / 0.07, torch.arange(len(likeness)))
        return outputs | {"loss": loss}


TARGETS = ("flow", "is_object", "kinds", "values", "shape", "textures")


def measure(results: Any) -> dict[str, float]:
    """Accuracies, the mean error of the flow of objects in pixels, and shares of the variance of values."""
    found, known = (
        {name: torch.as_tensor(each) for name, each in zip(TARGETS, columns, strict=True)}
        for columns in (results.predictions, results.label_ids)
    )
    moved = (known["is_object"] > 0) & known["flow"].isfinite().all(dim=-1)
    figures = {
        "flow_error": (found["flow"] - known["flow"])[moved].norm(dim=-1).mean(),
        "flow_size": known["flow"][moved].norm(dim=-1).mean(),
        "objects": ((found["is_object"] > 0) == (known["is_object"] > 0)).float().mean(),
        "shape": (found["shape"] == known["shape"])[known["shape"] != UNKNOWN].float().mean(),
    }
    for name, kinds in (("kinds", MOTIONS), ("textures", ("object texture", "ground texture"))):
        for column, of_what in enumerate(kinds):
            seen = known[name][:, column] != UNKNOWN
            right = found[name][seen, column] == known[name][seen, column]
            figures[of_what.replace(" ", "_")] = right.float().mean()
    for column, name in enumerate(VALUES):
        seen = known["values"][:, column].isfinite()
        error = (found["values"] - known["values"])[seen, column].square().mean()
        figures[name.replace(" ", "_")] = 1 - error / known["values"][seen, column].var()
    return {name: round(float(value), 4) for name, value in figures.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output_dir", type=Path)
    parser.add_argument("--steps", type=int, default=2500, help=f"of {BATCHES * BATCH_SIZE} clips; default 2500")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--size", type=int, nargs=3, default=[128, 4, 4], metavar=("WIDTH", "LAYERS", "HEADS"))
    parser.add_argument("--model", type=Path, help="the model of the first training, to go on with shapes")
    parser.add_argument("--pictures", type=Path, help="what start_pictures.py wrote, to go on with these")
    parser.add_argument("--without", choices=PARTS, help="leave a part of the training with pictures out")
    parser.add_argument("--smoke", action="store_true", help="take a tiny model and six steps")
    arguments = parser.parse_args()
    steps, size = (6, [32, 1, 2]) if arguments.smoke else (arguments.steps, arguments.size)
    # As `torchrun --nproc-per-node 2` sets it.
    num_processes = int(os.environ.get("WORLD_SIZE", 1))
    begin = time.monotonic()
    (arguments.output_dir / "run").mkdir(parents=True, exist_ok=True)
    set_seed(arguments.seed)
    sight = Sight(arguments.pictures, arguments.model, arguments.without) if arguments.pictures else None
    if sight:
        num_files = sight.pictures.num_files
        model = SightLearner.from_pretrained(arguments.model, dtype=torch.float32, num_files=num_files)
    elif arguments.model:
        model = MotionLearner.from_pretrained(arguments.model, dtype=torch.float32)
    else:
        model = MotionLearner(make_config(*size))
    course = "sight" if sight else "shape" if arguments.model else "motion"
    interval = max(steps // 10, 2)
    trainer = Trainer(
        model,
        TrainingArguments(
            output_dir=str(arguments.output_dir / "run"),
            max_steps=steps,
            # The items are batches.
            per_device_train_batch_size=1,
            per_device_eval_batch_size=1,
            gradient_accumulation_steps=BATCHES // num_processes,
            use_cpu=True,
            ddp_backend="gloo" if num_processes > 1 else None,
            train_sampling_strategy="sequential",
            seed=arguments.seed,
            learning_rate=arguments.learning_rate,
            weight_decay=0.05,
            adam_beta2=0.98,
            warmup_steps=0.03,
            lr_scheduler_type="cosine",
            eval_strategy="steps",
            eval_steps=2 * interval,
            save_steps=interval,
            save_total_limit=2,
            logging_steps=min(50, interval),
            label_names=list(TARGETS),
            remove_unused_columns=False,
            dataloader_pin_memory=False,
            report_to="none",
            disable_tqdm=True,
        ),
        the_batch,
        GeneratedBatches(BATCHES * steps, arguments.seed * 10**6, course, sight),
        GeneratedBatches(2 if arguments.smoke else 40, HELD_OUT_SEED, "test"),
        compute_metrics=measure,
    )
    trainer.train(resume_from_checkpoint=get_last_checkpoint(arguments.output_dir / "run"))
    figures = {name.removeprefix("eval_"): value for name, value in trainer.evaluate().items()}
    size = [getattr(model.config, name) for name in ("hidden_size", "num_hidden_layers", "num_attention_heads")]
    details = {"steps": steps, "seed": arguments.seed, "size": size, "seconds": round(time.monotonic() - begin)}
    (arguments.output_dir / "figures.json").write_text(json.dumps(details | figures, indent=2) + "\n")
    start = VideoViTForVideoClassification(model.config)
    start.load_state_dict({name: model.state_dict()[name] for name in start.state_dict()})
    start.to(torch.bfloat16).save_pretrained(arguments.output_dir / "start")
    # Who trains it further trains float32, which `from_pretrained` gives by the configuration.
    start.config.dtype = torch.float32
    start.config.save_pretrained(arguments.output_dir / "start")
    make_processor().save_pretrained(arguments.output_dir / "start")
    print(f"Wrote {arguments.output_dir / 'start'}, {start.num_parameters():,} parameters")


if __name__ == "__main__":
    main()
