"""Two epochs of 27 clips in steps of 12: `resumed_run.py FOLDER SEEN [CHECKPOINT]`.

Each process writes the keys of the clips that it was trained on to `SEEN_PROCESS.json`.
"""

import json
import os
import sys
from pathlib import Path

import torch.distributed as dist

from hf_video.data import collate_clips
from tests.testing.trainers import labelled_clips, make_trainer

CLIPS_OF_A_STEP, NUM_CLIPS = 12, 27


def main(folder, seen, checkpoint=None):
    keys = []

    def collate(items):
        keys.extend([int(number) for number in item["sample_key"][1:]] for item in items)
        return collate_clips(items)

    batch_size = CLIPS_OF_A_STEP // int(os.environ.get("WORLD_SIZE", 1))
    options = {"save_strategy": "steps", "save_steps": 1, "logging_steps": 1, "dataloader_drop_last": True}
    options |= {"eval_strategy": "no", "load_best_model_at_end": False, "per_device_train_batch_size": batch_size}
    clips = labelled_clips([0, 1, 1] * (NUM_CLIPS // 3))
    trainer = make_trainer(folder, clips, data_collator=collate, reading_threads=0, **options)
    trainer.train(resume_from_checkpoint=checkpoint)
    Path(f"{seen}_{trainer.args.process_index}.json").write_text(json.dumps(keys))


if __name__ == "__main__":
    main(*sys.argv[1:])
    if dist.is_initialized():
        dist.destroy_process_group()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
