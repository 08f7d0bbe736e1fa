"""A training run that kills itself: `killed_run.py DATA FOLDER NUM_WORKERS step|save|never STEP`.

It goes on from the last complete checkpoint in FOLDER. "step" kills it behind a step, "save" while a checkpoint is
being written. Augmentation, mixing, drop path and an average of the weights are on.
"""

import os
import signal
import sys
from pathlib import Path

from transformers import TrainerCallback

from hf_video.data import ClipAugmentation, ClipDataset, ClipMixing, MixingCollator, load_video_dataset
from hf_video.processing import VideoClipProcessor
from hf_video.training import VideoTrainer
from hf_video.training.output_folder import last_checkpoint
from tests.training.tiny import make_arguments, make_model

NUM_CLASSES = 8


def kill():
    os.kill(os.getpid(), signal.SIGKILL)


class KillBehindStep(TrainerCallback):
    def __init__(self, step):
        self.step = step

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            kill()


class KilledTrainer(VideoTrainer):
    killed_at = 0

    def _save_optimizer_and_scheduler(self, output_dir):
        super()._save_optimizer_and_scheduler(output_dir)
        if self.state.global_step == self.killed_at:
            kill()


def main(data, folder, num_workers, kind, step):
    splits = load_video_dataset(data)
    processor = VideoClipProcessor(num_frames=2, sampling_strategy="uniform", size=20, crop_size=16)
    augmentation = ClipAugmentation(
        crop_min_area=0.3, horizontal_flip=True, rand_augment_num_ops=2, erasing_prob=0.5, num_augmentations=2
    )
    trainer = KilledTrainer(
        model=make_model(num_labels=NUM_CLASSES, num_hidden_layers=2, drop_path_rate=0.3),
        args=make_arguments(
            folder,
            num_train_epochs=3,
            eval_strategy="steps",
            eval_steps=3,
            save_strategy="steps",
            save_steps=3,
            dataloader_num_workers=num_workers,
            load_best_model_at_end=False,
            ema_decay=0.9,
            layer_decay=0.8,
        ),
        train_dataset=ClipDataset(splits["train"], processor, training=True, augmentation=augmentation),
        eval_dataset=ClipDataset(splits["test"], processor, training=False),
        data_collator=MixingCollator(ClipMixing(mixup_alpha=0.8, cutmix_alpha=1.0), NUM_CLASSES),
        processing_class=processor,
    )
    if kind == "step":
        trainer.add_callback(KillBehindStep(step))
    if kind == "save":
        trainer.killed_at = step
    try:
        checkpoint = str(last_checkpoint(Path(folder)))
    except ValueError:
        checkpoint = None
    trainer.train(resume_from_checkpoint=checkpoint)
    trainer.save_model()
    print("resumed from", checkpoint and Path(checkpoint).name)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4], int(sys.argv[5]))
