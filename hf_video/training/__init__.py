"""Fine-tuning and evaluating video classifiers, on top of `transformers.Trainer`."""

from importlib import import_module
from typing import Any

_PUBLIC_NAMES = {
    "VideoTrainer": ".trainer",
    "VideoTrainingArguments": ".arguments",
    "average_views": ".evaluation",
    "compute_metrics": ".metrics",
    "confusion_matrix": ".metrics",
    "evaluate_dataset": ".evaluation",
    "load_classifier": ".loading",
    "load_processor": ".loading",
    "predict_scores": ".evaluation",
    "top_k_accuracy": ".metrics",
    "write_report": ".report",
}

__all__ = list(_PUBLIC_NAMES)


def __getattr__(name: str) -> Any:
    if name in _PUBLIC_NAMES:
        return getattr(import_module(_PUBLIC_NAMES[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
