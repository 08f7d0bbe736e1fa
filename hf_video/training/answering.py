"""Fine-tuning a MemoryBankQFormer on questions and answers, or on captions, as MA-LMM was trained."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn
from torch.utils.data import DataLoader, Dataset
from transformers import PreTrainedModel, SchedulerType, Trainer, TrainingArguments
from transformers.trainer_utils import IntervalStrategy, SaveStrategy
from transformers.utils import is_peft_available

from hf_video.data.video_texts import VideoTextCollator

from .bounds import check_bounds
from .callbacks import SetEpochCallback
from .checkpoints import CheckpointMixin
from .optimization import parameter_settings
from .push_to_hub import PublishingMixin

# The folder of a checkpoint with the adapters alone, as PEFT has them; the checkpoint itself is a whole model.
ADAPTER_FOLDER = "adapter"
ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"


@dataclass
class AnswerTrainingArguments(TrainingArguments):
    """`transformers.TrainingArguments` with the defaults of MA-LMM, and what [`AnswerTrainer`] adds: what is trained,
    the texts, and how the trained model generates.
    """

    learning_rate: float = field(default=1e-4, metadata={"help": "The peak learning rate of AdamW."})
    weight_decay: float = field(default=0.05, metadata={"help": "Weight decay of AdamW."})
    lr_scheduler_type: SchedulerType | str = field(
        default="cosine", metadata={"help": "The learning rate schedule after the warm-up."}
    )
    warmup_steps: float = field(
        default=0.1, metadata={"help": "Steps of linear warm-up; below 1, a share of all steps."}
    )
    eval_strategy: IntervalStrategy | str = field(default="epoch", metadata={"help": "When to evaluate."})
    save_strategy: SaveStrategy | str = field(default="epoch", metadata={"help": "When to save a checkpoint."})
    save_total_limit: int | None = field(
        default=2, metadata={"help": "Checkpoints kept; with 2 they are the best one and the last one."}
    )
    load_best_model_at_end: bool = field(default=True, metadata={"help": "Return to the best checkpoint at the end."})
    metric_for_best_model: str | None = field(
        default="loss", metadata={"help": "The metric that makes a checkpoint the best."}
    )
    prediction_loss_only: bool = field(default=True, metadata={"help": "Evaluate the loss alone, and keep no logits."})
    remove_unused_columns: bool = field(default=False, metadata={"help": "Take texts from items; the collator does."})
    report_to: None | str | list[str] = field(default="none", metadata={"help": "Experiment trackers to log to."})
    label_names: list[str] | None = field(
        default_factory=lambda: ["labels"], metadata={"help": "The inputs that are labels."}
    )

    no_weight_decay: list[str] = field(
        default_factory=list,
        metadata={"help": "Parts of parameter names without weight decay, besides biases and norms."},
    )
    train_vision_tower: bool = field(default=False, metadata={"help": "Train the vision tower, too."})
    train_language_model: bool = field(default=False, metadata={"help": "Train the language model, too."})
    lora_rank: int = field(default=0, metadata={"help": "Adapters of this rank on the language model; 0: none."})
    lora_alpha: float | None = field(default=None, metadata={"help": "Their weight; default twice the rank."})

    prompt: str = field(default="{}", metadata={"help": "The prompt, with {} for the question."})
    max_length: int = field(default=128, metadata={"help": "Tokens of a prompt."})
    max_target_length: int = field(default=256, metadata={"help": "Tokens of an answer to learn."})
    max_new_tokens: int = field(default=30, metadata={"help": "Tokens of a generated answer."})
    min_new_tokens: int = field(default=0, metadata={"help": "Least tokens of a generated answer."})
    num_beams: int = field(default=5, metadata={"help": "Beams to generate with."})
    length_penalty: float = field(default=1.0, metadata={"help": "Of beams; above 0 favours long answers."})
    repetition_penalty: float = field(default=1.5, metadata={"help": "Of tokens that are there already."})
    num_return_sequences: int = field(default=1, metadata={"help": "Answers to evaluate; the best beams."})

    def __post_init__(self) -> None:
        check_bounds(self)
        super().__post_init__()
        if self.lora_rank and self.train_language_model:
            raise ValueError("lora_rank adapts a frozen language model: leave out train_language_model.")
        if self.num_return_sequences > self.num_beams:
            raise ValueError(
                f"num_return_sequences is {self.num_return_sequences}; from 1 to num_beams ({self.num_beams}) is "
                "expected."
            )
        if self.min_new_tokens > self.max_new_tokens:
            raise ValueError(
                f"min_new_tokens is {self.min_new_tokens}; at most max_new_tokens ({self.max_new_tokens}) is expected."
            )

    def generation_settings(self) -> dict[str, Any]:
        """What the trained model's `generation_config` says."""
        names = ("max_new_tokens", "min_new_tokens", "num_beams", "length_penalty", "repetition_penalty")
        return {name: getattr(self, name) for name in names} | {"do_sample": False}


class AnswerTrainer(CheckpointMixin, PublishingMixin, Trainer):
    """
    `transformers.Trainer` for a [`MemoryBankQFormerForConditionalGeneration`] and data sets of questions or captions.

    A plain `Trainer` with `data_collator=VideoTextCollator(processor)` trains the same model; [`choose_trained`] says
    what of it. Pass the processor as `processing_class`: it is saved with every checkpoint.

    A checkpoint of a model with adapters is one without: they are merged into the language model, so that
    `from_pretrained` loads it, and are kept beside it, in the folder `adapter`, to go on from.

    Args:
        model, args, *more, **kwargs: see `transformers.Trainer`.
        data_collator: defaults to a [`VideoTextCollator`] with the arguments' lengths.
    """

    args: AnswerTrainingArguments

    def __init__(
        self,
        model: PreTrainedModel | nn.Module | None = None,
        args: TrainingArguments | None = None,
        data_collator: Any = None,
        *more: Any,
        **kwargs: Any,
    ) -> None:
        super().__init__(model, args, data_collator, *more, **kwargs)
        if data_collator is None:
            self.data_collator = self._collator()
        self.add_callback(SetEpochCallback())

    def get_decay_parameter_names(self, model: nn.Module) -> list[str]:
        settings = parameter_settings(
            model, weight_decay=self.args.weight_decay, no_weight_decay=self.args.no_weight_decay
        )
        return [name for name, setting in settings.items() if setting.weight_decay]

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        if not has_adapters(self.model):
            return super()._save(output_dir, state_dict)
        super()._save(output_dir, merged_state(self.model, state_dict))
        save_adapters(self.model, Path(output_dir or self.args.output_dir, ADAPTER_FOLDER))

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        super()._load_from_checkpoint(resume_from_checkpoint, model)
        load_adapters(self.model, Path(resume_from_checkpoint, ADAPTER_FOLDER))
        check_language_model(self.model, Path(resume_from_checkpoint))

    def _load_best_model(self) -> None:
        super()._load_best_model()
        load_adapters(self.model, Path(self.state.best_model_checkpoint, ADAPTER_FOLDER))

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        # Of merged layers the names differ; their adapters are loaded by themselves.
        if not has_adapters(self.model):
            super()._issue_warnings_after_load(load_result)

    def predict_answers(self, dataset: Dataset) -> tuple[list[list[str]], list[str]]:
        """
        Generate answers, as the arguments say.

        Args:
            dataset: a [`VideoTextDataset`]; videos that cannot be read and are skipped have no answers.

        Returns:
            `num_return_sequences` answers for each video, the best first; and the true answers.
        """
        model, found, true = self.model.eval(), [], []
        collate = self._collator(with_targets=False)
        loader: DataLoader = DataLoader(
            dataset,
            batch_size=self.args.eval_batch_size,
            collate_fn=lambda items: [item for item in items if item is not None],
            num_workers=self.args.dataloader_num_workers,
        )
        for items in loader:
            if not items:
                continue
            inputs = {name: tensor.to(self.args.device) for name, tensor in collate(items).items()}
            with self.compute_loss_context_manager():
                ids = model.generate(
                    **inputs,
                    **self.args.generation_settings(),
                    num_return_sequences=self.args.num_return_sequences,
                )
            texts = [text.strip() for text in self.processing_class.batch_decode(ids, skip_special_tokens=True)]
            count = self.args.num_return_sequences
            found += [texts[start : start + count] for start in range(0, len(texts), count)]
            true += [item["text_target"] for item in items]
        return found, true

    def _collator(self, with_targets: bool = True) -> VideoTextCollator:
        return VideoTextCollator(
            self.processing_class, self.args.max_length, self.args.max_target_length, with_targets
        )


def choose_trained(model: PreTrainedModel, arguments: AnswerTrainingArguments) -> Any:
    """
    Freeze what is not to be trained, and put adapters into the language model where they are asked for.

    By default that leaves what MA-LMM trains: the Q-Former and its queries, the frame positions, the projection, and
    the norm behind the vision tower.

    Returns:
        The language model as a `peft.PeftModel`, whose `merge_and_unload` makes it a plain one in place; None without
        adapters.

    Raises:
        ImportError: adapters are asked for and PEFT is not installed.
    """
    base: Any = model.base_model
    if base.vision_model is not None and not arguments.train_vision_tower:
        base.vision_model.requires_grad_(False)
    if not arguments.train_language_model:
        model.language_model.requires_grad_(False)
    if not arguments.lora_rank:
        return None
    if not is_peft_available():
        raise ImportError("lora_rank needs PEFT, which is not installed: pip install hf-video-models[lora].")
    from peft import LoraConfig, get_peft_model

    alpha = 2 * arguments.lora_rank if arguments.lora_alpha is None else arguments.lora_alpha
    config = LoraConfig(r=arguments.lora_rank, lora_alpha=cast(int, alpha), target_modules="all-linear")
    # The layers are replaced in place: the model goes on to call its language model as ever.
    return get_peft_model(model.language_model, config)


def has_adapters(model: Any) -> bool:
    """Whether the language model has the adapters of `choose_trained`, not merged yet."""
    return any(".lora_A." in name for name, _ in model.language_model.named_parameters())


@torch.no_grad()
def merged_state(model: Any, state: dict[str, torch.Tensor] | None = None) -> dict[str, torch.Tensor]:
    """
    Weights of the model without its adapters, which are left as they are: the same outputs, and names that
    `from_pretrained` knows. Merged layers are new tensors, on the CPU.

    Args:
        model: has adapters.
        state: its `state_dict()`, where it is known.
    """
    from peft.tuners.lora import LoraLayer

    state = dict(model.state_dict() if state is None else state)
    for layer, module in list(model.named_modules()):
        if not isinstance(module, LoraLayer):
            continue
        state[f"{layer}.weight"] = merged_weight(module, state.pop(f"{layer}.base_layer.weight"))
        if f"{layer}.base_layer.bias" in state:
            state[f"{layer}.bias"] = state.pop(f"{layer}.base_layer.bias")
        for name in [name for name in state if name.startswith(f"{layer}.lora_")]:
            del state[name]
    return state


def merged_weight(layer: Any, weight: torch.Tensor) -> torch.Tensor:
    """The `weight` of a layer with its adapters added, in the precision of the weight, on the CPU."""
    weight = weight.cpu()
    for adapter in layer.active_adapters:
        weight = weight + layer.get_delta_weight(adapter).to(weight)
    return weight


def save_adapters(model: Any, folder: Path) -> None:
    """Write the adapters of the language model as PEFT writes them: `PeftModel.from_pretrained` reads them."""
    from peft import get_peft_model_state_dict

    folder.mkdir(parents=True, exist_ok=True)
    [(name, config)] = model.language_model.peft_config.items()
    config.save_pretrained(str(folder))
    prefix = "base_model.model."
    state = get_peft_model_state_dict(model.language_model, adapter_name=name)
    save_file(
        {prefix + key.removeprefix(prefix): tensor.contiguous() for key, tensor in state.items()},
        folder / ADAPTER_WEIGHTS,
        {"format": "pt"},
    )


def load_adapters(model: Any, folder: Path) -> None:
    """Read what `save_adapters` wrote into the adapters of the language model; nothing where there is no folder."""
    if not folder.is_dir() or not has_adapters(model):
        return
    from peft import set_peft_model_state_dict

    prefix = "base_model.model."
    state = {key.removeprefix(prefix): tensor for key, tensor in load_file(folder / ADAPTER_WEIGHTS).items()}
    set_peft_model_state_dict(model.language_model, state)


@torch.no_grad()
def check_language_model(model: Any, checkpoint: Path) -> None:
    """
    See that a language model with adapters, merged, is that of a checkpoint, which does not have it unmerged.

    Raises:
        ValueError: if its first layers differ, by more than rounding: the run began with another model.
    """
    if not (checkpoint / ADAPTER_FOLDER).is_dir() or not has_adapters(model):
        return
    layer = next(name for name, _ in model.named_parameters() if ".lora_A." in name).split(".lora_A.")[0]
    wrapped = model.get_submodule(layer)
    expected = merged_weight(wrapped, wrapped.base_layer.weight)
    for file in checkpoint.glob("*.safetensors"):
        with safe_open(file, "pt") as weights:
            if f"{layer}.weight" in weights.keys():
                found = weights.get_tensor(f"{layer}.weight").to(expected)
                if found.shape != expected.shape or (found - expected).norm() > 1e-4 * expected.norm():
                    raise ValueError(
                        f"{checkpoint} has adapters of another language model ({layer} differs): resume the run with "
                        "the model that it began with."
                    )


def saved_lora_rank(checkpoint: Path) -> int:
    """The rank of the adapters in a checkpoint, 0 where there are none."""
    config = checkpoint / ADAPTER_FOLDER / ADAPTER_CONFIG
    if config.is_file():
        return json.loads(config.read_text(encoding="utf-8"))["r"]
    # Older checkpoints have them among the weights of the model.
    for file in sorted(checkpoint.glob("*.safetensors")):
        with safe_open(file, "pt") as weights:
            for name in weights.keys():
                if ".lora_A." in name:
                    return weights.get_slice(name).get_shape()[0]
    return 0


def exact_match(found: Sequence[Sequence[str]], true: Sequence[str], first_words: bool = False) -> dict[str, float]:
    """
    The share of videos whose answer is right, word for word.

    Args:
        found: answers for each video, the best first.
        true: the true answers.
        first_words: whether only the first word of each found answer is compared, as MA-LMM does for MSRVTT-QA and
            MSVD-QA.

    Returns:
        `top1`, of the best answers, and `any`, of videos with a right one among theirs.

    Raises:
        ValueError: there is no video, or their numbers differ.
    """
    if not true or len(found) != len(true):
        raise ValueError(f"Answers of {len(found)} videos cannot be compared with those of {len(true)}.")

    def is_right(answer: str, expected: str) -> bool:
        return (answer.split()[:1] == [expected]) if first_words else answer == expected

    hits = [[is_right(answer, expected) for answer in answers] for answers, expected in zip(found, true, strict=True)]
    return {"top1": sum(hit[0] for hit in hits) / len(hits), "any": sum(map(any, hits)) / len(hits)}
