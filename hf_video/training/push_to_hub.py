"""What makes `Trainer.push_to_hub` publish: checks, code, card, one commit, and a look whether it loads."""

from concurrent.futures import Future
from pathlib import Path
from typing import Any

from huggingface_hub import CommitInfo, HfApi

from hf_video.hub.publishing import publish


class PublishingMixin:
    """For a subclass of `transformers.Trainer`: `push_to_hub` saves the model and publishes the output folder.

    With `push_to_hub=True` in its arguments, `save_model` publishes too. Checkpoints are not uploaded while training
    runs: they are not checked, and hold paths of this machine.
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
            commit_message, token, revision, private: as those of `transformers.Trainer.push_to_hub`; the name of the
                repository is `args.hub_model_id`, or that of the output folder.
            blocking: whether to wait; otherwise a `Future` is returned, which raises what went wrong.
            options: passed to [`publish`].

        Returns:
            The commit, or None on all but the main process.

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
        """Overrides the upload of every checkpoint."""
