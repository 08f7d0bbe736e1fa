"""`hf-video train-answers`: from videos with questions or captions to a model that answers."""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_video.files import replace_text

from .model_loading import choose_device, locate_model
from .output_folder import (
    ANSWERS_FILE,
    LOCK_FILE,
    RunLock,
    clear_leftovers,
    is_leftover,
    last_checkpoint,
    require_fresh,
    require_ours,
    saying_what_was_kept,
)
from .processes import check_processes
from .training_data import warn_of_repetitions

if TYPE_CHECKING:
    from hf_video.training.answering import AnswerTrainer

DESCRIPTION = """\
Fine-tune a MemoryBankQFormer with a language model on questions and answers, or on captions.

DATA is a file .csv, .json or .jsonl of rows with `video` and `answer` (or `caption`) and, where they apply,
`question`, `start` and `end` in seconds; or a folder with such files named train, validation and test; or a recipe, a
YAML file of settings, of which recipes/malmm has those of MA-LMM's data sets. The vision tower and the language model
stay as they are unless train_vision_tower, train_language_model or lora_rank says otherwise.
"""
EPILOG = """\
Any setting can be given by a word `name=value`: the fields of AnswerTrainingArguments (prompt, lora_rank, num_beams
...), those of transformers.TrainingArguments, the cropping and flipping of ClipAugmentation, and those of the recipes.

example: hf-video train-answers recipes/malmm/msvd_qa.yaml data=msvd model=instructblip_with_memory output_dir=msvd_qa
"""

# Settings that are no fields of the dataclasses, with their types.
OPTIONS: dict[str, type] = {
    "data": str,
    "video_root": str,
    "model": str,
    "output_dir": str,
    "device": str,
    "num_frames": int,
    "memory_bank_length": int,
    "sampling_strategy": str,
    "first_words": bool,
}
FIELDS = {
    "epochs": "num_train_epochs",
    "batch_size": "per_device_train_batch_size",
    "num_workers": "dataloader_num_workers",
}
_WAYS_OUT = "Choose another folder."
RESERVED_FIELDS = ("resume_from_checkpoint", "use_cpu", *FIELDS.values())


def add_parser(commands: argparse._SubParsersAction) -> argparse.ArgumentParser:
    """Declares the command."""
    parser = commands.add_parser(
        "train-answers",
        help="train a model that answers about videos",
        usage="hf-video train-answers DATA|RECIPE.yaml [--resume] model=DIR output_dir=DIR [name=value ...]",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(takes_words=True, takes_several_processes=True)
    parser.add_argument("data", metavar="DATA", help="file or folder of rows, or a recipe")
    parser.add_argument(
        "--resume", action="store_true", help="continue an interrupted run: the same command with --resume"
    )
    return parser


def run(args: argparse.Namespace) -> int:
    """Trains, and says what came of it."""
    trainer, metrics = train_answers(args)
    if not trainer.is_world_process_zero():
        return 0
    if metrics:
        print(f"right answers {metrics['top1']:.1%} of {metrics['num_videos']} {metrics['split']} videos")
    print(f"model    {trainer.args.output_dir}")
    print(f"try it   hf-video watch VIDEO --model {trainer.args.output_dir} --question TEXT")
    return 0


def train_answers(args: argparse.Namespace) -> tuple[AnswerTrainer, dict[str, Any]]:
    """Checks everything that can be wrong, trains, and writes model and answers into the output folder.

    Args:
        args: parsed options of the command.

    Returns:
        The trainer, with the best model, and how many answers of the test split, or the validation split, are right;
        empty without such a split.

    Raises:
        ValueError, OSError: the data, the model, the output folder or a setting is wrong; nothing was written.
        KeyboardInterrupt: on Ctrl-C, with a message that says which checkpoint is kept.
    """
    with RunLock() as lock:
        return _train_answers(args, lock)


def _train_answers(args: argparse.Namespace, lock: RunLock) -> tuple[AnswerTrainer, dict[str, Any]]:
    settings = read_settings(args)
    output_dir = Path(settings["output_dir"]).expanduser().absolute()
    if (output_dir / LOCK_FILE).exists():
        lock.take(output_dir)
    checkpoint = last_checkpoint(output_dir) if args.resume else None
    if checkpoint is not None:
        from hf_video.training.checkpoints import require_resumable

        lock.take(output_dir)
        require_resumable(checkpoint)
        require_ours(output_dir)
    else:
        require_fresh(output_dir, is_leftover, ways_out=_WAYS_OUT)

    from transformers import set_seed

    from hf_video.data import ClipAugmentation
    from hf_video.data.video_texts import VideoTextDataset, load_video_texts
    from hf_video.training.answering import AnswerTrainer, AnswerTrainingArguments, choose_trained, saved_lora_rank
    from hf_video.training.arguments import parse_arguments
    from hf_video.training.bounds import check_optimization

    _check_frames(settings)
    device = choose_device(settings.get("device", "auto"))
    data = load_video_texts(settings["data"], video_root=settings.get("video_root"))
    if "train" not in data:
        raise ValueError(f"{settings['data']} has no training split, only {', '.join(data)}. Add train.json.")
    warn_of_repetitions(data)
    has_validation = {} if "validation" in data else {"eval_strategy": "no", "load_best_model_at_end": False}
    arguments, augmentation = parse_arguments(
        settings["words"],
        [AnswerTrainingArguments, ClipAugmentation],
        **{"output_dir": str(output_dir), "use_cpu": device.type == "cpu"} | has_validation,
    )
    check_processes(arguments.world_size)
    if checkpoint is not None and (rank := saved_lora_rank(checkpoint)) != arguments.lora_rank:
        raise ValueError(
            f"The run in {output_dir} has lora_rank={rank}, got {arguments.lora_rank}: resume it with that."
        )
    set_seed(arguments.seed)
    model, processor = load_answering_model(settings, arguments)
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
    if arguments.process_index == 0:
        output_dir.mkdir(parents=True, exist_ok=True)
        lock.take(output_dir)
        if checkpoint is None:
            require_fresh(output_dir, is_leftover, ways_out=_WAYS_OUT)
            clear_leftovers(output_dir)
    with saying_what_was_kept(output_dir):
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
        if adapters is not None:
            model.language_model = adapters.merge_and_unload()
        trainer.save_model()
        return trainer, _evaluate(trainer, splits, settings.get("first_words", False))


def read_settings(args: argparse.Namespace) -> dict[str, Any]:
    """The options of a recipe and of the words, which go before it; the other words in `words`.

    Raises:
        ValueError, OSError: a setting is unknown, of a wrong type, or missing.
    """
    from hf_video.training.arguments import check_name
    from hf_video.training.recipes import is_recipe, read_recipe

    words = list(args.words)
    for word in words:
        check_name(word.partition("=")[0], known_settings(), "a setting")
    if is_recipe(args.data):
        words = [*read_recipe(args.data, known_settings()), *words]
    else:
        words.append(f"data={args.data}")
    given = {name: value for name, _, value in (word.partition("=") for word in words)}
    settings: dict[str, Any] = {name: _read(name, given.pop(name)) for name in OPTIONS if name in given}
    for name, what in (("data", "videos"), ("model", "model to fine-tune"), ("output_dir", "output folder")):
        if name not in settings:
            raise ValueError(f"The {what} is missing: give {name}=...")
    return settings | {"words": [f"{FIELDS.get(name, name)}={value}" for name, value in given.items()]}


def known_settings() -> list[str]:
    """Names that a recipe or a word may set."""
    from hf_video.data import ClipAugmentation
    from hf_video.training.answering import AnswerTrainingArguments

    kinds = (AnswerTrainingArguments, ClipAugmentation)
    fields = {field.name for kind in kinds for field in dataclasses.fields(kind) if field.init}
    return sorted({*OPTIONS, *FIELDS, *fields} - {*RESERVED_FIELDS, "num_augmentations"})


def load_answering_model(settings: dict[str, Any], arguments: Any) -> tuple[Any, Any]:
    """Model and processor with the memory, the frames and the way of generating that the settings say.

    Raises:
        ValueError, OSError: there is no such model, or it is of another kind.
    """
    from transformers import AutoModelForImageTextToText, AutoProcessor

    name = locate_model(settings["model"])
    options = {key: settings[key] for key in ("memory_bank_length",) if key in settings}
    model = AutoModelForImageTextToText.from_pretrained(name, dtype="float32", **options)
    if model.config.model_type != "memory_bank_qformer":
        raise ValueError(f"{name} is a {type(model).__name__}; a MemoryBankQFormer with a language model is expected.")
    model.generation_config.update(**arguments.generation_settings())
    processor = AutoProcessor.from_pretrained(name)
    for key in ("num_frames", "sampling_strategy"):
        if key in settings:
            setattr(processor.video_processor, key, settings[key])
    # Without memory the language model reads every frame's queries, and the processor holds their places.
    num_frames = 1 if model.base_model.has_memory else processor.video_processor.num_frames
    processor.num_query_tokens = model.config.num_query_tokens * num_frames
    return model, processor


def _check_frames(settings: dict[str, Any]) -> None:
    from hf_video.processing.clip_sampling import SAMPLING_STRATEGIES

    for name, least in (("num_frames", 1), ("memory_bank_length", 0)):
        if settings.get(name, least) < least:
            raise ValueError(f"{name} is {settings[name]}; a whole number of at least {least} is expected.")
    if (strategy := settings.get("sampling_strategy")) not in (None, *SAMPLING_STRATEGIES):
        raise ValueError(f"sampling_strategy is {strategy!r}; {', '.join(SAMPLING_STRATEGIES)} are expected.")


def _read(name: str, word: str) -> Any:
    kind = OPTIONS[name]
    read = {"true": True, "false": False}.__getitem__ if kind is bool else kind
    try:
        return read(word)
    except (KeyError, ValueError) as error:
        raise ValueError(f"{name}={word} is not of the type {kind.__name__}.") from error


def _evaluate(trainer: AnswerTrainer, splits: dict[str, Any], first_words: bool) -> dict[str, Any]:
    from hf_video.training.answering import exact_match

    split = next((name for name in ("test", "validation") if name in splits), None)
    if split is None or not trainer.is_world_process_zero():
        return {}
    found, true = trainer.predict_answers(splits[split])
    metrics = {"split": split, "num_videos": len(true)} | exact_match(found, true, first_words)
    rows = [{"answers": answers, "expected": expected} for answers, expected in zip(found, true, strict=True)]
    text = json.dumps({**metrics, "videos": rows}, indent=1, ensure_ascii=False) + "\n"
    replace_text(Path(trainer.args.output_dir, ANSWERS_FILE), text)
    return metrics
