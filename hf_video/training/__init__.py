"""Trains and evaluates video classifiers and models that answer, with `transformers.Trainer`."""

from importlib import import_module
from typing import Any

_PUBLIC_NAMES = {
    "AttentiveProbe": ".probes",
    "Distillation": ".distillation",
    "EMACallback": ".ema",
    "NO_WEIGHT_DECAY": ".optimization",
    "PreTrainer": ".pretraining",
    "PreTrainingArguments": ".arguments",
    "VideoTrainer": ".trainer",
    "VideoTrainingArguments": ".arguments",
    "add_lora": ".adaptation",
    "average_precision": "hf_video.metrics",
    "calibration_error": "hf_video.metrics",
    "classification_loss": ".losses",
    "compute_metrics": "hf_video.metrics",
    "confusion_matrix": "hf_video.metrics",
    "evaluate_dataset": ".evaluation",
    "extract_features": "hf_video.inference.features",
    "freeze_layers": ".adaptation",
    "knn_scores": ".probes",
    "load_classifier": ".loading",
    "load_processor": ".loading",
    "make_linear_probe": ".adaptation",
    "multi_label_loss": ".losses",
    "parameter_groups": ".optimization",
    "parameter_settings": ".optimization",
    "per_class_accuracy": "hf_video.metrics",
    "predict_scores": "hf_video.inference.prediction",
    "regression_metrics": "hf_video.metrics",
    "soft_target_loss": ".losses",
    "to_plain_model": ".adaptation",
    "top_k_accuracy": "hf_video.metrics",
    "train_probe": ".probes",
    "write_predictions": ".evaluation",
    "write_report": ".report",
}

__all__ = list(_PUBLIC_NAMES)


def __getattr__(name: str) -> Any:
    if name in _PUBLIC_NAMES:
        return getattr(import_module(_PUBLIC_NAMES[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
