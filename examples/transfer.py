"""
Does masked pre-training help if few videos have labels? A small VideoViT on moving digits, 22 minutes on one core.

    python examples/transfer.py OUTPUT_DIR [--seeds 0 1 2] [--pretraining-epochs 28] [--epochs 30]

For each seed a masked autoencoder is pre-trained on all training videos without their labels. It is then fine-tuned on
a tenth of them with their labels, 30 videos of each class. The same model from random weights is trained on the same
videos, for as many steps, with the same settings. Both are trained with two learning rates, so that the choice of one
favours neither. Nothing is selected: every run is reported with its last weights, on digits that no run has seen.
Writes `transfer.json` and the table `transfer.md`.

The autoencoder reconstructs raw pixels (`norm_pix_loss=False`). On a black background, pixels standardised by patch
would be mostly the noise of the video codec.
"""

import argparse
import json
import time
from pathlib import Path
from statistics import mean

import torch
from pretrain_videovit import collate_pixels
from torch.utils.data import Dataset
from transformers import PrinterCallback, Trainer, TrainingArguments, set_seed

from hf_video import VideoClipProcessor, VideoViTConfig, VideoViTForPreTraining, VideoViTForVideoClassification
from hf_video.data import ClipTask, VideoDataset, hold_out, load_video_dataset
from hf_video.demo import write_moving_digits
from hf_video.training import VideoTrainer, VideoTrainingArguments

LABELLED_SHARE = 0.1
LEARNING_RATES = (3e-4, 1e-3)
STARTS = ("pre-trained", "from scratch")
NUM_FRAMES, IMAGE_SIZE, CROP_SIZE = 8, 28, 24
QUIET = {"report_to": "none", "disable_tqdm": True, "save_strategy": "no", "logging_strategy": "no"}
QUIET |= {"dataloader_pin_memory": False}


class RandomCrops(Dataset):
    """Clips in memory, (1, T, C, H, W), each cropped at a random place, the same for its frames."""

    def __init__(self, items: list):
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> dict:
        top, left = torch.randint(IMAGE_SIZE - CROP_SIZE + 1, (2,)).tolist()
        clip = self.items[index]["pixel_values"][..., top : top + CROP_SIZE, left : left + CROP_SIZE]
        return {**self.items[index], "pixel_values": clip}


def make_config(class_names: list[str]) -> VideoViTConfig:
    return VideoViTConfig(
        image_size=CROP_SIZE,
        patch_size=8,
        num_frames=NUM_FRAMES,
        hidden_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=512,
        decoder_hidden_size=96,
        decoder_num_hidden_layers=2,
        decoder_num_attention_heads=4,
        decoder_intermediate_size=384,
        mask_ratio=0.75,
        # At this width the usual 0.02 is far below what keeps the scale of the activations, and training stalls.
        initializer_range=0.08,
        norm_pix_loss=False,
        id2label=dict(enumerate(class_names)),
        label2id={name: index for index, name in enumerate(class_names)},
    )


def make_processor(crop_size: int) -> VideoClipProcessor:
    return VideoClipProcessor(num_frames=NUM_FRAMES, sampling_strategy="uniform", size=IMAGE_SIZE, crop_size=crop_size)


def pretrain(config: VideoViTConfig, clips: Dataset, folder: Path, seed: int, epochs: int) -> float:
    """Saves a masked autoencoder in `folder`; returns its mean loss over the last epoch."""
    set_seed(seed)
    arguments = TrainingArguments(
        output_dir=str(folder),
        seed=seed,
        num_train_epochs=epochs,
        per_device_train_batch_size=32,
        learning_rate=1e-3,
        weight_decay=0.05,
        adam_beta2=0.95,
        warmup_steps=100,
        lr_scheduler_type="cosine",
        remove_unused_columns=False,
        **QUIET | {"logging_strategy": "epoch"},
    )
    trainer = Trainer(VideoViTForPreTraining(config), arguments, collate_pixels, clips)
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    trainer.save_model()
    return [row["loss"] for row in trainer.state.log_history if "loss" in row][-1]


def fine_tune(
    model: VideoViTForVideoClassification,
    clips: Dataset,
    test: list,
    folder: Path,
    seed: int,
    rate: float,
    epochs: int,
) -> float:
    """Top-1 accuracy on the test clips."""
    arguments = VideoTrainingArguments(
        output_dir=str(folder),
        seed=seed,
        num_train_epochs=epochs,
        per_device_train_batch_size=16,
        per_device_eval_batch_size=50,
        learning_rate=rate,
        eval_strategy="no",
        load_best_model_at_end=False,
        **QUIET,
    )
    trainer = VideoTrainer(model=model, args=arguments, train_dataset=clips, eval_dataset=test)
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    return trainer.evaluate()["eval_top1_accuracy"]


def make_table(runs: list[dict], seeds: list[int]) -> str:
    """A row for every start and learning rate: the mean, and each seed."""
    lines = ["| start | learning rate | mean | " + " | ".join(f"seed {seed}" for seed in seeds) + " |"]
    lines.append("|---|---|---|" + "---|" * len(seeds))
    for start in STARTS:
        for rate in LEARNING_RATES:
            found = [run["accuracy"] for run in runs if (run["start"], run["learning_rate"]) == (start, rate)]
            each = " | ".join(f"{accuracy:.1%}" for accuracy in found)
            lines.append(f"| {start} | {rate:g} | {mean(found):.1%} | {each} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output_dir", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--pretraining-epochs", type=int, default=28)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--train-per-class", type=int, default=300, help="videos to train on; default 300")
    arguments = parser.parse_args()
    begin = time.monotonic()

    data = load_video_dataset(
        write_moving_digits(arguments.output_dir / "digits", train_per_class=arguments.train_per_class)
    )
    # Small enough to be decoded once and kept. The videos to train on are a little larger than their crops.
    train, test = (
        list(VideoDataset(data[split], ClipTask(make_processor(crop_size)), training=False))
        for split, crop_size in (("train", IMAGE_SIZE), ("test", CROP_SIZE))
    )
    row_of = {video: row for row, video in enumerate(data["train"]["video"])}
    config = make_config(data["train"].features["label"].names)

    runs = []
    for seed in arguments.seeds:
        folder = arguments.output_dir / f"seed-{seed}"
        loss = pretrain(config, RandomCrops(train), folder, seed, arguments.pretraining_epochs)
        print(f"seed {seed}: reconstruction loss {loss:.4f}, {time.monotonic() - begin:.0f} s", flush=True)
        _, labelled = hold_out(data["train"], LABELLED_SHARE, seed)
        clips = RandomCrops([train[row_of[video]] for video in labelled["video"]])
        for rate in LEARNING_RATES:
            for start in STARTS:
                set_seed(seed)
                if start == "pre-trained":
                    model = VideoViTForVideoClassification.from_pretrained(folder)
                else:
                    model = VideoViTForVideoClassification(config)
                accuracy = fine_tune(model, clips, test, folder / "run", seed, rate, arguments.epochs)
                runs.append({"seed": seed, "start": start, "learning_rate": rate, "accuracy": accuracy})
                print(f"seed {seed}: {start}, learning rate {rate:g}: {accuracy:.1%}", flush=True)

    table = make_table(runs, arguments.seeds)
    settings = {name: value for name, value in vars(arguments).items() if name != "output_dir"}
    result = {"settings": settings, "labelled_videos": len(clips), "test_videos": len(test), "runs": runs}
    (arguments.output_dir / "transfer.json").write_text(json.dumps(result, indent=2) + "\n")
    (arguments.output_dir / "transfer.md").write_text(table + "\n")
    print(f"\n{len(clips)} labelled videos, {len(test)} to test, {time.monotonic() - begin:.0f} s\n\n{table}")


if __name__ == "__main__":
    main()
