"""Clips that threads read ahead train the same model."""

import threading

import torch

from hf_video.data import ClipAugmentation, ClipTask, VideoDataset, load_video_dataset
from hf_video.demo import write_moving_digits
from hf_video.processing import VideoClipProcessor
from hf_video.training import VideoTrainer
from tests.testing.trainers import RandomClips, make_arguments, make_model


class WatchedClips(VideoDataset):
    """Clips that keep the kinds of threads by which they were read."""

    def __getitem__(self, index):
        self.threads = {*getattr(self, "threads", ()), threading.current_thread().name.split("_")[0]}
        return super().__getitem__(index)


def test_clips_read_in_threads_train_the_same_weights(tmp_path):
    digits = write_moving_digits(tmp_path / "digits", train_per_class=1, test_per_class=1, num_frames=8, image_size=32)
    rows = load_video_dataset(digits)
    processor = VideoClipProcessor(num_frames=2, sampling_strategy="uniform", size=16, crop_size=16)

    def train(reading_threads):
        augmentation = ClipAugmentation(color_jitter=0.4, erasing_prob=0.5)
        training = WatchedClips(rows["train"], ClipTask(processor, augmentation=augmentation), training=True)
        held_out = WatchedClips(rows["test"], ClipTask(processor), training=False)
        # Drop-out draws from the global generator while clips are read.
        trainer = VideoTrainer(
            make_model(num_labels=8, classifier_dropout=0.3),
            make_arguments(tmp_path, reading_threads=reading_threads),
            train_dataset=training,
            eval_dataset=held_out,
        )
        trainer.train()
        weights = torch.cat([parameter.detach().flatten() for parameter in trainer.model.parameters()])
        return weights, trainer.evaluate()["eval_loss"], training.threads | held_out.threads

    before = set(threading.enumerate())
    weights, loss, threads = train(reading_threads=0)
    assert threads == {threading.current_thread().name}
    ahead, loss_ahead, threads = train(reading_threads=3)
    assert threads == {"reading"} and set(threading.enumerate()) <= before
    assert torch.equal(ahead, weights) and loss_ahead == loss


def test_evaluation_measures_all_videos_where_training_drops_the_last_batch(tmp_path):
    arguments = make_arguments(tmp_path, dataloader_drop_last=True)
    trainer = VideoTrainer(make_model(), arguments, train_dataset=RandomClips(7), eval_dataset=RandomClips(7))
    assert len(trainer.get_train_dataloader()) == 1 and len(trainer.get_eval_dataloader()) == 2
    assert len(trainer.predict(trainer.eval_dataset).predictions) == 7
