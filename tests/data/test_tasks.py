"""What all tasks that augment clips have in common."""

import pytest
import torch
from datasets import Dataset

from hf_video.data import ClipAugmentation, ClipTask, FrameTask, TextTask, VideoDataset
from hf_video.processing import VideoClipProcessor
from tests.testing.answering import tiny_pair
from tests.testing.videos import encode_video, make_frames, make_smooth_frames

from ..training.captions_testing import make_video_text_pair

PROCESSOR = VideoClipProcessor(num_frames=2, size={"height": 16, "width": 16}, do_center_crop=False)
FRAMES = {"start": 0.0, "num_frames": 2, "frame_labels": [0]}


@pytest.mark.parametrize(("name", "is_mirrored"), [("turn left", False), ("turn", True)])
@pytest.mark.parametrize("kind", ["labels", "caption", "answer", "frame_labels"])
def test_a_clip_is_not_mirrored_if_its_label_or_text_says_a_side(tmp_path, kind, name, is_mirrored):
    row, make_task = {
        "labels": ({"labels": [0, 1]}, lambda **flip: ClipTask(PROCESSOR, ["run", name], **flip)),
        "caption": ({"caption": name}, lambda **flip: TextTask(make_video_text_pair()[1], **flip)),
        "answer": ({"question": "", "answer": name}, lambda **flip: TextTask(tiny_pair()[1], prompt="what", **flip)),
        "frame_labels": (FRAMES, lambda **flip: FrameTask(PROCESSOR, [name, "dark"], fps=10, **flip)),
    }[kind]
    rows = Dataset.from_list([{"video": encode_video(tmp_path / "a.mp4", make_frames(10), fps=10), **row}])
    plain, flipped = (
        VideoDataset(rows, make_task(augmentation=augmentation), training=True)
        for augmentation in (None, ClipAugmentation(horizontal_flip=True))
    )
    changed = []
    for epoch in range(8):
        plain.set_epoch(epoch)
        flipped.set_epoch(epoch)
        changed.append(not torch.equal(plain[0]["pixel_values"], flipped[0]["pixel_values"]))
    assert any(changed) == is_mirrored and not all(changed)


def test_training_clips_decoded_to_their_size_are_nearly_those_that_are_resized_and_others_are_exact(tmp_path):
    rows = Dataset.from_dict({"video": [encode_video(tmp_path / "large.mp4", make_smooth_frames(16, 240, 320))]})
    processor = VideoClipProcessor(
        num_frames=4, size={"shortest_edge": 60}, crop_size={"height": 48, "width": 48}, do_normalize=False
    )

    def item(training, **options):
        task = ClipTask(processor, augmentation=ClipAugmentation(**options))
        return VideoDataset(rows, task, training=training, seed=0)[0]["pixel_values"]

    assert torch.equal(item(False, decode_to_size=True), item(False))
    exact, fast = item(True), item(True, decode_to_size=True)
    assert not torch.equal(fast, exact) and (fast - exact).abs().mean() < 0.03
    # A crop that chooses its size draws another place in smaller frames.
    assert item(True, decode_to_size=True, crop_min_area=0.5).shape == exact.shape == (1, 4, 3, 48, 48)
