"""Lets a trainer read the next clips in threads while it trains on the last ones."""

from typing import Any

from torch.utils.data import DataLoader
from transformers import TrainingArguments

from hf_video.data import ReadAheadLoader


class ReadAheadMixin:
    """Makes the data loaders of a `transformers.Trainer` read ahead, see `ReadAheadLoader`. It comes before `Trainer`
    among the bases of a class.

    If a run is resumed in the middle of an epoch, Transformers makes another loader for the rest of this epoch, which
    does not read ahead.
    """

    args: TrainingArguments

    def _get_dataloader(self, *args: Any, **kwargs: Any) -> DataLoader:
        loader = super()._get_dataloader(*args, **kwargs)  # type: ignore[misc]
        # The loader of Accelerate moves batches of the one inside to the device.
        inner = getattr(loader, "base_dataloader", loader)
        ReadAheadLoader.upgrade(inner, getattr(self.args, "reading_threads", None))
        return loader
