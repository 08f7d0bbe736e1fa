"""The score of a class, through which gradients can run."""

import torch


def class_score(logits: torch.Tensor, target: int) -> torch.Tensor:
    """One output of a model for one clip: (1,), of the logits (1, num_labels).

    Raises:
        ValueError: the model gives no gradients.
    """
    if not logits.requires_grad:
        raise ValueError(
            "The model gives no gradients, which heat maps need. If it rounds its activations (int8), load it without "
            "quantisation, or with weights alone in int8."
        )
    return logits.reshape(1, -1)[:, target]
