"""Classifiers of frames, and short trainings of them on clips without files."""

import copy

import torch

from hf_video import VideoMambaConfig, VideoMambaForFrameClassification
from hf_video.training import FrameClassificationTrainer, FrameTrainingArguments

SIZES = {"image_size": 16, "patch_size": 8, "num_frames": 4, "tubelet_size": 1, "hidden_size": 16}
CAUSAL = {"bidirectional": False, "use_temporal_position_embeddings": False}


def make_frame_model(**options):
    """A model whose weights are large enough for every frame to matter."""
    torch.manual_seed(0)
    model = VideoMambaForFrameClassification(VideoMambaConfig(**SIZES | {"num_hidden_layers": 2} | CAUSAL | options))
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn(weight.shape), alpha=0.4)
    return model


def make_frame_trainer(folder, model, clips, eval_dataset=None, **options):
    defaults = {"per_device_train_batch_size": 2, "num_train_epochs": 1, "use_cpu": True, "disable_tqdm": True}
    defaults |= {"learning_rate": 0.0, "weight_decay": 0.0, "max_grad_norm": 0.0, "logging_steps": 1}
    defaults |= {"eval_strategy": "no", "save_strategy": "no", "load_best_model_at_end": False}
    return FrameClassificationTrainer(
        copy.deepcopy(model),
        FrameTrainingArguments(str(folder), **defaults | options),
        train_dataset=clips,
        eval_dataset=eval_dataset,
    )


def losses_of(trainer):
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
