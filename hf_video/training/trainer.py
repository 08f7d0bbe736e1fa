"""What the trainers of all tasks share: reading ahead, safe checkpoints, what they log, and publishing."""

import copy
import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate.data_loader import BatchSamplerShard
from huggingface_hub import CommitInfo, HfApi
from torch import nn
from torch.utils.data import DataLoader, IterableDataset
from transformers import PreTrainedModel, Trainer, TrainingArguments
from transformers.trainer_jit_checkpoint import JITCheckpointCallback
from transformers.trainer_utils import EvalLoopOutput, has_length, rotate_checkpoints

from hf_video.data import ReadAheadLoader, VideoStream, augment_batch, collate_clips
from hf_video.data.dataset import task_of
from hf_video.data.frame_labels import UNKNOWN
from hf_video.hub.publishing import publish
from hf_video.io import naming_disk_errors, replace_text, replacing_files

from .callbacks import PreemptionCallback, SetEpochCallback, StreamEpochCallback, TrainingFactsCallback
from .checkpoints import (
    best_of,
    is_secret,
    mark_complete,
    mark_unfinished,
    newest_complete,
    processes_of,
    read_stream_state,
    require_resumable,
)
from .losses import Distillation, make_distillation
from .optimization import settings_by_arguments
from .parallelism import OwnBatches, check_saves_whole_weights, choose_blocks
from .throughput import ThroughputCallback


class BaseTrainer(Trainer):
    """`transformers.Trainer` whose data loaders read ahead, with safe checkpoints, and with a `push_to_hub` that
    publishes as [`hf_video.hub.publish`] does.

    A run that is resumed in the middle of an epoch does not read ahead in the rest of this epoch.
    `dataloader_drop_last` is for training: evaluation measures all videos.

    Checkpoints get a mark of completeness, and a run resumes from a whole checkpoint or not at all. The files of the
    final model are replaced only after all of them are written. If the weights are sharded, `save_model` gathers them
    on the first process and is called on all. With `push_to_hub=True` in the arguments it publishes as well;
    checkpoints, which contain paths of this machine, are not uploaded.

    A training set may be a `VideoStream`: each process reads its own share, without worker processes, and a resumed
    run goes on with the next clip.

    Args:
        model, args, *more, **kwargs: see `transformers.Trainer`. Pass the processor as `processing_class`: it is saved
            with every checkpoint.
        data_collator: defaults to what `default_collator` gives: that of the task of the data sets.
        distillation: a teacher of logits; defaults to the one that the arguments describe, if any.
    """

    args: TrainingArguments
    _is_in_checkpoint = False
    _best: Path | None = None
    _preemption: PreemptionCallback | None = None

    def __init__(
        self,
        model: PreTrainedModel | nn.Module | None = None,
        args: TrainingArguments | None = None,
        data_collator: Callable | None = None,
        *more: Any,
        distillation: Distillation | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(model, args, data_collator, *more, **kwargs)
        if data_collator is None:
            self.data_collator = self.default_collator()
        self.distillation = distillation or make_distillation(self.args, self.model, self.processing_class)
        self.throughput = ThroughputCallback()
        self.add_callback(self.throughput)
        self._noted, self._num_noted_steps = defaultdict[str, Any](float), 0
        check_saves_whole_weights(self)
        self.add_callback(SetEpochCallback())
        if isinstance(self.train_dataset, VideoStream):
            self._prepare_stream(self.train_dataset)

        if (theirs := self.pop_callback(JITCheckpointCallback)) is not None:
            # It has taken the signal already, and gives it back here.
            theirs.on_train_end(self.args, self.state, self.control)
            self._preemption = PreemptionCallback()
            self.add_callback(self._preemption)
        self.add_callback(TrainingFactsCallback(self.eval_dataset))

    def default_collator(self) -> Callable:
        """The collator of the task of the data sets, or else `collate_clips`."""
        task = task_of(self.train_dataset) or task_of(self.eval_dataset)
        return collate_clips if task is None else task.collate

    def figures_of(self, predictions: Any, dataset: Any) -> dict[str, float]:
        """What an evaluation measures, by name, besides `compute_metrics`, which does not see the data set.
        `predictions` are None if only losses were wanted."""
        return {}

    def note_losses(self, losses: Mapping[str, torch.Tensor], share: float = 1.0) -> None:
        """Has parts of a loss logged beside it: their means over the steps and processes.

        Args:
            losses: scalars of a batch by name.
            share: the weight of the batch: 1 if the losses of the batches of a step add up, 1 / the number of these
                batches if they are averaged.
        """
        for name, value in losses.items():
            self._noted[name] += share * value.detach()

    def _prepare_stream(self, stream: VideoStream) -> None:
        stream.split_by_process(self.args.process_index, self.args.world_size)
        # The stream goes on by itself where it was.
        self.args.ignore_data_skip = True
        self.add_callback(StreamEpochCallback())

    @property
    def is_sharded(self) -> bool:
        """Whether FSDP or DeepSpeed spread the weights over the processes."""
        return self.is_fsdp_enabled or self.is_deepspeed_enabled

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        """As in `transformers.Trainer`; `resume_from_checkpoint=True` takes the newest complete checkpoint.

        Raises:
            ValueError: there is no complete checkpoint, or the given one is damaged, or lacks what a resumed run
                needs. Or the best checkpoint, which `load_best_model_at_end` needs, is missing or damaged.
        """
        if resume_from_checkpoint is True:
            checkpoint, passed = newest_complete(Path(str(self.args.output_dir)))
            if checkpoint is None:
                raise ValueError("; ".join([f"{self.args.output_dir} has no complete checkpoint", *passed]) + ".")
            resume_from_checkpoint = str(checkpoint)
        if resume_from_checkpoint:
            checkpoint = Path(resume_from_checkpoint)
            require_resumable(checkpoint)
            self._best = best_of(checkpoint) if self.args.load_best_model_at_end else None
            if isinstance(self.train_dataset, VideoStream):
                self.train_dataset.load_state_dict(read_stream_state(self._stream_file(checkpoint)))
            self._tell_other_processes(checkpoint)
        choose_blocks(self)
        with nullcontext() if self._preemption is None else self._preemption.giving_back():
            return super().train(resume_from_checkpoint, *args, **kwargs)

    def _tell_other_processes(self, checkpoint: Path) -> None:
        before, now = processes_of(checkpoint), self.args.world_size
        if before != now and self.is_world_process_zero():
            print(
                f"{checkpoint.name} has the state of {before} processes, and {now} go on: with as many clips a step "
                "they see the rest of the epoch once, in its order. Not as before are the rounding of losses, what a "
                "process draws or compares in its own batch (dropout, mixing, negatives), and the last batch of an "
                "epoch, which is filled up.",
                flush=True,
            )

    def push_to_hub(
        self,
        commit_message: str | None = "End of training",
        blocking: bool = True,
        token: str | None = None,
        revision: str | None = None,
        private: bool | None = None,
        **options: Any,
    ) -> CommitInfo | Future | None:
        """Publishes the model, its processor and a card written from the facts of the training, as
        `transformers.Trainer.push_to_hub`. `options` are passed to [`publish`], whose errors it raises; without
        `blocking` the `result()` of the `Future` does. The processes but the main one get None."""
        self.save_model(_internal_call=True)
        if not self.is_world_process_zero():
            return None
        api = HfApi(token=token or self.args.hub_token)
        options |= {
            "private": self.args.hub_private_repo if private is None else private,
            "revision": revision or self.args.hub_revision,
            "commit_message": commit_message or "End of training",
            "api": api,
        }
        repo_id = self.args.hub_model_id or Path(str(self.args.output_dir)).absolute().name
        run = publish if blocking else partial(api.run_as_future, publish)
        return run(self.args.output_dir, repo_id, **options)

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        """Does nothing, in place of uploading a checkpoint."""

    def get_train_dataloader(self) -> DataLoader:
        if self.args.dataloader_drop_last and has_length(self.train_dataset):
            clips, batch = len(self.train_dataset), self._train_batch_size * self.args.world_size
            if clips < batch:
                raise ValueError(
                    f"{clips} training clips do not fill one batch of {batch}: set dataloader_drop_last=false."
                )
        return super().get_train_dataloader()

    def _get_dataloader(self, dataset: Any, *args: Any, is_training: bool = False, **kwargs: Any) -> DataLoader:
        if isinstance(dataset, VideoStream):
            return self._get_stream_loader(dataset)
        drop_last = self.args.dataloader_drop_last
        self.args.dataloader_drop_last = is_training and (drop_last or self.is_last_batch_dropped())
        try:
            loader = super()._get_dataloader(dataset, *args, is_training=is_training, **kwargs)
        finally:
            self.args.dataloader_drop_last = drop_last
        # The loader of Accelerate moves the batches of an inner loader to the device.
        inner = getattr(loader, "base_dataloader", None)
        if type(inner) is DataLoader and not isinstance(inner.dataset, IterableDataset):
            is_shared = isinstance(inner.batch_sampler, BatchSamplerShard) and not is_training
            own = {"batch_sampler": OwnBatches(inner.batch_sampler)} if is_shared else {}
            threads = getattr(self.args, "reading_threads", None)
            loader.base_dataloader = ReadAheadLoader.like(inner, threads, **own)
        return loader

    def is_last_batch_dropped(self) -> bool:
        """Whether the last batch of an epoch is too small to train on."""
        return False

    def _get_stream_loader(self, stream: VideoStream) -> DataLoader:
        """The loader of a stream, of which each process has its own share already: Accelerate would share it again."""
        return ReadAheadLoader(
            stream,
            batch_size=self._train_batch_size,
            collate_fn=self._get_collator_with_removed_columns(self.data_collator, description="Training"),
            pin_memory=self.args.dataloader_pin_memory,
            reading_threads=getattr(self.args, "reading_threads", None),
        )

    def set_initial_training_values(self, *args: Any, **kwargs: Any) -> Any:
        values = super().set_initial_training_values(*args, **kwargs)
        # For schedules that count epochs.
        self._steps_per_epoch = values[1]
        return values

    def get_batch_samples(self, epoch_iterator: Iterator, *args: Any) -> Any:
        self._num_noted_steps += 1
        batches = self.throughput.watch(epoch_iterator)
        # The loader of a stream leaves its batches on the CPU.
        return super().get_batch_samples((augment_batch(self._prepare_input(each)) for each in batches), *args)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if "loss" in logs:
            logs |= self.throughput.collect(self.args)
            if self._noted:
                means = torch.stack([*self._noted.values()]) / self._num_noted_steps
                logs |= dict(zip(self._noted, self.accelerator.reduce(means, "mean").tolist(), strict=True))
            self._noted.clear()
            self._num_noted_steps = 0
        elif "train_runtime" in logs:
            logs |= self.throughput.collect(self.args, of_all=True)
        super().log(logs, start_time)

    def compute_loss(
        self, model: nn.Module, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        if not self.model.training:
            # The batches of an evaluation count by their clips, not by what other processes have at the same time.
            num_items_in_batch = None
        if not self.model.training or self.distillation is None:
            found = super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
            if self.model.training or not return_outputs:
                return found
            # Hidden states and attentions, which a configuration may ask for, are no predictions.
            loss, outputs = found
            return loss, {"logits": outputs["logits"]} if "logits" in outputs else outputs
        labels = inputs["labels"]
        loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
        pixel_values = inputs[self.model.main_input_name]
        taught = self.distillation.loss(pixel_values, outputs["logits"], inputs.get("attention_mask"))
        # The loss of the labels is divided by the known labels of the whole step. The teacher's is a mean over the
        # batch, so it is scaled to match.
        share: Any = 1.0
        if num_items_in_batch is not None:
            num_processes = self.accelerator.num_processes if self.args.average_tokens_across_devices else 1
            share = labels.ne(UNKNOWN).sum() / num_items_in_batch * num_processes
        weight = self.distillation.weight
        loss = (1 - weight) * loss + weight * share * taught
        return (loss, outputs) if return_outputs else loss

    def evaluation_loop(
        self, dataloader: Any, *args: Any, metric_key_prefix: str = "eval", **kwargs: Any
    ) -> EvalLoopOutput:
        if type(self).figures_of is not BaseTrainer.figures_of:
            # Without `compute_metrics` the base class keeps no predictions.
            kwargs["prediction_loss_only"] = self.args.prediction_loss_only
        self.gather_function = partial(self._gather_own, self.gather_function)  # type: ignore[has-type]
        output = super().evaluation_loop(dataloader, *args, metric_key_prefix=metric_key_prefix, **kwargs)
        found = self.figures_of(output.predictions, dataloader.dataset)
        output.metrics.update({f"{metric_key_prefix}_{name}": value for name, value in found.items()})
        return output

    def _gather_own(self, gather: Callable, tensors: Any) -> Any:
        """Gathers what processes have of their own batches, the last of which differ in their sizes."""
        if self.accelerator.gradient_state.end_of_dataloader:
            tensors = self.accelerator.pad_across_processes(tensors)
        return gather(tensors)

    def get_decay_parameter_names(self, model: nn.Module) -> list[str]:
        return [name for name, setting in settings_by_arguments(model, self.args).items() if setting.weight_decay]

    def _determine_best_metric(self, metrics: dict[str, float], trial: Any) -> bool:
        """Of evaluations with an equal metric, as on a few videos, the one with the lower loss is the best."""
        if super()._determine_best_metric(metrics, trial):
            return True
        of_best = [each for each in self.state.log_history if each["step"] == self.state.best_global_step]
        before = next((each["eval_loss"] for each in of_best if "eval_loss" in each), -math.inf)
        name = f"eval_{(self.args.metric_for_best_model or '').removeprefix('eval_')}"
        is_better = metrics.get(name) == self.state.best_metric and metrics.get("eval_loss", math.inf) < before
        if is_better:
            self.state.best_global_step = self.state.global_step
        return is_better

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        run = Path(self._get_output_dir(trial=trial))
        checkpoint = run / f"checkpoint-{self.state.global_step}"
        if self.args.should_save:
            mark_unfinished(checkpoint)
        # The base class deletes older checkpoints before the mark of this one is written.
        limit, self.args.save_total_limit, self._is_in_checkpoint = self.args.save_total_limit, None, True
        try:
            with naming_disk_errors(checkpoint):
                super()._save_checkpoint(model, trial)
        finally:
            self.args.save_total_limit, self._is_in_checkpoint = limit, False
        self.accelerator.wait_for_everyone()
        if self.args.should_save:
            mark_complete(checkpoint)
            rotate_checkpoints(str(run), limit, self.state.best_model_checkpoint, use_mtime=True)

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        folder, args = Path(output_dir or str(self.args.output_dir)), self.args
        self.args = copy.copy(args)
        for name in filter(is_secret, vars(args)):
            setattr(self.args, name, None)
        try:
            if self._is_in_checkpoint:
                with _keeping_names(self.model):
                    super()._save(str(folder), state_dict)
            else:
                with replacing_files(folder) if args.should_save else nullcontext(folder) as target:
                    super()._save(str(target), state_dict)
        finally:
            self.args = args

    def _run_epoch(self, *args: Any, **kwargs: Any) -> None:
        if 0 < self.state.max_steps <= self.state.global_step:
            # Resumed after the last step, which was inside an epoch: the base class would take one step more.
            self.control.should_training_stop = True
            return
        super()._run_epoch(*args, **kwargs)

    def _load_callback_state(self) -> None:
        super()._load_callback_state()
        if self._best is not None:
            # The state has the place before the run was moved.
            self.state.best_model_checkpoint = str(self._best)

    def _save_rng_state(self, output_dir: str) -> None:
        super()._save_rng_state(output_dir)
        if isinstance(self.train_dataset, VideoStream):
            state = json.dumps(self.train_dataset.state_dict(), indent=1)
            replace_text(self._stream_file(output_dir), state + "\n")

    def _stream_file(self, checkpoint: str | Path) -> Path:
        return Path(checkpoint, f"stream_{self.args.process_index}.json")


@contextmanager
def _keeping_names(model: Any) -> Iterator[None]:
    """Makes `save_pretrained` write each weight under its name in the model. By default it writes those of VideoMAE
    and ViViT under older names, which `Trainer` would not find when it loads a checkpoint, and pass over."""
    if not isinstance(model, PreTrainedModel):
        yield
        return
    model.save_pretrained = partial(model.save_pretrained, save_original_format=False)
    try:
        yield
    finally:
        del model.save_pretrained
