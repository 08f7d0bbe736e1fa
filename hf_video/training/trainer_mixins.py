"""What all trainers add to `transformers.Trainer`: clips that are read ahead, and publishing."""

from concurrent.futures import Future
from pathlib import Path
from typing import Any

from huggingface_hub import CommitInfo, HfApi
from torch.utils.data import DataLoader
from transformers import TrainingArguments

from hf_video.data import ReadAheadLoader
from hf_video.hub.publishing import publish


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


class PublishingMixin:
    """For a subclass of `transformers.Trainer`: `push_to_hub` saves the model and publishes the output folder.

    With `push_to_hub=True` in the arguments, `save_model` publishes as well. Checkpoints are not uploaded while
    training runs, because they are not checked and contain paths of this machine.
    """

    args: Any

    def push_to_hub(
        self,
        commit_message: str | None = "End of training",
        blocking: bool = True,
        token: str | None = None,
        revision: str | None = None,
        private: bool | None = None,
        **options: Any,
    ) -> CommitInfo | Future | None:
        """Publish the model, its processor and a card written from the facts of the training.

        Args:
            commit_message, token, revision, private: see `transformers.Trainer.push_to_hub`. The name of the
                repository is `args.hub_model_id`, or the name of the output folder.
            blocking: whether to wait. Otherwise a `Future` is returned, whose `result()` raises the error, if any.
            options: passed to [`publish`].

        Returns:
            The commit; None on all processes but the main one.

        Raises:
            PublishError: see [`publish`].
        """
        self.save_model(_internal_call=True)  # type: ignore[attr-defined]
        if not self.is_world_process_zero():  # type: ignore[attr-defined]
            return None
        api = HfApi(token=token or self.args.hub_token)
        options |= {
            "private": self.args.hub_private_repo if private is None else private,
            "revision": revision or self.args.hub_revision,
            "commit_message": commit_message or "End of training",
            "api": api,
        }
        repo_id = self.args.hub_model_id or Path(self.args.output_dir).absolute().name
        if blocking:
            return publish(self.args.output_dir, repo_id, **options)
        return api.run_as_future(publish, self.args.output_dir, repo_id, **options)

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        """Does nothing, in place of uploading a checkpoint."""
