"""
Masked pre-training of a small VideoViT on a folder of videos; labels are not used.

    hf-video demo                                                    # writes videos to train on, or bring your own
    python examples/pretrain_videovit.py DATA OUTPUT_DIR [--epochs 60]

Writes the model, its processor, the losses and `reconstruction.png`: input, mask and output side by side.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import torch
from einops import rearrange
from torchvision.utils import make_grid
from transformers import Trainer, TrainingArguments, set_seed

from hf_video import VideoClipProcessor, VideoViTConfig, VideoViTForPreTraining
from hf_video.data import ClipTask, VideoDataset, collate_clips, load_video_dataset

NUM_FRAMES, IMAGE_SIZE = 8, 48


def collate_pixels(items: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """Join clips as `collate_clips` does, without their labels. The model draws the masks."""
    return {"pixel_values": collate_clips(items)["pixel_values"]}


def unpatchify(patches: torch.Tensor, config: VideoViTConfig) -> torch.Tensor:
    """Videos `(batch_size, frames, channels, height, width)` from the pixels of their patches in raster order."""
    (t, h, w), (dt, dh, dw) = config.token_grid, config.patch_shape
    sizes = {"t": t, "h": h, "w": w, "dt": dt, "dh": dh, "dw": dw}
    return rearrange(patches, "b (t h w) (dt dh dw c) -> b (t dt) c (h dh) (w dw)", **sizes)


@torch.no_grad()
def draw_reconstruction(model: VideoViTForPreTraining, pixel_values: torch.Tensor, path: Path) -> None:
    """Draw one clip in three rows: the frames of the input, the patches that the encoder sees, and the output."""
    config = model.config
    pixel_values = pixel_values.to(model.device)
    outputs = model.eval()(pixel_values)
    mask = outputs.mask.bool().cpu()
    patches = model.reconstruction_targets(pixel_values).cpu()
    seen, filled = patches.clone(), patches.clone()
    seen[mask] = 0.5
    filled[mask] = outputs.logits.flatten(0, 1).cpu()
    rows = [unpatchify(each, config)[0] for each in (patches, seen, filled)]
    grid = make_grid(torch.cat(rows).clamp(0, 1), nrow=len(rows[0]), padding=2, pad_value=1.0)
    figure, axes = plt.subplots(figsize=(10, 4), layout="constrained")
    axes.imshow(grid.permute(1, 2, 0), interpolation="nearest")
    centres = [(i + 0.5) * grid.shape[1] / 3 for i in range(3)]
    axes.set_yticks(centres, ["input", f"mask ({config.mask_ratio:.0%} hidden)", "output"])
    axes.set_xticks([])
    axes.set_title("Masked autoencoder: the frames of a held-out clip")
    figure.savefig(path, dpi=120)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", help="a folder of class folders, or a CSV file, as for `hf-video train`")
    parser.add_argument("output_dir", type=Path)
    parser.add_argument("--epochs", type=int, default=60)
    arguments = parser.parse_args()
    set_seed(0)

    processor = VideoClipProcessor(
        num_frames=NUM_FRAMES,
        sampling_strategy="uniform",
        size={"shortest_edge": IMAGE_SIZE},
        crop_size={"height": IMAGE_SIZE, "width": IMAGE_SIZE},
    )
    config = VideoViTConfig(
        image_size=IMAGE_SIZE,
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
        mask_ratio=0.5,
        # At this width the usual 0.02 is far below what keeps the scale of the activations, and training stalls.
        initializer_range=0.08,
        # Raw pixels, so that the output is a picture.
        norm_pix_loss=False,
    )
    data = load_video_dataset(arguments.data)
    held_out = next((data[split] for split in ("test", "validation") if split in data), data["train"])
    trainer = Trainer(
        model=VideoViTForPreTraining(config),
        args=TrainingArguments(
            output_dir=str(arguments.output_dir),
            num_train_epochs=arguments.epochs,
            per_device_train_batch_size=16,
            learning_rate=2e-3,
            weight_decay=0.05,
            adam_beta2=0.95,
            warmup_steps=50,
            lr_scheduler_type="constant_with_warmup",
            logging_steps=100,
            save_strategy="no",
            report_to="none",
            remove_unused_columns=False,
        ),
        # These data are small enough to be decoded once and kept. For larger ones, pass the VideoDataset itself.
        train_dataset=list(VideoDataset(data["train"], ClipTask(processor), training=False)),
        data_collator=collate_pixels,
        processing_class=processor,
    )
    trainer.train()
    trainer.save_model()
    losses = [{"step": row["step"], "loss": row["loss"]} for row in trainer.state.log_history if "loss" in row]
    (arguments.output_dir / "losses.json").write_text(json.dumps(losses, indent=1))
    clip = VideoDataset(held_out, ClipTask(processor), training=False)[0]["pixel_values"]
    draw_reconstruction(trainer.model, clip, arguments.output_dir / "reconstruction.png")
    print(f"Loss {losses[0]['loss']:.4f} -> {losses[-1]['loss']:.4f}; wrote {arguments.output_dir}/reconstruction.png")


if __name__ == "__main__":
    main()
