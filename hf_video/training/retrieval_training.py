"""Fine-tunes a video-text model on videos with captions: `hf-video train --task retrieval` for programs."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import AutoModel, AutoProcessor, TrainerCallback, set_seed

from hf_video.data import ClipAugmentation, TextTask, VideoDataset
from hf_video.data.holding_out import VIDEO, hold_out
from hf_video.data.video_texts import load_captions
from hf_video.io import replace_text
from hf_video.loading.configurations import check_trainable, load_config, loading
from hf_video.output_folders import RunLock
from hf_video.processes import failing_together, is_first_process

from .arguments import RetrievalTrainingArguments, check_optimization
from .retrieval import RetrievalTrainer
from .run import plan_run
from .settings import TrainRetrievalSettings
from .values import make


def train_retrieval(
    settings: TrainRetrievalSettings, callbacks: Sequence[TrainerCallback] = ()
) -> tuple[RetrievalTrainer, dict[str, Any]]:
    """Fine-tunes a video-text model on videos with captions, as `hf-video train --task retrieval`.

    Settings and data are checked before anything is written. Model, checkpoints and `report/retrieval.json` are in the
    output folder.

    Args:
        settings: the data, see `load_captions`, the output folder, the model, and what differs from the defaults.
        callbacks: as of `transformers.Trainer`.

    Returns:
        The trainer, with the best model, and the metrics of the test split, or else of the validation split, which is
        held out from training, whole videos of it, if the data have none.

    Raises:
        ValueError, OSError: a setting or a file cannot be used, or the output folder is not empty.
    """
    with RunLock() as lock:
        return _train_retrieval(settings, lock, callbacks)


def _train_retrieval(
    settings: TrainRetrievalSettings, lock: RunLock, callbacks: Sequence[TrainerCallback]
) -> tuple[RetrievalTrainer, dict[str, Any]]:
    start = plan_run(settings, lock)
    chosen = start.chosen
    with failing_together():
        if chosen.model is None:
            raise ValueError("The model to fine-tune is missing: give --model.")
        data = load_captions(chosen.data, video_root=chosen.video_root)
        start.check_texts(data)
        chosen.per_device_eval_batch_size = chosen.per_device_eval_batch_size or chosen.per_device_train_batch_size
        if "validation" not in data:
            data["train"], data["validation"] = hold_out(
                data["train"], chosen.validation_fraction, chosen.seed, split_by=VIDEO
            )
            if is_first_process():
                print(data["validation"].info.description, flush=True)
        arguments = make(RetrievalTrainingArguments, chosen, **start.of_this_machine())
        augmentation = make(ClipAugmentation, chosen)
        set_seed(arguments.seed)
        model, processor = load_trainable(chosen)
        check_optimization(arguments, model)
        task = TextTask(processor, max_length=arguments.max_length, augmentation=augmentation)
        splits = {
            name: VideoDataset(rows, task, training=name == "train", seed=arguments.seed)
            for name, rows in data.items()
        }
        start.begin_writing()
    trainer = RetrievalTrainer(
        model=model,
        args=arguments,
        train_dataset=splits["train"],
        eval_dataset=splits["validation"],
        processing_class=processor,
        callbacks=[*callbacks],
    )
    with start.train(trainer):
        trainer.save_model()
        return trainer, _evaluate(trainer, splits)


def load_trainable(chosen: Any) -> tuple[Any, Any]:
    """The model to train and its processor, with the losses and frames that the settings name."""
    name = chosen.model
    config = load_config(name)
    check_trainable(name, config)
    if config.model_type != "video_text_dual_encoder":
        raise ValueError(
            f"{name} is a {config.model_type}; --task retrieval trains a model of the type video_text_dual_encoder."
        )
    weights = {loss: getattr(chosen, f"{loss}_weight") for loss in ("vtc", "vtm", "mlm")}
    if weights["mlm"] and not config.use_mlm_head:
        raise ValueError(
            f"mlm_weight={weights['mlm']} needs a head of masked words, and {name} has none: leave it out."
        )
    changed = {"loss_weights": weights, "original_gradient_scale": chosen.original_gradient_scale}
    with loading(name):
        model = AutoModel.from_pretrained(name, dtype="float32", **changed)
        processor = AutoProcessor.from_pretrained(name)
    for key in ("num_frames", "sampling_strategy"):
        if getattr(chosen, key) is not None:
            setattr(processor.video_processor, key, getattr(chosen, key))
    return model, processor


def _evaluate(trainer: RetrievalTrainer, splits: dict[str, VideoDataset]) -> dict[str, Any]:
    split = "test" if "test" in splits else "validation"
    # Every process takes part.
    measured = trainer.evaluate(splits[split], metric_key_prefix=split)
    metrics = {name.removeprefix(f"{split}_"): value for name, value in measured.items()}
    metrics = {"split": split, "num_captions": len(splits[split]), **metrics}
    if trainer.is_world_process_zero():
        folder = Path(trainer.args.output_dir, "report")
        folder.mkdir(exist_ok=True)
        replace_text(folder / "retrieval.json", json.dumps(metrics, indent=2) + "\n")
    return metrics
