"""Training a video-text model on videos with captions: the task `retrieval`."""

from typing import Any

import numpy as np
import pyarrow as pa
import torch
import torch.nn.functional as F
from datasets import Dataset
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader
from transformers import AutoModel, AutoProcessor, EvalPrediction
from transformers.trainer_utils import has_length

from hf_video.data import ClipAugmentation, TextTask, VideoDataset
from hf_video.data.holding_out import VIDEO, hold_out
from hf_video.data.video_texts import load_captions
from hf_video.evaluation.retrieval import group_captions
from hf_video.loading.configurations import check_trainable, load_config, loading
from hf_video.metrics import measured_in, retrieval_recall, wilson_interval
from hf_video.processes import is_first_process

from .arguments import RetrievalTrainingArguments
from .data import require_training, warn_of_repetitions
from .report import Measured, table
from .run import RunPlan
from .task import Task, TaskData
from .trainer import BaseTrainer
from .values import make

# Where a video has fewer captions than another one. `Trainer` fills up with it, too.
NO_TEXT = -100.0


def compute_retrieval_metrics(prediction: EvalPrediction, temperature: float = 1.0) -> dict[str, float]:
    """What `retrieval_recall` returns for all videos and captions of an evaluation, and their contrast as `loss`: the
    mean over captions of -log p(its video), and over videos of -log p(any of its captions), from cosines that are
    divided by `temperature`. The `predictions` of a [`RetrievalTrainer`] are the vectors of the videos (V, K, D) and
    of their captions (V, N, D), its `label_ids` (V,) the numbers of captions."""
    videos, texts = (torch.from_numpy(np.asarray(each)).float() for each in prediction.predictions)
    is_text = torch.arange(texts.shape[1]) < torch.from_numpy(np.asarray(prediction.label_ids))[:, None]
    owner = is_text.nonzero()[:, 0]
    similarity = F.normalize(videos, dim=-1).mean(dim=1) @ F.normalize(texts[is_text], dim=-1).T
    relevant = torch.arange(len(videos))[:, None] == owner
    logits = similarity / temperature
    of_videos = (logits.logsumexp(1) - logits.masked_fill(~relevant, -torch.inf).logsumexp(1)).mean()
    loss = (F.cross_entropy(logits.T, owner) + of_videos) / 2
    return {**retrieval_recall(similarity.numpy(), relevant.numpy()), "loss": loss.item()}


class RetrievalTrainer(BaseTrainer):
    """
    `transformers.Trainer` for a [`VideoTextDualEncoderModel`] and videos with captions.

    The losses are those that `loss_weights` of the model's configuration names; each is logged beside their sum. The
    contrast is with the captions and videos of all processes, see `gather_negatives`; negatives of matching come from
    the same process. An evaluation reads a video once, and compares all videos with all captions.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"compute_metrics": self._measure} | kwargs)

    def default_collator(self) -> Any:
        return TextTask(self.processing_class, max_length=getattr(self.args, "max_length", None)).collate

    def compute_loss(self, model: nn.Module, inputs: Any, return_outputs: bool = False, *_: Any, **__: Any) -> Any:
        outputs = model(**inputs, return_loss=True)
        weights = self.model.config.loss_weights
        parts = {name: value for name, value in outputs.loss_dict.items() if weights.get(name.removeprefix("loss_"))}
        self.note_losses(parts, 1 / self.current_gradient_accumulation_steps)
        return (outputs.loss, outputs) if return_outputs else outputs.loss

    def _get_dataloader(self, dataset: Any, *args: Any, is_training: bool = False, **kwargs: Any) -> DataLoader:
        if not is_training and isinstance(dataset, VideoDataset):
            rows = one_row_a_video(dataset.rows)
            dataset = VideoDataset(rows, dataset.task, training=False, on_error=dataset.on_error)
        return super()._get_dataloader(dataset, *args, is_training=is_training, **kwargs)

    def prediction_step(self, model: nn.Module, inputs: Any, prediction_loss_only: bool, *_: Any, **__: Any) -> Any:
        inputs = self._prepare_inputs(inputs)
        inputs.pop("video_ids")
        counts = inputs.pop("num_texts")
        with torch.no_grad(), self.compute_loss_context_manager():
            outputs = model(**inputs)
        texts = pad_sequence(outputs.text_embeds.split(counts.tolist()), batch_first=True, padding_value=NO_TEXT)
        return None, (outputs.video_embeds, texts), counts

    def is_last_batch_dropped(self) -> bool:
        """Whether a last batch of one video is left out, since it has no negatives."""
        videos_per_step = self._train_batch_size * self.args.world_size
        if not has_length(self.train_dataset):
            return False
        return len(self.train_dataset) > videos_per_step and len(self.train_dataset) % videos_per_step == 1

    def _measure(self, prediction: EvalPrediction) -> dict[str, float]:
        return compute_retrieval_metrics(prediction, self.model.temperature.item())


def one_row_a_video(rows: Dataset) -> Dataset:
    """Rows of `load_captions` with a list of captions for each video or segment."""
    videos, texts, relevant = group_captions(rows)
    captions = pa.array([[texts[text] for text in np.flatnonzero(row)] for row in relevant], pa.list_(pa.string()))
    return Dataset(videos.with_format("arrow")[:].append_column("caption", captions))


class RetrievalTask(Task):
    """Learns which caption belongs to which video."""

    arguments, trainer = RetrievalTrainingArguments, RetrievalTrainer
    needs_model = "The model to fine-tune is missing: give --model."
    try_it = "hf-video index VIDEO --model {model} --output DIR"

    def load_data(self, run: RunPlan) -> TaskData:
        splits = load_captions(run.chosen.data, video_root=run.chosen.video_root)
        require_training(run.chosen.data, splits)
        warn_of_repetitions(splits)
        return TaskData(splits)

    def load_model(self, run: RunPlan, data: TaskData, arguments: Any) -> tuple[Any, Any]:
        chosen = run.chosen
        name, config = chosen.model, load_config(chosen.model)
        check_trainable(name, config)
        if config.model_type != "video_text_dual_encoder":
            raise ValueError(f"{name} is a {config.model_type}; --task retrieval trains a video_text_dual_encoder.")
        weights = {loss: getattr(chosen, f"{loss}_weight") for loss in ("vtc", "vtm", "mlm")}
        if weights["mlm"] and not config.use_mlm_head:
            raise ValueError(f"mlm_weight needs a head of masked words, and {name} has none: leave it out.")
        changed = {"loss_weights": weights, "original_gradient_scale": chosen.original_gradient_scale}
        with loading(name):
            model = AutoModel.from_pretrained(name, dtype="float32", **changed)
            processor = AutoProcessor.from_pretrained(name)
        for key in ("num_frames", "sampling_strategy"):
            if getattr(chosen, key) is not None:
                setattr(processor.video_processor, key, getattr(chosen, key))
        return model, processor

    def make_splits(self, run: RunPlan, data: TaskData, processor: Any) -> None:
        if "validation" in data.splits:
            return
        chosen = run.chosen
        train, held_out = hold_out(data.splits["train"], chosen.validation_fraction, chosen.seed, split_by=VIDEO)
        data.splits = {**data.splits, "train": train, "validation": held_out}
        if is_first_process():
            print(held_out.info.description, flush=True)

    def item_task(self, run: RunPlan, data: TaskData, processor: Any) -> TextTask:
        return TextTask(processor, max_length=run.chosen.max_length, augmentation=make(ClipAugmentation, run.chosen))

    def measure(self, trainer: RetrievalTrainer, dataset: VideoDataset) -> Measured:
        measured = trainer.predict(dataset).metrics
        found = {metric.name: value for metric, value in measured_in(measured, "test_")}
        found["loss"] = measured["test_loss"]
        num_videos, num_captions = len(one_row_a_video(dataset.rows)), len(dataset)
        metrics: dict[str, Any] = {"num_captions": num_captions, "num_videos": num_videos, **found}
        metrics["chance"] = 1 / num_videos
        metrics["interval"] = [*wilson_interval(found["text_to_video_r1"] / 100, num_captions)]
        ways = ("text_to_video", "video_to_text")
        rows = [(way.replace("_", " "), *(f"{found[f'{way}_r{k}']:.1f}" for k in (1, 5, 10))) for way in ways]
        return Measured(metrics, tables=table(("search", "R@1", "R@5", "R@10"), rows))
