"""Pre-trains an encoder on videos without labels: `hf-video pretrain` for programs."""

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from accelerate.utils import gather_object
from transformers import AutoModel, PreTrainedModel, TrainerCallback, set_seed

from hf_video.data import ClipAugmentation, ClipTask, VideoDataset, load_unlabelled_videos
from hf_video.loading.configurations import loading
from hf_video.loading.models import locate_model
from hf_video.models.videomamba.pretraining_videomamba import VideoMambaTeacher
from hf_video.output_folders import RunLock
from hf_video.processes import failing_together

from .arguments import PreTrainingArguments, check_optimization
from .model_loading import load_model, masked_kind
from .pretraining import PreTrainer, check_masks, write_pretraining_report
from .run import RunPlan, plan_run
from .settings import MaskedScratchSettings, PretrainSettings
from .training_data import readable_videos
from .values import make


def pretrain(
    settings: PretrainSettings, callbacks: Sequence[TrainerCallback] = ()
) -> tuple[PreTrainer, dict[str, Any]]:
    """Pre-trains an encoder on videos without labels, as `hf-video pretrain`.

    Settings and data are checked before anything is written. Model, checkpoints and report are in the output folder.

    Args:
        settings: the data, the output folder, and what differs from the defaults.
        callbacks: as of `transformers.Trainer`.

    Returns:
        The trainer and the contents of `losses.json`.

    Raises:
        ValueError, OSError: a setting or a video cannot be used, or the output folder is not empty.
    """
    with RunLock() as lock:
        return _pretrain(settings, lock, callbacks)


def _pretrain(
    settings: PretrainSettings, lock: RunLock, callbacks: Sequence[TrainerCallback]
) -> tuple[PreTrainer, dict[str, Any]]:
    start = plan_run(settings, lock)
    chosen = start.chosen
    with failing_together():
        start.check_not_from_scratch(MaskedScratchSettings)
        arguments = make(PreTrainingArguments, chosen, **start.of_this_machine())
        augmentation = make(ClipAugmentation, chosen)
        set_seed(arguments.seed)
        data = load_unlabelled_videos(chosen.data, video_root=chosen.video_root)
        start.check_data(data)
        model, processor = _load(start)
        check_masks(model, arguments)
        check_optimization(arguments, model)
    data, broken = readable_videos(data, chosen.on_error)
    with failing_together():
        start.begin_writing()
    trainer = PreTrainer(
        model=model,
        args=arguments,
        train_dataset=VideoDataset(
            data["train"],
            ClipTask(processor, augmentation=augmentation),
            training=True,
            seed=arguments.seed,
            on_error=chosen.on_error,
        ),
        processing_class=processor,
        callbacks=[*callbacks],
    )
    with start.train(trainer):
        trainer.save_model()
        return trainer, _report(trainer, chosen, broken)


def _load(start: RunPlan) -> tuple[PreTrainedModel, Any]:
    """The model with its teacher, and its processor."""

    chosen = start.chosen
    teacher = _load_teacher(chosen.teacher)
    if chosen.model is None and chosen.family == "videomamba":
        of_decoder = [each.name for each in fields(MaskedScratchSettings) if each.name.startswith("decoder_")]
        given = start.named.values
        for name in ("num_attention_heads", "intermediate_size", *of_decoder):
            if name in given:
                raise ValueError(f"{name} is of a VideoViT, and a VideoMamba has none: leave it out.")
    channels = None if teacher is None else VideoMambaTeacher(teacher).num_features
    # Training takes one view of a video.
    chosen.num_clips = chosen.num_crops = 1
    model, processor = load_model(chosen, masked_kind(chosen, channels), start.checkpoint)
    network: Any = model
    if teacher is not None:
        if not hasattr(network, "set_teacher"):
            raise ValueError("A VideoViT learns from pixels, without a teacher: leave out --teacher.")
        network.set_teacher(teacher)
    return model, processor


def _load_teacher(name: str | None) -> PreTrainedModel | None:
    if name is None:
        return None

    name = locate_model(name, "--teacher")
    # The masks are drawn by the attention, which only the eager implementation returns.
    with loading(name):
        return AutoModel.from_pretrained(name, attn_implementation="eager", dtype="float32")


def _report(trainer: PreTrainer, chosen: PretrainSettings, broken: list[str]) -> dict[str, Any]:

    broken = sorted({*broken, *gather_object(trainer.train_dataset.broken_videos())})
    if not trainer.is_world_process_zero():
        return {}
    processor = trainer.processing_class
    return write_pretraining_report(
        Path(trainer.args.output_dir, "report"),
        trainer,
        details={
            "model": chosen.model or f"{type(trainer.model).__name__} from scratch",
            "clip": f"{processor.num_frames} frames, {processor.sampling_strategy}",
            "epochs": trainer.args.num_train_epochs,
            "seed": trainer.args.seed,
            **({"broken_videos": broken} if broken else {}),
        },
    )
