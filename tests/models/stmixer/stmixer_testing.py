"""Small STMixers and labels for them."""

import torch

from hf_video import STMixerConfig, STMixerForActionDetection

BACKBONE = {"model_type": "videovit", "image_size": 32, "patch_size": 16, "num_frames": 4, "hidden_size": 16}
BACKBONE |= {"num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}
SIZES = {"num_queries": 6, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "num_groups": 2}
SIZES |= {"intermediate_size": 24, "num_spatial_points": 5, "num_temporal_points": 2, "num_labels": 3}


def tiny_config(**settings):
    return STMixerConfig(**{"backbone_config": dict(BACKBONE)} | SIZES | settings)


def make(**settings):
    """A model whose boxes depend on what it sees, which those of a fresh one do not."""
    torch.manual_seed(0)
    model = STMixerForActionDetection(tiny_config(**settings))
    with torch.no_grad():
        for layer in model.layers:
            for linear in (layer.offset_generator, layer.spatial.mixing.parameter_generator, layer.box_head.output):
                linear.weight.normal_(std=0.1)
            layer.temporal.mixing.parameter_generator.weight.normal_(std=0.1)
    return model


def random_clips(batch_size=2, height=32, width=64, seed=0):
    return torch.randn(batch_size, 4, 3, height, width, generator=torch.Generator().manual_seed(seed))


def random_labels(*counts, num_labels=3, seed=1):
    """Persons in clips of 32 x 64 pixels, so many in each clip."""
    generator = torch.Generator().manual_seed(seed)
    labels = []
    for count in counts:
        corners = torch.rand(count, 2, 2, generator=generator) * torch.tensor([40.0, 10.0])
        boxes = torch.cat([corners[:, 0], corners[:, 0] + 8 + corners[:, 1]], dim=1)
        actions = torch.randint(2, (count, num_labels), generator=generator).float()
        labels.append({"boxes": boxes, "class_labels": actions})
    return labels
