"""Loading and using models again and again leaves no memory, descriptors or threads behind."""

import gc
from typing import NamedTuple

import psutil
import pytest
import torch
from transformers import AutoModel, AutoVideoProcessor, InstructBlipVisionConfig

from hf_video import (
    MemoryBankQFormerModel,
    VideoClipProcessor,
    VideoMambaForVideoClassification,
    VideoViTForVideoClassification,
    VideoWatcher,
)
from hf_video.ops.selective_scan import selective_scan
from tests.testing.answering import random_images, tiny_pair
from tests.testing.videos import encode_video

from ..models.memory_bank_qformer import memory_bank_qformer_testing
from ..models.videomamba import videomamba_testing
from ..models.videovit import videovit_testing

NUM_FRAMES, SIDE = 8, 160
CLIP_BYTES = NUM_FRAMES * 3 * SIDE * SIDE * 4
# Allocators that other tests have used give back or take some 13 MiB in a few calls: what ten calls may leak is less.
WARM_UP, CALLS = 5, 50
# What allocators may keep, however often something is used. A clip is 2.3 MiB.
MOST_GROWTH = 64 * 2**20


class Held(NamedTuple):
    """What a process holds."""

    bytes: int
    descriptors: int
    threads: int


def held() -> Held:
    gc.collect()
    process = psutil.Process()
    return Held(process.memory_info().rss, process.num_fds(), process.num_threads())


def check_leaks(use) -> None:
    """Call `use` again and again, and check that there is no descriptor or thread more, and little more memory."""
    for _ in range(WARM_UP):
        use()
    before = held()
    for _ in range(CALLS):
        use()
    after = held()
    assert after.descriptors <= before.descriptors
    assert after.threads <= before.threads
    growth = after.bytes - before.bytes
    assert growth < min(CALLS * CLIP_BYTES // 2, MOST_GROWTH), f"{growth / 2**20:.0f} MiB more after {CALLS} calls"


@pytest.fixture(scope="module")
def video(tmp_path_factory):
    return encode_video(tmp_path_factory.mktemp("videos") / "clip.mp4")


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A folder with a tiny model and its processor, by family."""
    tower = InstructBlipVisionConfig(
        hidden_size=40,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=4,
        image_size=SIDE,
        patch_size=32,
    )
    made = {
        "VideoViT": VideoViTForVideoClassification(videovit_testing.tiny_config(image_size=SIDE, patch_size=32)),
        "VideoMamba": VideoMambaForVideoClassification(
            videomamba_testing.tiny_config(image_size=SIDE, patch_size=32, num_frames=NUM_FRAMES)
        ),
        "MemoryBankQFormer": memory_bank_qformer_testing.tiny_model(MemoryBankQFormerModel, vision_config=tower),
    }
    folder = tmp_path_factory.mktemp("models")
    processor = VideoClipProcessor(num_frames=NUM_FRAMES, size=SIDE, crop_size=SIDE, frame_sampling_rate=2)
    for name, model in made.items():
        model.save_pretrained(folder / name)
        processor.save_pretrained(folder / name)
    return folder


def inference(folder, video):
    """Load a model and its processor, and run them on a video file."""

    def use():
        model = AutoModel.from_pretrained(folder)
        inputs = AutoVideoProcessor.from_pretrained(folder)(str(video), return_tensors="pt")
        assert inputs["pixel_values"].nbytes == CLIP_BYTES
        with torch.no_grad():
            model(**inputs)

    return use


def watching():
    """A video that is watched frame by frame into a memory bank, and asked about."""
    pair, images = tiny_pair(), random_images(12)

    def use():
        watcher = VideoWatcher(*pair, "what is shown", chunk_size=4)
        for _ in watcher.watch(image for image in images):
            pass
        watcher.answer(max_new_tokens=2, do_sample=False)

    return use


def scanning():
    """The selective scan, forward and backward, on inputs as large as a clip."""
    length = CLIP_BYTES // 4 // 64

    def use():
        u, delta = (torch.rand(1, 64, length, requires_grad=True) for _ in range(2))
        b, c = (torch.rand(1, 4, length) for _ in range(2))
        selective_scan(u, delta, -torch.rand(64, 4), b, c).sum().backward()

    return use


USES = ["VideoViT", "VideoMamba", "MemoryBankQFormer", "watching", "scanning"]


def use_of(name, models, video):
    return {"watching": watching, "scanning": scanning}.get(name, lambda: inference(models / name, video))()


@pytest.mark.slow
@pytest.mark.parametrize("name", USES)
def test_nothing_is_left_behind(name, models, video):
    check_leaks(use_of(name, models, video))
