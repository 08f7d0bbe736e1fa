"""Trains and evaluates video classifiers and models that answer, with `transformers.Trainer`."""

from importlib import import_module
from typing import Any

_PUBLIC_NAMES = {
    "ActionDetectionTrainer": ".detection",
    "add_lora": ".adaptation",
    "assess": ".assessment",
    "classification_loss": ".losses",
    "DetectionTrainingArguments": ".arguments",
    "Distillation": ".losses",
    "EMACallback": ".optimization",
    "evaluate": ".measuring",
    "evaluate_dataset": ".evaluation",
    "evaluate_frame_classes": ".frame_measuring",
    "FrameClassificationTrainer": ".frame_classification",
    "FrameTrainingArguments": ".arguments",
    "freeze_layers": ".adaptation",
    "make_linear_probe": ".adaptation",
    "multi_label_loss": ".losses",
    "NO_WEIGHT_DECAY": ".optimization",
    "parameter_groups": ".optimization",
    "parameter_settings": ".optimization",
    "PreTrainer": ".pretraining",
    "PreTrainingArguments": ".arguments",
    "RetrievalTrainer": ".retrieval",
    "RetrievalTrainingArguments": ".arguments",
    "soft_target_loss": ".losses",
    "to_plain_model": ".adaptation",
    "train_probe": ".adaptation",
    "PretrainSettings": ".settings",
    "pretrain": ".masked_training",
    "ProbeSettings": ".settings",
    "probe": ".probing",
    "train": ".fine_tuning",
    "train_answers": ".answer_training",
    "train_detection": ".detection_training",
    "train_frames": ".frame_classification_training",
    "train_retrieval": ".retrieval_training",
    "TrainAnswersSettings": ".settings",
    "TrainDetectionSettings": ".settings",
    "TrainFrameSettings": ".settings",
    "TrainRetrievalSettings": ".settings",
    "TrainSettings": ".settings",
    "VideoTrainer": ".trainer",
    "VideoTrainingArguments": ".arguments",
    "write_predictions": ".evaluation",
    "write_report": ".evaluation",
}

__all__ = list(_PUBLIC_NAMES)


def __getattr__(name: str) -> Any:
    if name in _PUBLIC_NAMES:
        return getattr(import_module(_PUBLIC_NAMES[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
