"""The estimate of a training's memory, and sizes that no machine holds."""

import json
import shutil
import time
from types import SimpleNamespace

import pytest
import torch

from hf_video import VideoClipProcessor, VideoViTConfig
from hf_video.cli.main import main
from hf_video.training import VideoTrainingArguments
from hf_video.training.training_memory import check_memory, estimate_memory

SIZES = {"num_frames": 4, "hidden_size": 48, "num_attention_heads": 2, "num_hidden_layers": 2}


def estimate(image_size, batch_size=2):
    size = {"height": image_size, "width": image_size}
    processor = VideoClipProcessor(num_frames=4, size=size, crop_size=size, do_center_crop=True)
    arguments = VideoTrainingArguments(output_dir="unused", use_cpu=True, per_device_train_batch_size=batch_size)
    return estimate_memory(VideoViTConfig(image_size=image_size, **SIZES), processor, arguments)


def test_tokens_are_counted_and_activations_grow_with_the_batch():
    small, large = estimate(64), estimate(64, batch_size=4)
    assert small.num_tokens == 2 * 4 * 4
    assert small.num_bytes < large.num_bytes < 2 * small.num_bytes


def test_only_what_is_far_beyond_the_memory_is_refused(monkeypatch):
    needed = estimate(64)
    memory = "hf_video.training.training_memory.psutil.virtual_memory"
    monkeypatch.setattr(memory, lambda: SimpleNamespace(available=needed.num_bytes // 2 + 1))
    assert check_memory(needed, torch.device("cpu")).startswith("A clip has 32 tokens; training needs about 0.0 GiB")
    monkeypatch.setattr(memory, lambda: SimpleNamespace(available=needed.num_bytes // 2 - 1))
    with pytest.raises(ValueError, match="Take a smaller --image-size, --num-frames, --batch-size or model"):
        check_memory(needed, torch.device("cpu"))


def test_absurd_sizes_are_answered_soon(tmp_path, capsys):
    from hf_video import VideoViTForVideoClassification

    VideoViTForVideoClassification(VideoViTConfig(image_size=32, **SIZES)).save_pretrained(tmp_path / "model")
    VideoClipProcessor(num_frames=4).save_pretrained(tmp_path / "model")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    (tmp_path / "model" / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 10**6}))
    shutil.copy(tmp_path / "model" / "config.json", tmp_path / "video.mp4")
    start = time.monotonic()
    assert main(["predict", str(tmp_path / "video.mp4"), "--model", str(tmp_path / "model"), "--device", "cpu"]) == 2
    assert time.monotonic() - start < 120
    assert "more than 20,000 tensors" in capsys.readouterr().err
