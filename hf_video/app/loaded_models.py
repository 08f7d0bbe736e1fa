"""The models of a page: loaded once, shown by name, used by one request at a time."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any

from transformers import PreTrainedModel


@dataclass(frozen=True, eq=False)
class LoadedModel:
    """
    A model and its processor.

    Attributes:
        name: what the page calls it.
        network: the model in evaluation mode.
        processor: a `VideoClipProcessor`, or the processor of a model that answers questions.
        lock: held while the network computes. An explanation changes the network for a moment, and two requests at
            once would also need the memory of both.
    """

    name: str
    network: PreTrainedModel
    processor: Any
    lock: Lock = field(default_factory=Lock)

    @property
    def answers(self) -> bool:
        """Whether the model answers questions instead of choosing a class."""
        return self.network.can_generate()

    @property
    def class_names(self) -> list[str]:
        """The names of its classes, by number; empty if it answers."""
        config = self.network.config
        return [] if self.answers else [config.id2label[index] for index in range(config.num_labels)]


def name_models(models: Iterable[str]) -> list[str]:
    """The names that a page shows for models: of a folder only its own name, of several with one name also a number.

    Args:
        models: folders, and names of the Hub.
    """
    names = [Path(model).resolve().name if Path(model).is_dir() else model for model in models]
    total, seen = Counter(names), Counter[str]()
    shown = []
    for name in names:
        seen[name] += 1
        shown.append(f"{name} ({seen[name]})" if total[name] > 1 else name)
    return shown
