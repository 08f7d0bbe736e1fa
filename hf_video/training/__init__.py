"""Fine-tuning and evaluating video classifiers, on top of `transformers.Trainer`."""

from importlib import import_module
from typing import Any

_PUBLIC_NAMES = {
    "AttentiveProbe": ".probes",
    "Distillation": ".distillation",
    "EMACallback": ".ema",
    "NO_WEIGHT_DECAY": ".optimization",
    "VideoTrainer": ".trainer",
    "VideoTrainingArguments": ".arguments",
    "add_lora": ".adaptation",
    "average_precision": ".metrics",
    "calibration_error": ".metrics",
    "classification_loss": ".losses",
    "compute_metrics": ".metrics",
    "confusion_matrix": ".metrics",
    "evaluate_dataset": ".evaluation",
    "extract_features": ".features",
    "freeze_layers": ".adaptation",
    "knn_scores": ".probes",
    "load_classifier": ".loading",
    "load_processor": ".loading",
    "make_linear_probe": ".adaptation",
    "multi_label_loss": ".losses",
    "parameter_groups": ".optimization",
    "parameter_settings": ".optimization",
    "per_class_accuracy": ".metrics",
    "predict_scores": ".evaluation",
    "regression_metrics": ".metrics",
    "soft_target_loss": ".losses",
    "to_plain_model": ".adaptation",
    "top_k_accuracy": ".metrics",
    "train_probe": ".probes",
    "write_predictions": ".predictions",
    "write_report": ".report",
}

__all__ = list(_PUBLIC_NAMES)


def __getattr__(name: str) -> Any:
    if name in _PUBLIC_NAMES:
        return getattr(import_module(_PUBLIC_NAMES[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
