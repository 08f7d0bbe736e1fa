"""Frames that no processor prepared are refused by every family, with the name of their dtype."""

import pytest
import torch

from hf_video.models.videomamba import (
    VideoMambaBackbone,
    VideoMambaForPreTraining,
    VideoMambaForVideoClassification,
    VideoMambaModel,
)
from hf_video.models.videovit import (
    VideoViTBackbone,
    VideoViTForPreTraining,
    VideoViTForVideoClassification,
    VideoViTModel,
)

from .videomamba import videomamba_testing
from .videovit import videovit_testing

CLASSES = {
    videovit_testing: (VideoViTModel, VideoViTForVideoClassification, VideoViTForPreTraining, VideoViTBackbone),
    videomamba_testing: (
        VideoMambaModel,
        VideoMambaForVideoClassification,
        VideoMambaForPreTraining,
        VideoMambaBackbone,
    ),
}


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bool, torch.int64, torch.complex64])
@pytest.mark.parametrize(
    ("family", "model_class"),
    [(family, model_class) for family, classes in CLASSES.items() for model_class in classes],
)
def test_pixel_values_are_floating_point_numbers(family, model_class, dtype):
    config = family.tiny_config()
    model = model_class(config).eval()
    clips = family.random_clips(config)
    with pytest.raises(ValueError, match=f"`pixel_values` must be floating-point numbers, got {dtype}"):
        model(clips.to(dtype))


@pytest.mark.parametrize("family", CLASSES)
def test_a_batch_has_a_clip(family):
    config = family.tiny_config()
    clips = family.random_clips(config)
    for empty in (clips[:0], clips[:, None][:, :0]):
        with pytest.raises(ValueError, match="must have at least one clip"):
            CLASSES[family][1](config).eval()(empty)
