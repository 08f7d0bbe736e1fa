"""Class scores of any video classifier of Transformers."""

import torch
from transformers import PreTrainedConfig, PreTrainedModel


@torch.inference_mode()
def predict_scores(model: PreTrainedModel, pixel_values: torch.Tensor) -> torch.Tensor:
    """Class probabilities of a batch of videos. For a regression model they are its values.

    Args:
        model: a video classifier in evaluation mode.
        pixel_values: (batch_size, num_frames, num_channels, height, width), or (batch_size, num_views, ...), where the
            model averages over the views. It is moved to the model's device and dtype.

    Returns:
        (batch_size, num_classes) float32 on the CPU.
    """
    logits = model(**{model.main_input_name: pixel_values.to(model.device, model.dtype)}).logits.float().cpu()
    problem_type = problem_type_of(model.config)
    if problem_type == "regression":
        return logits
    return logits.sigmoid() if problem_type == "multi_label_classification" else logits.softmax(-1)


def problem_type_of(config: PreTrainedConfig) -> str:
    """The `problem_type` of a configuration. If it is None: regression for a model with a single output, otherwise
    classification by a single label."""
    return config.problem_type or ("regression" if config.num_labels == 1 else "single_label_classification")
