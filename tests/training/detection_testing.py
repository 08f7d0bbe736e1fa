"""A detector so small that a training run takes a moment, and key frames for it."""

import datasets
import torch
from torch.utils.data import Dataset
from transformers import set_seed

from hf_video import STMixerConfig, STMixerForActionDetection
from hf_video.models.videovit import VideoViTConfig
from hf_video.processing import VideoDetectionProcessor
from hf_video.training import ActionDetectionTrainer, DetectionTrainingArguments
from tests.testing.trainers import LAST_WEIGHTS, RecordGradients

ACTIONS = ("sit", "run", "talk")
# Persons of the key frames: more of them in some batches than in others, and none in one.
NUM_PERSONS = (1, 3, 0, 2, 1, 2, 1)


def make_backbone_config(**options):
    sizes = {"image_size": 32, "patch_size": 8, "num_frames": 4, "tubelet_size": 2, "hidden_size": 16}
    return VideoViTConfig(
        **sizes, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, use_mean_pooling=False, **options
    )


def make_detector(**options):
    """A detector with random weights."""
    set_seed(0)
    config = STMixerConfig(
        backbone_config=make_backbone_config(),
        **{"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32},
        **{"num_spatial_points": 8, "num_temporal_points": 2, "num_groups": 2, "point_multiplier": 1},
        **{"num_queries": 6, "id2label": dict(enumerate(ACTIONS))} | options,
    )
    model = STMixerForActionDetection(config)
    with torch.no_grad():
        for layer in model.layers:
            # At first all boxes are the same, and then rounding decides which person a query is matched to.
            layer.box_head.output.weight.normal_(std=0.1)
    return model


def make_processor(**options):
    return VideoDetectionProcessor(num_frames=4, frame_sampling_rate=1, size={"shortest_edge": 32}, **options)


def make_arguments(folder, **options):
    defaults = {"per_device_train_batch_size": 4, "per_device_eval_batch_size": 2, "use_cpu": True}
    return DetectionTrainingArguments(str(folder), disable_tqdm=True, **LAST_WEIGHTS | defaults | options)


class KeyFrames(Dataset):
    """Random clips, as of a `VideoDataset`, with persons at random places; `rows` are their annotations."""

    def __init__(self, num_persons=NUM_PERSONS, dtype=torch.float32):
        generator = torch.Generator().manual_seed(0)
        self.items, rows = [], []
        for number, count in enumerate(num_persons):
            corners = torch.rand(count, 2, 2, generator=generator, dtype=dtype).sort(dim=1).values
            actions = (torch.rand(count, len(ACTIONS), generator=generator) < 0.6).to(dtype)
            pixels = torch.randn(4, 3, 32, 32, generator=generator, dtype=dtype)
            boxes = corners.flatten(1)
            self.items.append({"pixel_values": pixels, "boxes": boxes * 31, "class_labels": actions})
            chosen = [each.nonzero().flatten().tolist() for each in actions]
            rows.append({"video": "a.mp4", "second": float(number), "boxes": boxes.tolist(), "actions": chosen})
        features = {
            "video": datasets.Value("string"),
            "second": datasets.Value("float64"),
            "boxes": datasets.List(datasets.List(datasets.Value("float64"))),
            "actions": datasets.List(datasets.List(datasets.ClassLabel(names=list(ACTIONS)))),
        }
        self.rows = datasets.Dataset.from_list(rows, datasets.Features(features))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        return self.items[index]


def collate(items):
    """What the model takes."""
    labels = [{name: item[name] for name in ("boxes", "class_labels")} for item in items]
    sizes = torch.tensor([[32, 32]] * len(items))
    return {"pixel_values": torch.stack([item["pixel_values"] for item in items]), "original_sizes": sizes} | {
        "labels": labels
    }


def first_step(folder, num_persons=(1, 3, 0, 2), **options):
    """The trainer and the gradients of a step that sees all key frames, in double precision, because a sum over parts
    is rounded otherwise than a sum over all."""
    original_loss_means = options.pop("original_loss_means", False)
    recorded = RecordGradients()
    trainer = ActionDetectionTrainer(
        make_detector(original_loss_means=original_loss_means).double(),
        make_arguments(folder, max_steps=1, max_grad_norm=0, logging_steps=1, **options),
        collate,
        KeyFrames(num_persons, torch.float64),
        processing_class=make_processor(),
        callbacks=[recorded],
    )
    trainer.train()
    return trainer, recorded.found


def evaluated_detector(folder):
    """A trainer whose model finds different numbers of persons in the key frames, and the key frames."""
    model, dataset = make_detector(), KeyFrames()
    head = model.layers[-1].person_head.output
    with torch.no_grad():
        head.weight *= 20
        logits = model(**collate(dataset.items)).logits
        head.bias[0] -= (logits[..., 0] - logits[..., 1]).median()
    return ActionDetectionTrainer(
        model, make_arguments(folder), collate, eval_dataset=dataset, processing_class=make_processor()
    ), dataset
