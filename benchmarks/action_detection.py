"""
An STMixer from scratch that learns to find two handwritten digits at a key frame, and in which way each of them moves.

The scenes are those of `helpers/two_digits.py`, drawn anew for every step. The backbone is a VideoMamba of 4 layers;
backbone and head learn together with `ActionDetectionTrainer`. Measured are 300 videos with scans of other digits:

- the mean average precision at an IoU of 0.5 over the eight motions, as `hf-video evaluate` prints it;
- the same of the actions alone: each annotated box gets the actions of the query that overlaps it most;
- the same class-blind: the scores of each person are permuted among the motions;
- all of it with the frames of each video in random order, where the motions look alike.

Guesses have a mean average precision of about 0.13, the share of a motion. It takes about ten minutes on a CPU core.

    python benchmarks/action_detection.py [--steps 250] [--threads 1] [--smoke]
"""

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from helpers.measurement import GOAL_MISSED, make_parser, print_machine
from helpers.two_digits import ACTIONS, FPS, HEIGHT, NUM_FRAMES, WIDTH, render_scene, write_two_digits
from torch.utils.data import Dataset
from torchvision.ops import box_iou
from transformers import BatchFeature, set_seed

from hf_video import STMixerConfig, STMixerForActionDetection, VideoDetectionProcessor
from hf_video.data import BoxTask, VideoDataset, load_detections
from hf_video.demo import load_digit_scans
from hf_video.evaluation import evaluate_detections
from hf_video.evaluation.detections import measure_persons
from hf_video.inference import EvaluateSettings
from hf_video.models.videomamba import VideoMambaConfig
from hf_video.training import ActionDetectionTrainer, DetectionTrainingArguments

BATCH_SIZE = 32
MIN_MEAN_AP = 0.7


class Scenes(Dataset):
    """Clips of scenes that are drawn anew in every step."""

    def __init__(self, processor: VideoDetectionProcessor, length: int) -> None:
        self.processor, self.length, self.scans = processor, length, load_digit_scans(seed=0)[0]

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> BatchFeature:
        scene = render_scene(self.scans, np.random.default_rng([1, index]))
        class_labels = np.array([[action == name for name in ACTIONS] for action in scene.actions], dtype=float)
        annotation = {"boxes": scene.boxes, "class_labels": class_labels}
        batch = self.processor([scene.frames], annotations=[annotation], return_tensors="pt")
        return BatchFeature({name: batch[name][0] for name in ("pixel_values", "original_sizes", "labels")})


def make_processor() -> VideoDetectionProcessor:
    return VideoDetectionProcessor(
        num_frames=NUM_FRAMES,
        frame_sampling_rate=1,
        fps=FPS,
        size={"shortest_edge": HEIGHT},
        # Most of a frame is black, and becomes 0.
        image_mean=[0.0] * 3,
        image_std=[0.3] * 3,
    )


def make_model() -> STMixerForActionDetection:
    backbone = VideoMambaConfig(
        image_size=(HEIGHT, WIDTH),
        patch_size=8,
        num_frames=NUM_FRAMES,
        tubelet_size=2,
        hidden_size=64,
        num_hidden_layers=4,
        state_size=8,
    )
    config = STMixerConfig(
        backbone_config=backbone,
        num_queries=10,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        num_spatial_points=16,
        num_temporal_points=NUM_FRAMES // 2,
        point_multiplier=2,
        id2label=dict(enumerate(ACTIONS)),
    )
    return STMixerForActionDetection(config)


def train(steps: int, folder: str) -> ActionDetectionTrainer:
    arguments = DetectionTrainingArguments(
        folder,
        max_steps=steps,
        per_device_train_batch_size=BATCH_SIZE,
        learning_rate=3e-3,
        lr_scheduler_type="cosine",
        adam_beta2=0.98,
        weight_decay=0.05,
        max_grad_norm=1.0,
        warmup_steps=0.2,
        eval_strategy="no",
        save_strategy="no",
        load_best_model_at_end=False,
        logging_steps=50,
        use_cpu=True,
        disable_tqdm=True,
        reading_threads=0,
    )
    set_seed(arguments.seed)
    processor = make_processor()
    scenes = Scenes(processor, steps * BATCH_SIZE)
    trainer = ActionDetectionTrainer(make_model(), arguments, train_dataset=scenes, processing_class=processor)
    trainer.train()
    return trainer


@torch.inference_mode()
def measure_controls(model: Any, processor: VideoDetectionProcessor, rows: Any) -> dict[str, float]:
    """The mean average precision with annotated boxes, and that of the same model class-blind."""
    generator = np.random.default_rng(0)
    clips = VideoDataset(rows, BoxTask(processor), training=False)
    collate = clips.task.collate
    of_annotated, blind = [], []
    for start in range(0, len(rows), BATCH_SIZE):
        batch = collate([clips[index] for index in range(start, min(start + BATCH_SIZE, len(rows)))])
        sizes = batch["original_sizes"]
        outputs = model(batch["pixel_values"], original_sizes=sizes)
        found = processor.post_process_action_detection(outputs, original_sizes=sizes, original=True)
        blind += [each | {"action_scores": generator.permuted(each["action_scores"], axis=1)} for each in found]
        for boxes, scores, label in zip(outputs.pred_boxes, outputs.action_logits, batch["labels"], strict=True):
            best = box_iou(label["boxes"], boxes).argmax(dim=1)
            shares = label["boxes"] / torch.tensor([WIDTH, HEIGHT, WIDTH, HEIGHT])
            of_annotated.append({"boxes": shares, "action_scores": scores[best].sigmoid()})
    names = list(ACTIONS)
    return {
        "with annotated boxes": measure_persons(of_annotated, rows, names)["mean_ap"],
        "class-blind": measure_persons(blind, rows, names)["mean_ap"],
    }


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--steps", type=int, default=250)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print_machine("torch", "transformers", threads=options.threads)
    steps, num_test = (2, 8) if options.smoke else (options.steps, 300)
    with tempfile.TemporaryDirectory() as folder:
        model_dir, videos = Path(folder, "model"), Path(folder, "two_digits")
        write_two_digits(videos, num_test)
        start = time.perf_counter()
        trainer = train(steps, str(model_dir))
        print(f"{steps} steps of {BATCH_SIZE} videos in {(time.perf_counter() - start) / 60:.1f} minutes")
        trainer.save_model()
        model, processor = trainer.model.eval(), trainer.processing_class
        reached = 0.0
        for name, order in {"test": "frames in order", "shuffled": "shuffled frames"}.items():
            data = str(videos / f"{name}.csv")
            settings = EvaluateSettings(data=data, model=str(model_dir), task="action-detection", device="cpu")
            found = evaluate_detections(settings)
            reached = max(reached, found["mean_ap"])
            print(f"{order}: mean average precision {found['mean_ap']:.3f}")
            print("  " + "  ".join(f"{motion} {precision:.3f}" for motion, precision in found["ap"].items()))
            (rows,) = load_detections(data).values()
            for control, mean_ap in measure_controls(model, processor, rows).items():
                print(f"{order}, {control}: mean average precision {mean_ap:.3f}")
    return 0 if reached >= MIN_MEAN_AP or options.smoke else GOAL_MISSED


if __name__ == "__main__":
    sys.exit(main())
