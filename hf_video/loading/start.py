"""The start that ships: a small VideoViT, pre-trained on generated videos, from which few clips are enough.

`SHIPPED` names it wherever a model is trained; `SCRATCH` stands for random weights in place of a model.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

SHIPPED, SCRATCH = "start", "scratch"
START_FOLDER = Path(__file__).parents[1] / "start"


def model_path(model: str | None) -> str | None:
    """The folder or Hub name of a model that `SHIPPED` may stand for; None, for random weights, stays."""
    return str(START_FOLDER) if model == SHIPPED else model


def start_sha256() -> str:
    """The SHA-256 of the weights of the start, in hexadecimal digits."""
    with (START_FOLDER / "model.safetensors").open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
