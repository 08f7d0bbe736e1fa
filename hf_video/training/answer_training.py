"""Trains a model that answers about videos: `hf-video train-answers` for programs."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import AutoModelForImageTextToText, AutoProcessor, TrainerCallback, set_seed

from hf_video.data import ClipAugmentation, TextTask, VideoDataset
from hf_video.data.video_texts import load_video_texts
from hf_video.io import replace_text
from hf_video.loading.configurations import check_trainable, load_config, loading
from hf_video.loading.models import choose_device
from hf_video.output_folders import RunLock
from hf_video.processes import failing_together

from .answering import AnswerTrainer, AnswerTrainingArguments, choose_trained, exact_match
from .arguments import check_optimization
from .output_folder import ANSWERS_FILE, saying_what_was_kept
from .run import plan_run
from .settings import TrainAnswersSettings
from .values import make


def train_answers(
    settings: TrainAnswersSettings, callbacks: Sequence[TrainerCallback] = ()
) -> tuple[AnswerTrainer, dict[str, Any]]:
    """Trains a model that answers questions about videos, or captions them, as `hf-video train-answers`.

    Settings and data are checked before anything is written. Model, checkpoints and answers are in the output folder.

    Args:
        settings: the data, the output folder, the model, and what differs from the defaults.
        callbacks: as of `transformers.Trainer`.

    Returns:
        The trainer, with the best model, and the share of right answers on the test split, or else on the validation
        split; empty if there is neither.

    Raises:
        ValueError, OSError: a setting or a file cannot be used, or the output folder is not empty.
    """
    with RunLock() as lock:
        return _train_answers(settings, lock, callbacks)


def _train_answers(
    settings: TrainAnswersSettings, lock: RunLock, callbacks: Sequence[TrainerCallback]
) -> tuple[AnswerTrainer, dict[str, Any]]:
    start = plan_run(settings, lock)
    chosen, checkpoint = start.chosen, start.checkpoint
    with failing_together():
        if chosen.model is None:
            raise ValueError("The model to fine-tune is missing: give --model.")
        device = choose_device(chosen.device)
        data = load_video_texts(chosen.data, video_root=chosen.video_root)
        start.check_texts(data)
        here: dict[str, Any] = {"output_dir": str(start.output_dir), "use_cpu": device.type == "cpu"}
        arguments = make(AnswerTrainingArguments, chosen, **here, **start.without_validation(data))
        augmentation = make(ClipAugmentation, chosen)
        set_seed(arguments.seed)
        model, processor = load_answering_model(chosen, arguments)
        splits = {
            name: VideoDataset(
                rows,
                TextTask(processor, prompt=arguments.prompt, augmentation=augmentation),
                training=name == "train",
                seed=arguments.seed,
            )
            for name, rows in data.items()
        }
        adapters = choose_trained(model, arguments)
        check_optimization(arguments, model)
    trainer = AnswerTrainer(
        model=model,
        args=arguments,
        train_dataset=splits["train"],
        eval_dataset=splits.get("validation"),
        processing_class=processor,
        callbacks=[*callbacks],
    )
    with failing_together():
        start.begin_writing()
    with saying_what_was_kept(start.output_dir, start.resume_hint):
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
        if adapters is not None:
            model.language_model = adapters.merge_and_unload()
        trainer.save_model()
        return trainer, _evaluate(trainer, splits, chosen.first_words)


def load_answering_model(chosen: TrainAnswersSettings, arguments: Any) -> tuple[Any, Any]:
    """The model and its processor, with the memory, frames and options of generation that the settings name."""

    name, length = chosen.model, chosen.memory_bank_length
    check_trainable(name, load_config(name))
    options = {} if length is None else {"memory_bank_length": length}
    with loading(name):
        model = AutoModelForImageTextToText.from_pretrained(name, dtype="float32", **options)
    if model.config.model_type != "memory_bank_qformer":
        raise ValueError(f"{name} is a {type(model).__name__}; a MemoryBankQFormer with a language model is expected.")
    model.generation_config.update(**arguments.generation_settings())
    with loading(name):
        processor = AutoProcessor.from_pretrained(name)
    for key in ("num_frames", "sampling_strategy"):
        if getattr(chosen, key) is not None:
            setattr(processor.video_processor, key, getattr(chosen, key))
    # Without memory the language model reads the queries of every frame, and prompts have a placeholder for each.
    num_frames = 1 if model.base_model.has_memory else processor.video_processor.num_frames
    processor.num_query_tokens = model.config.num_query_tokens * num_frames
    return model, processor


def _evaluate(trainer: AnswerTrainer, splits: dict[str, Any], first_words: bool) -> dict[str, Any]:

    split = next((name for name in ("test", "validation") if name in splits), None)
    # Every process takes part in a pass through sharded weights.
    if split is None or not (trainer.is_sharded or trainer.is_world_process_zero()):
        return {}
    found, true = trainer.predict_answers(splits[split])
    if not trainer.is_world_process_zero():
        return {}
    metrics = {"split": split, "num_videos": len(true)} | exact_match(found, true, first_words)
    rows = [{"answers": answers, "expected": expected} for answers, expected in zip(found, true, strict=True)]
    text = json.dumps({**metrics, "videos": rows}, indent=1, ensure_ascii=False) + "\n"
    replace_text(Path(trainer.args.output_dir, ANSWERS_FILE), text)
    return metrics
