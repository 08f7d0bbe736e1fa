"""`hf-video train-answers`: trains a model that answers questions about videos, or captions them."""

from __future__ import annotations

import argparse
import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_video.io import replace_text
from hf_video.loading.models import choose_device

from .command_line import add_flags
from .output_folder import ANSWERS_FILE, RunLock, saying_what_was_kept, what_was_kept
from .processes import failing_together
from .run_settings import make
from .run_start import add_start_options, start_run
from .stopping import ended_before_first_step
from .train import RECIPES
from .training_data import warn_of_repetitions

if TYPE_CHECKING:
    from hf_video.training.answering import AnswerTrainer

DESCRIPTION = """\
Fine-tune a MemoryBankQFormer with a language model on questions and answers, or on captions.

DATA is one of these:
  a file .csv, .json or .jsonl of rows with `video` and `answer` (or `caption`); optional are `question`, and `start`
  and `end` in seconds
  a folder with such files named train, validation and test

The vision tower and the language model are frozen without --train-vision-tower, --train-language-model or --lora-rank.
"""
EPILOG = f"""\
{RECIPES}
example: hf-video train-answers msvd --model instructblip_with_memory --output-dir msvd_qa --recipe malmm/msvd_qa
"""


def add_parser(commands: argparse._SubParsersAction) -> argparse.ArgumentParser:
    """Declares the command."""
    parser = commands.add_parser(
        "train-answers",
        help="train a model that answers about videos",
        usage="hf-video train-answers DATA --model MODEL --output-dir DIR [--recipe NAME_OR_FILE] [options]",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(takes_several_processes=True)
    return parser


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declares its options."""
    from .command_settings import TRAIN_ANSWERS

    add_start_options(parser)
    add_flags(parser, TRAIN_ANSWERS, positional="data")


def run(args: argparse.Namespace) -> int:
    """Trains, and prints the share of right answers and where the model is."""
    trainer, metrics = train_answers(args)
    if not trainer.is_world_process_zero():
        return 0
    if metrics:
        print(f"right answers {metrics['top1']:.1%} of {metrics['num_videos']} {metrics['split']} videos")
    print(f"model    {trainer.args.output_dir}")
    print(f"try it   hf-video watch VIDEO --model {trainer.args.output_dir} --question TEXT")
    return 0


def train_answers(args: argparse.Namespace) -> tuple[AnswerTrainer, dict[str, Any]]:
    """Checks settings and data before anything is written, trains, and writes model and answers into the output
    folder. Gives the trainer, with the best model, and the share of right answers on the test split, or else on the
    validation split; empty if there is neither."""
    with RunLock() as lock:
        return _train_answers(args, lock)


def _train_answers(args: argparse.Namespace, lock: RunLock) -> tuple[AnswerTrainer, dict[str, Any]]:
    # Runs of earlier versions have no file of settings. They are resumed with the given ones.
    start = start_run(args, lock, needs_settings=False)
    values, checkpoint = start.values, start.checkpoint

    from transformers import set_seed

    from hf_video.data import ClipAugmentation
    from hf_video.data.video_texts import VideoTextDataset, load_video_texts
    from hf_video.training.answering import (
        AnswerTrainer,
        AnswerTrainingArguments,
        choose_trained,
        saved_lora_rank,
    )
    from hf_video.training.arguments import check_optimization

    with failing_together():
        device = choose_device(values["device"])
        data = load_video_texts(start.source, video_root=values["video_root"])
        if "train" not in data:
            raise ValueError(f"{start.source} has no training split, only {', '.join(data)}. Add train.json.")
        warn_of_repetitions(data)
        start.check_data(data)
        here: dict[str, Any] = {"output_dir": str(start.output_dir), "use_cpu": device.type == "cpu"}
        if "validation" not in data:
            without = {"eval_strategy": "no", "load_best_model_at_end": False}
            # A recipe is for any data; what a word asks for is an error of Transformers.
            here |= {name: value for name, value in without.items() if name not in start.given.flags}
        arguments = make(AnswerTrainingArguments, values | here)
        augmentation = make(ClipAugmentation, values)
        if checkpoint is not None and (rank := saved_lora_rank(checkpoint)) != arguments.lora_rank:
            raise ValueError(
                f"The run in {start.output_dir} has lora_rank={rank}, got {arguments.lora_rank}: resume it with that."
            )
        set_seed(arguments.seed)
        model, processor = load_answering_model(values, arguments)
        splits = {
            name: VideoTextDataset(
                rows,
                processor,
                arguments.prompt,
                training=name == "train",
                seed=arguments.seed,
                augmentation=augmentation if name == "train" else None,
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
    )
    with failing_together():
        start.begin_writing()
    kept = start.output_dir, start.way_on
    with saying_what_was_kept(*kept):
        with ended_before_first_step(trainer, partial(what_was_kept, *kept)):
            trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
        if adapters is not None:
            model.language_model = adapters.merge_and_unload()
        trainer.save_model()
        return trainer, _evaluate(trainer, splits, values["first_words"])


def load_answering_model(values: dict[str, Any], arguments: Any) -> tuple[Any, Any]:
    """The model and its processor, with the memory, frames and options of generation that the settings name."""
    from transformers import AutoModelForImageTextToText, AutoProcessor

    from hf_video.loading.configurations import check_trainable, load_config, loading

    name, length = values["model"], values["memory_bank_length"]
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
        if values[key] is not None:
            setattr(processor.video_processor, key, values[key])
    # Without memory the language model reads the queries of every frame, and prompts have a placeholder for each.
    num_frames = 1 if model.base_model.has_memory else processor.video_processor.num_frames
    processor.num_query_tokens = model.config.num_query_tokens * num_frames
    return model, processor


def _evaluate(trainer: AnswerTrainer, splits: dict[str, Any], first_words: bool) -> dict[str, Any]:
    from hf_video.training.answering import exact_match

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
