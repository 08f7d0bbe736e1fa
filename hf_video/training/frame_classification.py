"""The trainer of classifiers of frames."""

from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import Sampler
from transformers import PreTrainedConfig, PreTrainedModel, TrainingArguments
from transformers.trainer_utils import EvalLoopOutput

from hf_video import VideoMambaState
from hf_video.data import FrameCollator, FrameDataset
from hf_video.data.contiguous_clips import ContiguousSampler
from hf_video.data.frame_dataset import GOES_ON
from hf_video.data.frame_labels import UNKNOWN
from hf_video.inference.frame_evaluation import evaluate_frames, figures_by_name
from hf_video.inference.frame_scoring import keeps_state
from hf_video.loading.class_names import class_names_of

from .base_trainer import BaseTrainer
from .callbacks import TrainingFactsCallback
from .losses import Distillation, make_distillation

# The file of a checkpoint with the states of all rows of a step.
_CARRIED_STATE = "carried_state.safetensors"


class FrameClassificationTrainer(BaseTrainer):
    """
    `transformers.Trainer` for a classifier of frames such as [`VideoMambaForFrameClassification`] and a
    [`FrameDataset`]. The loss is the model's, over the known frames of the whole step.

    An evaluation gives `frame_accuracy`, `edit_score`, `f1_10`, `f1_25` and `f1_50`, see
    [`evaluate_frames`][hf_video.inference.evaluate_frames]. It puts the clips of a video together, so they must not
    overlap.

    With `carry_state` in the arguments a VideoMamba is trained over long videos, as language models by truncated
    backpropagation through time: a `ContiguousSampler` draws the clips, and each row of a batch goes on with the state
    that the row had after the batch before, without its gradient. It begins anew where the clip does not follow: in
    another video, behind a part without labels, and in a new epoch. Checkpoints have the states. An evaluation and a
    teacher see each clip by itself.

    Args:
        model, args, *more, **kwargs: see `transformers.Trainer`. Pass the processor as `processing_class`.
        data_collator: defaults to a [`FrameCollator`].
        background: the class that is no segment, if there is one.
        distillation: a teacher of logits; defaults to the one that the arguments describe, if any.

    Raises:
        ValueError: `carry_state` is given, and the model has no state to carry, or one process has several GPUs. When
            training begins: the clips overlap or do not fill a step, or the checkpoint has states of other rows.
    """

    # The state after the last batch.
    _state: VideoMambaState | None = None
    _signature_columns: list[str]

    def __init__(
        self,
        model: PreTrainedModel | nn.Module | None = None,
        args: TrainingArguments | None = None,
        data_collator: Any = None,
        *more: Any,
        background: str | None = None,
        distillation: Distillation | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(model, args, data_collator or FrameCollator(), *more, **kwargs)
        self.background = background
        self.carries_state = getattr(self.args, "carry_state", False)
        if self.carries_state:
            check_carries_state(self.model.config)
            if self.args.n_gpu > 1:
                raise ValueError(
                    f"carry_state needs a process for each of the {self.args.n_gpu} GPUs: start with `torchrun "
                    f"--nproc-per-node {self.args.n_gpu}`, or choose one by CUDA_VISIBLE_DEVICES."
                )
        self.distillation = distillation or make_distillation(self.args, self.model, self.processing_class)
        self.add_callback(TrainingFactsCallback(self.eval_dataset))

    def _get_train_sampler(self, train_dataset: Any = None) -> Sampler | None:
        if not self.carries_state:
            return super()._get_train_sampler(train_dataset)
        return ContiguousSampler(self.train_dataset, self._num_rows, self.args.data_seed)

    @property
    def _num_rows(self) -> int:
        """Rows of the batches of all processes."""
        return self._train_batch_size * (1 if self.accelerator.split_batches else self.args.world_size)

    def _set_signature_columns_if_needed(self) -> None:
        super()._set_signature_columns_if_needed()
        self._signature_columns = [*{*self._signature_columns, GOES_ON}]

    def compute_loss(
        self, model: nn.Module, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        if not self.model.training:
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        goes_on = inputs.pop(GOES_ON, None)
        known = inputs
        if goes_on is not None:
            # All frames are real.
            known = {name: value for name, value in inputs.items() if name != "attention_mask"}
            known["state"] = self._state_before(goes_on)
        loss, outputs = super().compute_loss(model, known, True, num_items_in_batch)
        if goes_on is not None:
            self._state = outputs["state"].detach()
        if self.distillation is None:
            return (loss, outputs) if return_outputs else loss
        labels = inputs["labels"]
        taught = self.distillation.loss(inputs["pixel_values"], outputs["logits"], None, inputs["attention_mask"])
        # The loss of the labels is divided by the known labels of the whole step, and the teacher's by the frames of
        # the batch.
        share: Any = 1.0
        if num_items_in_batch is not None:
            num_processes = self.accelerator.num_processes if self.args.average_tokens_across_devices else 1
            share = labels.ne(UNKNOWN).sum() / num_items_in_batch * num_processes
        weight = self.distillation.weight
        loss = (1 - weight) * loss + weight * share * taught
        return (loss, outputs) if return_outputs else loss

    def _state_before(self, goes_on: torch.Tensor) -> VideoMambaState:
        """The state before a batch, of which the rows `goes_on` (batch_size,) follow the batch before."""
        if self._state is None or self._state.batch_size != len(goes_on):
            return VideoMambaState(self.model.config, len(goes_on), goes_on.device)
        # Where no row is new, the model reads its class token all the same. So each step uses all parameters, whose
        # gradients several processes average.
        self._state.reset(~goes_on)
        return self._state

    def _save_rng_state(self, output_dir: str) -> None:
        super()._save_rng_state(output_dir)
        if self._state is None:
            return
        state = self._state
        # Processes have consecutive rows, and their rows are joined along the first dimension.
        scan_states, conv_states, is_new = self.accelerator.gather(
            (state.scan_states.transpose(0, 1), state.conv_states.transpose(0, 1), state.is_new)
        )
        if self.args.should_save:
            whole = state.make(scan_states.transpose(0, 1), conv_states.transpose(0, 1), is_new, state.has_new)
            whole.save(Path(output_dir, _CARRIED_STATE))

    def _load_rng_state(self, checkpoint: str | None) -> None:
        super()._load_rng_state(checkpoint)
        if checkpoint is not None and self.carries_state:
            state = _read_carried_state(Path(checkpoint), self._num_rows)
            rows = torch.arange(self._num_rows).chunk(self.args.world_size)[self.args.process_index]
            self._state = state.take(rows).to(self.args.device)

    def evaluation_loop(
        self, dataloader: Any, *args: Any, metric_key_prefix: str = "eval", **kwargs: Any
    ) -> EvalLoopOutput:
        # The metric needs the videos of the data set, which no batch has, in place of `compute_metrics`.
        kwargs["prediction_loss_only"] = self.args.prediction_loss_only
        output = super().evaluation_loop(dataloader, *args, metric_key_prefix=metric_key_prefix, **kwargs)
        if output.predictions is not None:
            names = class_names_of(self.model.config)
            found = measure_clips(output.predictions, dataloader.dataset, names, self.background)
            figures = figures_by_name(found)
            output.metrics.update({f"{metric_key_prefix}_{name}": value for name, value in figures.items()})
        return output


def _read_carried_state(checkpoint: Path, num_rows: int) -> VideoMambaState:
    """The states to go on with. Refuses (`ValueError`) a checkpoint without them, or with those of more or fewer rows,
    which would have other clips."""
    file = checkpoint / _CARRIED_STATE
    if not file.is_file():
        raise ValueError(
            f"{checkpoint} has no {file.name}: the run trained without carry_state. Go on without it, or begin "
            "another run."
        )
    state = VideoMambaState.load(file)
    if state.batch_size != num_rows:
        raise ValueError(
            f"{checkpoint} has carried states of {state.batch_size} rows, and here the batches of all processes have "
            f"{num_rows}, so that the clips would be others. Go on with as many rows, per_device_train_batch_size "
            "(--batch-size) times the number of processes, or begin another run."
        )
    return state


def check_carries_state(config: PreTrainedConfig) -> None:
    """Refuses (`ValueError`) a model that `carry_state` is not for."""
    if config.model_type != "videomamba":
        raise ValueError(f"A {config.model_type} has no state to go on with: carry_state is for a VideoMamba.")
    if not keeps_state(config) and not (config.bidirectional and config.scan_order == "spatial_first"):
        raise ValueError(
            f"The model has scan_order={config.scan_order!r}, use_temporal_position_embeddings="
            f"{config.use_temporal_position_embeddings} and use_pool_norm={config.use_pool_norm}: carry_state needs "
            "'spatial_first', and False for the others if the model is causal, as `hf-video train --causal` makes it."
        )


def measure_clips(
    logits: np.ndarray, clips: FrameDataset, class_names: list[str], background: str | None = None
) -> dict[str, Any]:
    """What `evaluate_frames` says of logits (num_clips, t, num_classes) for the clips of a data set, which follow each
    other in each video without overlap."""
    rows = clips.dataset.select_columns(["video", "frame_labels"])
    found, truth = defaultdict[str, list[np.ndarray]](list), defaultdict[str, list[np.ndarray]](list)
    for scores, row in zip(logits, rows, strict=True):
        labels = np.asarray(row["frame_labels"])
        scores = scores[: len(labels)]
        found[row["video"]].append(scores.argmax(-1) if labels.ndim == 1 else (scores > 0).astype(labels.dtype))
        truth[row["video"]].append(labels)
    predictions, references = ([np.concatenate(parts) for parts in each.values()] for each in (found, truth))
    return evaluate_frames(predictions, references, class_names, [] if background is None else [background])
