"""`training_peak.py MODEL CHECKPOINTING`: prints estimated and measured memory of a training step, in bytes."""

import json
import re
import resource
import sys
from pathlib import Path

import torch

from hf_video import (
    VideoClipProcessor,
    VideoMambaConfig,
    VideoMambaForVideoClassification,
    VideoViTConfig,
    VideoViTForVideoClassification,
)
from hf_video.training import VideoTrainingArguments
from hf_video.training.training_memory import estimate_memory

SIZES = {"num_frames": 8, "image_size": 224, "hidden_size": 192, "num_hidden_layers": 6}
SMALL = {"num_frames": 2, "image_size": 32, "hidden_size": 48, "num_hidden_layers": 1}
BATCH_SIZE = 4


def make_model(name, sizes):
    if name == "videovit":
        return VideoViTForVideoClassification(VideoViTConfig(num_attention_heads=3, **sizes))
    return VideoMambaForVideoClassification(VideoMambaConfig(**sizes))


def train(model, batch_size, sizes):
    """One step."""
    optimizer = torch.optim.AdamW(model.train().parameters())
    clips = torch.zeros(batch_size, sizes["num_frames"], 3, sizes["image_size"], sizes["image_size"])
    model(pixel_values=clips, labels=torch.zeros(batch_size, dtype=torch.long)).loss.backward()
    optimizer.step()


def peak():
    """Most memory of this process so far. On Linux `ru_maxrss` counts that of the process which started it, too."""
    status = Path("/proc/self/status")
    if status.is_file():
        return int(re.search(r"VmHWM:\s+(\d+) kB", status.read_text())[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


if __name__ == "__main__":
    name, is_checkpointed = sys.argv[1], bool(int(sys.argv[2]))
    arguments = VideoTrainingArguments(
        output_dir="unused",
        use_cpu=True,
        per_device_train_batch_size=BATCH_SIZE,
        gradient_checkpointing=is_checkpointed,
    )
    size = {"height": SIZES["image_size"], "width": SIZES["image_size"]}
    processor = VideoClipProcessor(num_frames=SIZES["num_frames"], size=size, crop_size=size)
    # What a first step imports and compiles is no memory of the training.
    train(make_model(name, SMALL), 1, SMALL)
    before = peak()
    model = make_model(name, SIZES)
    estimate = estimate_memory(model.config, processor, arguments)
    if is_checkpointed:
        model.gradient_checkpointing_enable()
    train(model, BATCH_SIZE, SIZES)
    print(json.dumps({"estimated": estimate.num_bytes, "measured": peak() - before}))
