"""Trains and evaluates video classifiers and models that answer, with `transformers.Trainer`."""

from hf_video.lazy_names import lazy_names

_PUBLIC_NAMES = {
    "adaptation": "add_lora freeze_layers make_linear_probe to_plain_model",
    "answers": "AnswerTrainer",
    "arguments": (
        "AnswerTrainingArguments DetectionTrainingArguments FrameTrainingArguments PreTrainingArguments "
        "RetrievalTrainingArguments VideoTrainingArguments"
    ),
    "classification": "VideoTrainer",
    "detection": "ActionDetectionTrainer",
    "frames": "FrameClassificationTrainer",
    "losses": "CrossEntropy Distillation FocalLoss",
    "optimization": "EMACallback NO_WEIGHT_DECAY parameter_groups parameter_settings",
    "planning": "plan plan_labels",
    "pretraining": "PreTrainer",
    "probing": "probe train_probe",
    "report": "assess measure_classes Measured write_report",
    "retrieval": "RetrievalTrainer",
    "settings": "LOSSES",
    "task": "evaluate find_task register_task Task TaskData TaskRow TASKS train",
    "task_settings": (
        "PlanSettings PretrainSettings ProbeSettings TrainAnswersSettings TrainDetectionSettings "
        "TrainFrameSettings TrainRetrievalSettings TrainSettings"
    ),
    "trainer": "BaseTrainer",
}

__all__, __dir__, __getattr__ = lazy_names(__name__, _PUBLIC_NAMES.items())
