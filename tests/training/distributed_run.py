"""What the tests of several processes run in each of them: `distributed_run.py FOLDER`.

The main process writes what it found, by task, to `FOLDER/result.json`.
"""

import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from accelerate import PartialState
from torch.nn.parallel import DistributedDataParallel

from hf_video.training.losses import Distillation
from tests.data.frame_videos import blank_clips
from tests.testing import trainers
from tests.testing.trainers import LAST_WEIGHTS, RandomClips, labelled_clips, make_model
from tests.training.captions_testing import make_video_text_pair
from tests.training.detection_testing import evaluated_detector, first_step
from tests.training.frames_testing import make_frame_model, make_frame_trainer

GLOBAL_BATCH_SIZE = 4
NUM_STEPS = 8


def losses_of(trainer):
    trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def make_trainer(folder, clips, batch_size, distillation=None, **options):
    """A trainer for eight steps over several epochs."""
    options |= {"max_steps": NUM_STEPS, "logging_steps": 1, "per_device_train_batch_size": batch_size}
    return trainers.make_trainer(folder, clips, distillation=distillation, **LAST_WEIGHTS, **options)


def plain(folder, num_processes):
    return losses_of(make_trainer(folder, RandomClips(16), GLOBAL_BATCH_SIZE // num_processes))


def distilled(folder, num_processes):
    """One process has two batches a step."""
    teacher = make_model(hidden_size=32)
    with torch.no_grad():
        teacher.classifier.bias.add_(torch.tensor([0.0, 1.0]))
    distillation = Distillation(teacher, make_model(), weight=0.7)
    accumulation = {"gradient_accumulation_steps": 2 // num_processes}
    return losses_of(make_trainer(folder, RandomClips(16), GLOBAL_BATCH_SIZE // 2, distillation, **accumulation))


def balanced(folder, num_processes):
    """Classes of different sizes, weighted and drawn alike; one process has two batches a step."""
    options = {"loss": "focal", "class_weights": "balanced", "sampler": "sqrt"}
    options |= {"gradient_accumulation_steps": 2 // num_processes}
    return losses_of(make_trainer(folder, labelled_clips([0] * 12 + [1] * 4), GLOBAL_BATCH_SIZE // 2, **options))


def framewise(folder, num_processes):
    """The losses of steps on clips of frames, and an evaluation of seven clips of unequal lengths."""
    sets = [blank_clips([26, 9, 17, 17], num_frames=4), blank_clips([11, 6, 3, 4], num_frames=4, training=False)]
    options = {"per_device_train_batch_size": GLOBAL_BATCH_SIZE // num_processes, "per_device_eval_batch_size": 2}
    options |= {"eval_strategy": "epoch", "learning_rate": 1e-3}
    trainer = make_frame_trainer(folder, make_frame_model(), *sets, **options)
    trainer.train()
    names = ("loss", "grad_norm", "eval_frame_accuracy", "eval_edit_score", "eval_loss")
    return {name: [entry[name] for entry in trainer.state.log_history if name in entry] for name in names}


def unused(folder, num_processes):
    """What is said if a parameter that nothing uses is not looked for."""
    model = make_model()
    model.spare = torch.nn.Parameter(torch.zeros(1))
    options = {"max_steps": 2, "ddp_find_unused_parameters": False, **LAST_WEIGHTS}
    try:
        trainers.make_trainer(folder, RandomClips(16), model=model, **options).train()
    except ValueError as error:
        return str(error)
    return ""


def ragged_evaluation(folder, num_processes):
    """Predictions where neither the processes nor the batches divide the videos, which have three views each."""
    trainer = trainers.make_trainer(folder, per_device_eval_batch_size=GLOBAL_BATCH_SIZE // num_processes)
    scores, labels, metrics = trainer.predict(RandomClips(7, num_views=3))
    return {"predictions": scores.tolist(), "labels": labels.tolist(), "loss": metrics["test_loss"]}


def gathered_negatives(folder, num_processes):
    """The contrast of four pairs, two of one video, and its gradients, averaged over the processes."""
    state, results = PartialState(cpu=True), {}
    generator = torch.Generator().manual_seed(0)
    inputs = {
        "pixel_values": torch.randn(4, 2, 3, 16, 16, dtype=torch.float64, generator=generator),
        "input_ids": torch.randint(1, 9, (4, 6), generator=generator),
        "attention_mask": torch.ones(4, 6, dtype=torch.long),
        "video_ids": torch.tensor([0, 1, 0, 2]),
    }
    share = len(inputs["video_ids"]) // num_processes
    mine = {name: value[state.process_index * share :][:share] for name, value in inputs.items()}
    for original in (False, True):
        options = {"loss_weights": {"vtc": 1.0}, "original_gradient_scale": original}
        model = make_video_text_pair(**options)[0].double()
        is_several = num_processes > 1
        run = DistributedDataParallel(model, find_unused_parameters=True) if is_several else model
        loss = run(**mine, return_loss=True).loss
        loss.backward()
        gradients = {name: each.grad.tolist() for name, each in model.named_parameters() if each.grad is not None}
        results[str(original)] = {"loss": loss.item(), "gradients": gradients}
    return results


def detected(folder, num_processes):
    """The gradients of a step on four key frames, accumulated and not, and an evaluation of seven, which have
    different numbers of persons."""
    results = {}
    for accumulation in (1, 2):
        batch_size = GLOBAL_BATCH_SIZE // num_processes // accumulation
        options = {"per_device_train_batch_size": batch_size, "gradient_accumulation_steps": accumulation}
        trainer, gradients = first_step(folder, **options)
        [logged] = [entry for entry in trainer.state.log_history if "grad_norm" in entry]
        gradients = {name: each.tolist() for name, each in gradients.items()}
        results[str(accumulation)] = {"log": logged, "gradients": gradients}
    trainer, dataset = evaluated_detector(folder)
    output = trainer.predict(dataset)
    figures = {name: output.metrics[f"test_{name}"] for name in ("loss", "mean_ap")}
    return results | {"predictions": output.predictions.tolist()} | figures


# The last one may leave processes that wait for each other.
TASKS = (plain, distilled, balanced, framewise, ragged_evaluation, gathered_negatives, detected, unused)


def run(folder, num_processes):
    """What all tasks find, by their names."""
    return {task.__name__: task(Path(folder, task.__name__), num_processes) for task in TASKS}


if __name__ == "__main__":
    result = run(sys.argv[1], 2)
    if dist.get_world_size() != 2:
        raise RuntimeError(f"Two processes were asked for, there are {dist.get_world_size()}.")
    if dist.get_rank() == 0:
        Path(sys.argv[1], "result.json").write_text(json.dumps(result))
    dist.destroy_process_group()
    # A thread of PyTorch's process groups that is late may abort the process while the interpreter is torn down.
    sys.stderr.flush()
    os._exit(0)
