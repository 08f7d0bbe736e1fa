"""The trainer of video-text models, on videos with captions."""

from collections import defaultdict
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader
from transformers import EvalPrediction, PreTrainedModel, TrainingArguments
from transformers.trainer_utils import has_length

from hf_video.data import TextTask
from hf_video.metrics import retrieval_recall

from .base_trainer import BaseTrainer
from .callbacks import TrainingFactsCallback


def compute_retrieval_metrics(prediction: EvalPrediction, temperature: float = 1.0) -> dict[str, float]:
    """
    The recall of retrieval among all videos and captions of an evaluation, and the contrast of all of them as `loss`.

    Args:
        prediction: of a [`RetrievalTrainer`]: `predictions` are the vectors of the videos (N, K, D) and of the
            captions (N, D), `label_ids` (N,) the numbers of the videos.
        temperature: what the cosines are divided by in the loss.

    Returns:
        What `retrieval_recall` returns, and `loss`.
    """
    videos, texts = (torch.from_numpy(np.asarray(each)) for each in prediction.predictions)
    ids = torch.from_numpy(np.asarray(prediction.label_ids))
    similarity = F.normalize(videos.float(), dim=-1).mean(dim=1) @ F.normalize(texts.float(), dim=-1).T
    # A video with several captions is one row.
    first = np.unique(ids.numpy(), return_index=True)[1]
    recall = retrieval_recall(similarity[first].numpy(), (ids[first][:, None] == ids).numpy())
    same = (ids[:, None] == ids).float()
    logits, targets = similarity / temperature, same / same.sum(dim=1, keepdim=True)
    loss = (F.cross_entropy(logits, targets) + F.cross_entropy(logits.T, targets)) / 2
    return {**recall, "loss": loss.item()}


class RetrievalTrainer(BaseTrainer):
    """
    `transformers.Trainer` for a [`VideoTextDualEncoderModel`] and videos with captions.

    The losses are those that `loss_weights` of the model's configuration names; each is logged beside their sum. The
    contrast is with the captions and videos of all processes, see `gather_negatives`; negatives of matching come from
    the same process. An evaluation compares all videos with all captions.

    Args:
        model, args, *more, **kwargs: see `transformers.Trainer`. Pass the processor as `processing_class`.
        data_collator: defaults to that of a [`TextTask`] with `max_length` of the arguments.
    """

    def __init__(
        self,
        model: PreTrainedModel | nn.Module | None = None,
        args: TrainingArguments | None = None,
        data_collator: Any = None,
        *more: Any,
        **kwargs: Any,
    ) -> None:
        super().__init__(model, args, data_collator, *more, **{"compute_metrics": self._measure} | kwargs)
        if data_collator is None:
            self.data_collator = TextTask(
                self.processing_class, max_length=getattr(self.args, "max_length", None)
            ).collate
        self.add_callback(TrainingFactsCallback(self.eval_dataset))
        self._parts: dict[str, list[torch.Tensor]] = defaultdict(list)

    def compute_loss(self, model: nn.Module, inputs: Any, return_outputs: bool = False, *_: Any, **__: Any) -> Any:
        outputs = model(**inputs, return_loss=True)
        for name, value in outputs.loss_dict.items():
            self._parts[name].append(value.detach())
        return (outputs.loss, outputs) if return_outputs else outputs.loss

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if "loss" in logs:
            weights = self.model.config.loss_weights
            logs |= {
                name: torch.stack(values).mean().item()
                for name, values in self._parts.items()
                if weights.get(name.removeprefix("loss_"))
            }
            self._parts.clear()
        super().log(logs, start_time)

    def prediction_step(self, model: nn.Module, inputs: Any, prediction_loss_only: bool, *_: Any, **__: Any) -> Any:
        inputs = self._prepare_inputs(inputs)
        video_ids = inputs.pop("video_ids")
        with torch.no_grad(), self.compute_loss_context_manager():
            outputs = model(**inputs)
        return None, (outputs.video_embeds, outputs.text_embeds), video_ids

    def get_train_dataloader(self) -> DataLoader:
        if has_length(self.train_dataset):
            # A last batch of one video has no negatives.
            videos_per_step = self._train_batch_size * self.args.world_size
            num_videos = len(self.train_dataset)
            self.args.dataloader_drop_last |= num_videos > videos_per_step and num_videos % videos_per_step == 1
        return super().get_train_dataloader()

    def _measure(self, prediction: EvalPrediction) -> dict[str, float]:
        return compute_retrieval_metrics(prediction, self.model.temperature.item())
