"""Trains and evaluates video classifiers and models that answer, with `transformers.Trainer`."""

from importlib import import_module
from typing import Any

_PUBLIC_NAMES = {
    "ActionDetectionTrainer": ".detection",
    "add_lora": ".adaptation",
    "AnswerTrainer": ".answers",
    "AnswerTrainingArguments": ".arguments",
    "assess": ".report",
    "BaseTrainer": ".trainer",
    "CrossEntropy": ".losses",
    "DetectionTrainingArguments": ".arguments",
    "Distillation": ".losses",
    "EMACallback": ".optimization",
    "evaluate": ".task",
    "find_task": ".task",
    "FocalLoss": ".losses",
    "FrameClassificationTrainer": ".frames",
    "FrameTrainingArguments": ".arguments",
    "freeze_layers": ".adaptation",
    "LOSSES": ".settings",
    "make_linear_probe": ".adaptation",
    "measure_classes": ".report",
    "Measured": ".report",
    "NO_WEIGHT_DECAY": ".optimization",
    "parameter_groups": ".optimization",
    "parameter_settings": ".optimization",
    "plan": ".planning",
    "plan_labels": ".planning",
    "PlanSettings": ".task_settings",
    "PreTrainer": ".pretraining",
    "PreTrainingArguments": ".arguments",
    "PretrainSettings": ".task_settings",
    "probe": ".probing",
    "ProbeSettings": ".task_settings",
    "register_task": ".task",
    "RetrievalTrainer": ".retrieval",
    "RetrievalTrainingArguments": ".arguments",
    "Task": ".task",
    "TaskData": ".task",
    "TaskRow": ".task",
    "TASKS": ".task",
    "to_plain_model": ".adaptation",
    "train": ".task",
    "train_probe": ".probing",
    "TrainAnswersSettings": ".task_settings",
    "TrainDetectionSettings": ".task_settings",
    "TrainFrameSettings": ".task_settings",
    "TrainRetrievalSettings": ".task_settings",
    "TrainSettings": ".task_settings",
    "VideoTrainer": ".classification",
    "VideoTrainingArguments": ".arguments",
    "write_report": ".report",
}

__all__ = list(_PUBLIC_NAMES)
__dir__ = __all__.copy


def __getattr__(name: str) -> Any:
    if name in _PUBLIC_NAMES:
        return getattr(import_module(_PUBLIC_NAMES[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
