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

    `dataloader_drop_last` is for training: evaluation measures all videos.
    """

    args: TrainingArguments

    def _get_dataloader(self, *args: Any, is_training: bool = False, **kwargs: Any) -> DataLoader:
        drop_last = self.args.dataloader_drop_last
        self.args.dataloader_drop_last = drop_last and is_training
        try:
            loader = super()._get_dataloader(*args, is_training=is_training, **kwargs)  # type: ignore[misc]
        finally:
            self.args.dataloader_drop_last = drop_last
        # The loader of Accelerate moves batches of the one inside to the device.
        inner = getattr(loader, "base_dataloader", loader)
        ReadAheadLoader.upgrade(inner, getattr(self.args, "reading_threads", None))
        return loader
