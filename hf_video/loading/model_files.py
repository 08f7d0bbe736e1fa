"""Types of the fields that are read from the JSON files of a model folder before Transformers checks them.

Every field may be missing or null, unless it has no default. Other fields may have any value.
"""

from typing import Annotated, Any

from pydantic import BaseModel, StringConstraints

ClassId = Annotated[str, StringConstraints(pattern=r"^\d+$")]


class Config(BaseModel):
    """Fields of `config.json`."""

    model_type: str | None = None
    architectures: list[str] | None = None
    auto_map: dict[str, Any] | None = None
    id2label: dict[ClassId, str] | None = None
    quantization_config: dict[str, Any] | None = None


class Processor(BaseModel):
    """Fields of the file of a processor."""

    video_processor_type: str | None = None


class Index(BaseModel):
    """Fields of the index of a model's weights: `weight_map` has the name of the file that holds a tensor."""

    weight_map: dict[str, str]
