"""
What each setting for classes of different sizes gives by itself: 100, 10 and 3 training clips of three classes.

In a clip a handwritten digit moves left, right or up; a part that leaves the picture comes back on the other side. A
small VideoViT is trained from scratch by `VideoTrainer`, with the same number of steps for each setting, and its last
weights are measured on 50 clips of each class, of other digits. Clips, crops and weights are others for each seed. The
mean class accuracy counts all classes alike; chance is a third.

Mean and standard deviation over the seeds are printed. It takes two minutes on an idle core.

    python benchmarks/imbalance.py [--seeds 3] [--threads 1] [--smoke]
"""

import sys
import tempfile
from typing import Any

import numpy as np
import torch
from datasets import ClassLabel, Dataset, Features, Value
from helpers.measurement import make_parser, print_machine
from transformers import BatchFeature, PrinterCallback, set_seed

from hf_video.data import ClipDataset
from hf_video.demo import load_digit_scans
from hf_video.metrics import confusion_matrix, recognised_shares
from hf_video.models.videovit import VideoViTConfig, VideoViTForVideoClassification
from hf_video.processing import VideoClipProcessor
from hf_video.training import VideoTrainer, VideoTrainingArguments

# Rows and columns by which a digit moves, and the number of training clips.
DIRECTIONS = {"left": (0, -1), "right": (0, 1), "up": (-1, 0)}
SIZES = {"left": 100, "right": 10, "up": 3}
NUM_FRAMES, IMAGE_SIZE, MARGIN = 8, 32, 4
CURES: dict[str, dict[str, Any]] = {
    "none": {},
    "--class-weights balanced": {"class_weights": "balanced"},
    "--class-weights effective": {"class_weights": "effective"},
    "--loss focal": {"loss": "focal"},
    "--sampler balanced": {"sampler": "balanced"},
    "--sampler sqrt": {"sampler": "sqrt"},
}


class DigitClips(ClipDataset):
    """Clips in memory: a random part of each in training, else the middle."""

    def __init__(self, sizes: dict[str, int], *, training: bool, seed: int):
        generator = np.random.default_rng([seed, training])
        digits = load_digit_scans(seed=0)[0 if training else 1]
        labels = [name for name, size in sizes.items() for _ in range(size)]
        self.clips = np.stack([_draw(generator.choice(digits), name, generator) for name in labels])
        features = Features({"video": Value("string"), "label": ClassLabel(names=list(sizes))})
        rows = Dataset.from_dict({"video": [str(number) for number in range(len(labels))], "label": labels}, features)
        processor = VideoClipProcessor(num_frames=NUM_FRAMES, size=IMAGE_SIZE, crop_size=IMAGE_SIZE)
        super().__init__(rows, processor, training=training, seed=seed)

    def make_item(self, index: int, key: tuple[int, ...]) -> BatchFeature:
        top, left = np.random.default_rng(key).integers(0, 2 * MARGIN + 1, 2) if self.training else (MARGIN, MARGIN)
        part = self.clips[index, :, top : top + IMAGE_SIZE, left : left + IMAGE_SIZE]
        pixels = torch.from_numpy(part).float() / 128 - 1
        item = {
            "pixel_values": pixels[None, :, None].expand(-1, -1, 3, -1, -1),
            "labels": self.dataset[index]["label"],
        }
        return BatchFeature(item)


def _draw(digit: np.ndarray, name: str, generator: np.random.Generator) -> np.ndarray:
    """The frames (T, H, W) of a digit in motion, with a margin for crops."""
    size = IMAGE_SIZE + 2 * MARGIN
    frame = np.zeros((size, size), np.uint8)
    frame[:16, :16] = digit.repeat(2, axis=0).repeat(2, axis=1)
    place, speed = generator.integers(0, size, 2), generator.uniform(1.5, 4)
    steps = [place + np.rint(number * speed * np.array(DIRECTIONS[name])).astype(int) for number in range(NUM_FRAMES)]
    return np.stack([np.roll(frame, step, axis=(0, 1)) for step in steps])


def recalls(cure: dict[str, Any], sizes: dict[str, int], num_test: int, epochs: int, seed: int) -> np.ndarray:
    """The recall of each class by a model that is trained with a cure."""
    set_seed(seed)
    model = VideoViTForVideoClassification(
        VideoViTConfig(
            image_size=IMAGE_SIZE,
            num_frames=NUM_FRAMES,
            patch_size=8,
            hidden_size=64,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=256,
            id2label=dict(enumerate(sizes)),
        )
    )
    with tempfile.TemporaryDirectory() as folder:
        arguments = VideoTrainingArguments(
            folder,
            num_train_epochs=epochs,
            per_device_train_batch_size=16,
            per_device_eval_batch_size=50,
            learning_rate=2e-3,
            seed=seed,
            # The last weights count: a checkpoint that is chosen on many videos of a rare class would need them.
            eval_strategy="no",
            save_strategy="no",
            load_best_model_at_end=False,
            logging_strategy="no",
            use_cpu=True,
            disable_tqdm=True,
            reading_threads=0,
            **cure,
        )
        trainer = VideoTrainer(model, arguments, train_dataset=DigitClips(sizes, training=True, seed=seed))
        trainer.remove_callback(PrinterCallback)
        trainer.train()
        test = DigitClips(dict.fromkeys(sizes, num_test), training=False, seed=seed)
        prediction = trainer.predict(test)
    return recognised_shares(confusion_matrix(prediction.predictions, prediction.label_ids))


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    print_machine("torch", "transformers", threads=arguments.threads)
    num_seeds, num_test, epochs = (1, 2, 1) if arguments.smoke else (arguments.seeds, 50, 20)
    sizes = {name: min(size, 4) for name, size in SIZES.items()} if arguments.smoke else SIZES
    titles = "".join(f"{f'recall of {name} ({size})':>22}" for name, size in sizes.items())
    print(f"{'':26}{'mean class accuracy':>20}{titles}")
    for name, cure in CURES.items():
        rows = np.array([recalls(cure, sizes, num_test, epochs, seed) for seed in range(num_seeds)])
        columns = np.column_stack([rows.mean(axis=1), rows])
        cells = [f"{column.mean():.1%} ± {column.std():.1%}" for column in columns.T]
        print(f"{name:26}{cells[0]:>20}" + "".join(f"{cell:>22}" for cell in cells[1:]), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
