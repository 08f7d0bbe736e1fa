"""A training on a stream that kills itself: `streamed_run.py DATA FOLDER NUM_STEPS STEP`.

It goes on from the last complete checkpoint in FOLDER, and is killed behind STEP; 0: never. Each process writes what
it was trained on to `FOLDER/seen_PROCESS.jsonl`, and the first one the losses to `FOLDER/losses.json`.
"""

import json
import os
import signal
import sys
from pathlib import Path

import torch.distributed as dist
from transformers import TrainerCallback

from hf_video.data import ClipAugmentation, ClipTask, VideoStream, collate_clips, load_video_stream
from hf_video.processing import VideoClipProcessor
from hf_video.training import VideoTrainer
from hf_video.training.output_folder import last_checkpoint
from tests.testing.trainers import LAST_WEIGHTS, make_arguments, make_model


class KillBehindStep(TrainerCallback):
    def __init__(self, step):
        self.step = step

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            os.kill(os.getpid(), signal.SIGKILL)


def main(data, folder, num_steps, killed_at):
    processor = VideoClipProcessor(num_frames=2, sampling_strategy="dense", size=20, crop_size=16)
    augmentation = ClipAugmentation(crop_min_area=0.3, horizontal_flip=True)
    stream = VideoStream(
        load_video_stream(data)[0], ClipTask(processor, augmentation=augmentation), seed=3, shuffle_buffer_size=5
    )
    options = {"max_steps": num_steps, "per_device_train_batch_size": 2, "gradient_accumulation_steps": 2}
    options |= {"save_strategy": "steps", "save_steps": 2, "logging_steps": 1}
    arguments = make_arguments(folder, **LAST_WEIGHTS | options)
    seen = Path(folder, f"seen_{arguments.process_index}.jsonl")

    def collate(items):
        with seen.open("a") as file:
            print(json.dumps([[trainer.state.global_step, *item["sample_key"][1:]] for item in items]), file=file)
        return collate_clips(items)

    model = make_model(drop_path_rate=0.3, num_hidden_layers=2)
    trainer = VideoTrainer(model, arguments, collate, stream, processing_class=processor)
    if killed_at:
        trainer.add_callback(KillBehindStep(killed_at))
    try:
        checkpoint = str(last_checkpoint(Path(folder)))
    except ValueError:
        checkpoint = None
    trainer.train(resume_from_checkpoint=checkpoint)
    if trainer.is_world_process_zero():
        entries = [entry for entry in trainer.state.log_history if "loss" in entry]
        losses = [[entry["step"], entry["epoch"], entry["loss"]] for entry in entries]
        Path(folder, "losses.json").write_text(json.dumps(losses))
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    sys.stderr.flush()
    os._exit(0)
