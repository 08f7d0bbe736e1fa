"""A model and clips so small that a training run takes a moment."""

import datasets
import numpy as np
import torch
from torch.utils.data import Dataset
from transformers import TrainerCallback, set_seed

from hf_video.data import ClipTask, VideoDataset
from hf_video.models.videovit import VideoViTConfig, VideoViTForVideoClassification
from hf_video.processing import VideoClipProcessor
from hf_video.training import VideoTrainer, VideoTrainingArguments

# Arguments that train to the last step and keep no checkpoint.
LAST_WEIGHTS = {"load_best_model_at_end": False, "eval_strategy": "no", "save_strategy": "no"}
OF_TRAINER = ("callbacks", "compute_loss_func", "compute_metrics", "data_collator", "distillation")


def labelled_rows(labels):
    """Rows as of `load_video_dataset`, without videos: of the classes a, b and so on, one or several for each."""
    is_multi = isinstance(labels[0], list)
    classes = [label for row in labels for label in row] if is_multi else labels
    names = datasets.ClassLabel(names=[chr(97 + index) for index in range(max(classes) + 1)])
    column, feature = ("labels", datasets.List(names)) if is_multi else ("label", names)
    features = datasets.Features({"video": datasets.Value("string"), column: feature})
    videos = [f"{number}.mp4" for number in range(len(labels))]
    return datasets.Dataset.from_dict({"video": videos, column: labels}, features)


class NoiseTask(ClipTask):
    """Clips without videos, drawn from their keys."""

    def __init__(self):
        super().__init__(VideoClipProcessor(num_frames=2, size=16, crop_size=16))

    def make(self, row, key, training):
        clips = np.random.default_rng(np.random.SeedSequence(key)).standard_normal((1, 2, 3, 16, 16), np.float32)
        return {"pixel_values": torch.from_numpy(clips), "labels": row["label"], "sample_key": key}


def labelled_clips(labels):
    """Training clips of such rows."""
    return VideoDataset(labelled_rows(labels), NoiseTask(), training=True)


class RandomClips(Dataset):
    """Clips drawn from (epoch, index), as those of a `VideoDataset`; the class shows in their brightness."""

    def __init__(self, length=8, num_views=1, num_labels=2, training=False):
        self.length, self.num_views, self.num_labels, self.training = length, num_views, num_labels, training
        self.epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(1000 * self.epoch + index)
        label = index % self.num_labels
        clips = torch.randn(self.num_views, 2, 3, 16, 16, generator=generator) + 2 * label
        item = {"pixel_values": clips, "labels": label}
        return item | {"sample_key": (0, self.epoch, index)} if self.training else item


def make_model(**options):
    set_seed(0)
    sizes = {"image_size": 16, "patch_size": 8, "num_frames": 2, "hidden_size": 24, "num_hidden_layers": 1}
    sizes |= {"num_attention_heads": 2, "intermediate_size": 32, "num_labels": 2}
    return VideoViTForVideoClassification(VideoViTConfig(**sizes | options))


def make_arguments(folder, **options):
    defaults = {"num_train_epochs": 2, "per_device_train_batch_size": 4, "per_device_eval_batch_size": 4}
    defaults |= {"use_cpu": True, "disable_tqdm": True, "learning_rate": 1e-2}
    return VideoTrainingArguments(output_dir=str(folder), **defaults | options)


def make_trainer(folder, train_dataset=None, eval_dataset=None, *, model=None, **options):
    """A trainer of a tiny model on random clips. The options are those of `VideoTrainer` and of its arguments."""
    own = {name: options.pop(name) for name in OF_TRAINER if name in options}
    return VideoTrainer(
        model=make_model() if model is None else model,
        args=make_arguments(folder, **options),
        train_dataset=RandomClips() if train_dataset is None else train_dataset,
        eval_dataset=RandomClips() if eval_dataset is None else eval_dataset,
        **own,
    )


def weights_of(model):
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


class RecordGradients(TrainerCallback):
    """Keeps the gradients of the last step."""

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        self.found = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
