"""Training a MemoryBankQFormer on questions and answers, or on captions, as MA-LMM was trained: the task `answers`."""

import json
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

from accelerate.utils import gather_object
from torch.utils.data import Dataset, Subset
from transformers import AutoModelForImageTextToText, AutoProcessor, PreTrainedModel

from hf_video.data import ClipAugmentation, ReadAheadLoader, TextTask, VideoDataset
from hf_video.data.video_texts import load_video_texts
from hf_video.io import replace_text
from hf_video.loading.configurations import check_trainable, load_config, loading
from hf_video.metrics import wilson_interval

from .adaptation import with_adapters
from .arguments import AnswerTrainingArguments
from .data import require_training, warn_of_repetitions
from .optimization import cosine_by_epoch
from .output_folder import ANSWERS_FILE
from .report import Measured, table
from .run import RunPlan
from .task import Task, TaskData
from .trainer import BaseTrainer
from .values import make

# So many wrong answers are in the report.
NUM_SHOWN = 50


class AnswerTrainer(BaseTrainer):
    """
    `transformers.Trainer` for a [`MemoryBankQFormerForConditionalGeneration`] and data sets of questions or captions.

    A plain `Trainer` with the `collate` of the [`TextTask`] trains the same model after [`choose_trained`] has frozen
    a part of it. A checkpoint of a model with adapters has their weights beside the frozen ones.
    """

    args: AnswerTrainingArguments

    def default_collator(self) -> Callable[..., dict[str, Any]]:
        lengths = {"max_length": self.args.max_length, "max_target_length": self.args.max_target_length}
        return TextTask(self.processing_class, prompt="", **lengths).collate

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        if self.lr_scheduler is None and self.args.lr_by_epoch:  # type: ignore[has-type]
            accumulation = self.args.gradient_accumulation_steps
            self.lr_scheduler = cosine_by_epoch(
                optimizer or self.optimizer,
                num_epochs=num_training_steps / self._steps_per_epoch,
                steps_per_epoch=self._steps_per_epoch,
                batches_per_step=accumulation,
                warmup_batches=self.args.get_warmup_steps(num_training_steps * accumulation),
                **cast(dict[str, float], self.args.lr_scheduler_kwargs or {}),
            )
            self._created_lr_scheduler = True
        return super().create_scheduler(num_training_steps, optimizer)

    def figures_of(self, predictions: Any, dataset: Any) -> dict[str, float]:
        if not self.args.predict_with_generate:
            return {}
        return exact_match(*self.answer_all(dataset), self.args.first_words)

    def answer_all(self, dataset: Any) -> tuple[list[list[str]], list[str]]:
        """`predict_answers` of all processes, each of which answers its share. All take part in a pass through sharded
        weights, and answer everything."""
        num = 1 if self.is_sharded else self.args.world_size
        # What follows each other is answered by one process, so that the answers come in the order of the videos.
        first, end = (len(dataset) * (self.args.process_index % num + more) // num for more in (0, 1))
        answers, true = self.predict_answers(Subset(dataset, range(first, end)))
        return (gather_object(answers), gather_object(true)) if num > 1 else (answers, true)

    def predict_answers(self, dataset: Dataset) -> tuple[list[list[str]], list[str]]:
        """`num_return_sequences` generated answers for each video of a [`VideoDataset`], the best first, and the true
        answers. Videos that are skipped because they cannot be read have none."""
        model, answers, true = self.model.eval(), [], []
        count = self.args.num_return_sequences
        options = self.args.generation_settings() | {"num_return_sequences": count}
        collate = partial(self.default_collator(), with_targets=False)
        loader = ReadAheadLoader(
            dataset,
            batch_size=self.args.eval_batch_size,
            collate_fn=lambda items: [item for item in items if item is not None],
            num_workers=self.args.dataloader_num_workers,
            reading_threads=self.args.reading_threads,
        )
        for items in loader:
            if not items:
                continue
            inputs = {name: tensor.to(self.args.device) for name, tensor in collate(items).items()}
            with self.compute_loss_context_manager():
                ids = model.generate(**inputs, **options)
            texts = [text.strip() for text in self.processing_class.batch_decode(ids, skip_special_tokens=True)]
            answers += [texts[start : start + count] for start in range(0, len(texts), count)]
            true += [item["text_target"] for item in items]
        return answers, true


def choose_trained(model: PreTrainedModel, arguments: AnswerTrainingArguments) -> Any:
    """Freezes what is not trained. By default what MA-LMM trains is trained: the Q-Former and its queries, the frame
    positions, the projection, and the norm after the vision tower. With `lora_rank` the language model gets adapters,
    and is returned as a `peft.PeftModel`, whose `merge_and_unload` makes it a plain model in place."""
    base: Any = model.base_model
    if base.vision_model is not None and not arguments.train_vision_tower:
        base.vision_model.requires_grad_(False)
    if not arguments.train_language_model:
        model.language_model.requires_grad_(False)
    if not arguments.lora_rank:
        return None
    # The layers are replaced in place: the model calls the same language model as before.
    return with_adapters(model.language_model, arguments.lora_rank, arguments.lora_alpha, target_modules="all-linear")


def exact_match(answers: Sequence[Sequence[str]], true: Sequence[str], first_words: bool = False) -> dict[str, float]:
    """The share of videos whose answer is right, word for word.

    Args:
        answers: generated answers of each video, the best first.
        true: the true answer of each video.
        first_words: whether only the first word of a generated answer is compared, as MA-LMM does for MSRVTT-QA and
            MSVD-QA.

    Returns:
        `top1`, the share of videos whose best answer is right, and `any`, the share with a right answer among all.

    Raises:
        ValueError: there is no video, or `answers` and `true` have different lengths.
    """
    if not true or len(answers) != len(true):
        raise ValueError(f"Answers of {len(answers)} videos cannot be compared with those of {len(true)}.")

    def is_right(answer: str, expected: str) -> bool:
        return (answer.split()[:1] == [expected]) if first_words else answer == expected

    hits = [[is_right(answer, expected) for answer in best] for best, expected in zip(answers, true, strict=True)]
    return {"top1": sum(hit[0] for hit in hits) / len(hits), "any": sum(map(any, hits)) / len(hits)}


class AnswersTask(Task):
    """Learns answers to questions about videos, or captions."""

    arguments, trainer = AnswerTrainingArguments, AnswerTrainer
    needs_model = "The model to fine-tune is missing: give --model."
    holds_out = False
    try_it = "hf-video watch VIDEO --model {model} --question TEXT"

    adapters: Any = None

    def load_data(self, run: RunPlan) -> TaskData:
        splits = load_video_texts(run.chosen.data, video_root=run.chosen.video_root)
        require_training(run.chosen.data, splits)
        warn_of_repetitions(splits)
        return TaskData(splits)

    def load_model(self, run: RunPlan, data: TaskData, arguments: Any) -> tuple[Any, Any]:
        name, length = run.chosen.model, run.chosen.memory_bank_length
        check_trainable(name, load_config(name))
        options = {} if length is None else {"memory_bank_length": length}
        with loading(name):
            model = AutoModelForImageTextToText.from_pretrained(name, dtype="float32", **options)
        if model.config.model_type != "memory_bank_qformer":
            raise ValueError(
                f"{name} is a {type(model).__name__}; a MemoryBankQFormer with a language model is expected."
            )
        model.generation_config.update(**arguments.generation_settings())
        with loading(name):
            processor = AutoProcessor.from_pretrained(name)
        for key in ("num_frames", "sampling_strategy"):
            if getattr(run.chosen, key) is not None:
                setattr(processor.video_processor, key, getattr(run.chosen, key))
        # Without memory the language model reads the queries of every frame, and prompts have a placeholder for each.
        num_frames = 1 if model.base_model.has_memory else processor.video_processor.num_frames
        processor.num_query_tokens = model.config.num_query_tokens * num_frames
        self.adapters = choose_trained(model, arguments)
        return model, processor

    def item_task(self, run: RunPlan, data: TaskData, processor: Any) -> TextTask:
        return TextTask(processor, prompt=run.chosen.prompt, augmentation=make(ClipAugmentation, run.chosen))

    def finish(self, run: RunPlan, trainer: Any) -> None:
        if self.adapters is not None:
            trainer.model.language_model = self.adapters.merge_and_unload()

    def measure(self, trainer: AnswerTrainer, dataset: VideoDataset) -> Measured:
        answers, true = trainer.answer_all(dataset)
        metrics: dict[str, Any] = {"num_videos": len(true)} | exact_match(answers, true, trainer.args.first_words)
        if trainer.is_world_process_zero():
            videos = [{"answers": found, "expected": expected} for found, expected in zip(answers, true, strict=True)]
            content = {"split": str(dataset.rows.split), **metrics, "videos": videos}
            text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
            replace_text(Path(str(trainer.args.output_dir), ANSWERS_FILE), text)
        metrics["chance"] = Counter(true).most_common(1)[0][1] / len(true)
        metrics["interval"] = [*wilson_interval(metrics["top1"], len(true))]
        wrong = [(expected, found[0]) for found, expected in zip(answers, true, strict=True) if found[0] != expected]
        return Measured(metrics, tables=table(("expected", "answer"), wrong[:NUM_SHOWN]))
