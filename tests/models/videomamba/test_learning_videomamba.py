"""VideoMamba on the moving digits of `hf-video demo`, under bfloat16 autocast."""

import copy

import pytest
import torch
import torch.nn.functional as F

from hf_video import VideoClipProcessor, VideoMambaForVideoClassification
from hf_video.data import ClipTask, VideoDataset, load_video_dataset
from hf_video.demo import write_moving_digits

from .videomamba_testing import make


def clips_of(videos):
    processor = VideoClipProcessor(
        num_frames=8,
        sampling_strategy="uniform",
        size={"shortest_edge": 24},
        crop_size={"height": 24, "width": 24},
    )
    clips = VideoDataset(videos, ClipTask(processor), training=False)
    items = [clips[index] for index in range(len(clips))]
    return torch.cat([item["pixel_values"] for item in items]), torch.tensor([item["labels"] for item in items])


def logits_in_bfloat16(model, clips):
    """Logits under autocast, and with weights in bfloat16 but for those that a model keeps in float32."""
    narrow = copy.deepcopy(model)
    for name, parameter in narrow.named_parameters():
        if not name.endswith(tuple(model._keep_in_fp32_modules_strict)):
            parameter.data = parameter.data.bfloat16()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        mixed = model(clips).logits
    with torch.no_grad():
        return mixed, narrow(clips).logits


@pytest.mark.slow
def test_it_learns_the_order_of_frames_without_a_nan(tmp_path):
    pytest.importorskip("sklearn", reason="the digits come from scikit-learn")
    write_moving_digits(tmp_path / "digits", train_per_class=40, test_per_class=10)
    videos = load_video_dataset(tmp_path / "digits")
    (clips, labels), (held_out, held_out_labels) = clips_of(videos["train"]), clips_of(videos["test"])
    sizes = {"image_size": 24, "num_frames": 8, "tubelet_size": 2, "hidden_size": 64, "state_size": 8}
    model = make(VideoMambaForVideoClassification, **sizes, num_labels=8).train()
    num_epochs, batch_size = 16, 32
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.05)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, num_epochs * (len(clips) // batch_size))
    for _ in range(num_epochs):
        for batch in torch.randperm(len(clips)).split(batch_size):
            with torch.autocast("cpu", torch.bfloat16):
                loss = model(clips[batch], labels=labels[batch]).loss
            optimizer.zero_grad()
            loss.backward()
            assert all(parameter.grad.isfinite().all() for parameter in model.parameters())
            optimizer.step()
            scheduler.step()
    with torch.no_grad():
        logits = model.eval()(held_out).logits
        shuffled = model(held_out[:, [5, 2, 7, 0, 3, 6, 1, 4]]).logits
    assert F.cross_entropy(logits, held_out_labels).isfinite()
    right = (logits.argmax(-1) == held_out_labels).float().mean()
    assert right > 0.7
    for found in logits_in_bfloat16(model, held_out):
        difference = (found.argmax(-1) == held_out_labels).float().mean() - right
        assert difference.abs() < 1.5 / len(held_out), "more than one clip of the held-out ones"
    assert (shuffled.argmax(-1) == held_out_labels).float().mean() < 0.35, "a single frame gives nothing away"
