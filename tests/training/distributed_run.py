"""What the tests of several processes run in each of them: `distributed_run.py TASK FOLDER NUM_PROCESSES`.

The main process writes what it found to `FOLDER/result.json`.
"""

import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from accelerate import DistributedType, PartialState
from torch.nn.parallel import DistributedDataParallel

from hf_video.training import VideoTrainer
from hf_video.training.losses import Distillation
from tests.data.frame_videos import blank_clips
from tests.training.captions_testing import make_video_text_pair
from tests.training.detection_testing import evaluated_detector, first_step
from tests.training.frames_testing import losses_of, make_frame_model, make_frame_trainer
from tests.training.tiny import LabelledClips, RandomClips, make_arguments, make_model, weights_of

GLOBAL_BATCH_SIZE = 4
NUM_STEPS = 20


def loss_curve(folder, num_processes):
    """The losses of 20 steps over several epochs."""
    trainer = VideoTrainer(
        model=make_model(),
        args=make_arguments(
            folder,
            max_steps=NUM_STEPS,
            per_device_train_batch_size=GLOBAL_BATCH_SIZE // num_processes,
            logging_steps=1,
            eval_strategy="no",
            save_strategy="no",
            load_best_model_at_end=False,
        ),
        train_dataset=RandomClips(16),
    )
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return {"losses": losses, "looks_for_unused": trainer.accelerator.ddp_handler.find_unused_parameters}


def unused(folder, num_processes):
    """Trains a model with a parameter that nothing uses, as the trainer chooses and without looking for it."""
    results = {}
    for find, checkpointing in ((None, False), (None, True), (False, False)):
        model = make_model()
        model.spare = torch.nn.Parameter(torch.zeros(1))
        options = {"max_steps": 2, "eval_strategy": "no", "save_strategy": "no", "load_best_model_at_end": False}
        options |= {"ddp_find_unused_parameters": find, "activation_checkpointing": checkpointing}
        arguments = make_arguments(folder, **options)
        trainer = VideoTrainer(model=model, args=arguments, train_dataset=RandomClips(16))
        try:
            trainer.train()
            results[f"{find} {checkpointing}"] = trainer.accelerator.ddp_handler.find_unused_parameters
        except ValueError as error:
            results[f"{find} {checkpointing}"] = str(error)
    return results


def distilled(folder, num_processes):
    """The losses of 20 steps towards the wider features of a teacher; one process has two batches a step."""
    trainer = VideoTrainer(
        model=make_model(),
        args=make_arguments(
            folder,
            max_steps=NUM_STEPS,
            per_device_train_batch_size=GLOBAL_BATCH_SIZE // 2,
            gradient_accumulation_steps=2 // num_processes,
            logging_steps=1,
            eval_strategy="no",
            save_strategy="no",
            load_best_model_at_end=False,
        ),
        train_dataset=RandomClips(16),
        distillation=Distillation(make_model(hidden_size=32), make_model(), target="features_mse", weight=0.7),
    )
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return {"losses": losses, "looks_for_unused": trainer.accelerator.ddp_handler.find_unused_parameters}


def balanced(folder, num_processes):
    """The losses of 20 steps over classes of different sizes, weighted and drawn alike; one process has two batches a
    step."""
    arguments = make_arguments(
        folder,
        max_steps=NUM_STEPS,
        per_device_train_batch_size=GLOBAL_BATCH_SIZE // 2,
        gradient_accumulation_steps=2 // num_processes,
        logging_steps=1,
        eval_strategy="no",
        save_strategy="no",
        load_best_model_at_end=False,
        loss="focal",
        class_weights="balanced",
        sampler="sqrt",
    )
    clips = LabelledClips([0] * 12 + [1] * 4)
    trainer = VideoTrainer(model=make_model(), args=arguments, train_dataset=clips)
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return {"losses": losses, "looks_for_unused": trainer.accelerator.ddp_handler.find_unused_parameters}


def ragged_evaluation(folder, num_processes):
    """Predictions where neither the processes nor the batches divide the videos, which have three views each."""
    trainer = VideoTrainer(
        model=make_model(),
        args=make_arguments(folder, per_device_eval_batch_size=GLOBAL_BATCH_SIZE // num_processes),
        eval_dataset=RandomClips(7, num_views=3, num_labels=2),
    )
    prediction = trainer.predict(trainer.eval_dataset)
    return {
        "predictions": prediction.predictions.tolist(),
        "labels": prediction.label_ids.tolist(),
        "loss": prediction.metrics["test_loss"],
    }


def sharded(folder, num_processes):
    """Trains with FSDP2, saves, and evaluates what it saved."""
    arguments = make_arguments(
        folder,
        max_steps=3,
        per_device_train_batch_size=2,
        layer_decay=0.5,
        eval_strategy="no",
        save_strategy="no",
        load_best_model_at_end=False,
    )
    # Accelerate shards on accelerators alone, although FSDP2 itself runs on CPUs as well.
    arguments.distributed_state.distributed_type = DistributedType.MULTI_GPU
    trainer = VideoTrainer(
        model=make_model(num_hidden_layers=2),
        args=arguments,
        train_dataset=RandomClips(),
        eval_dataset=RandomClips(7),
    )
    trainer.train()
    kinds = sorted({type(weight).__name__ for weight in trainer.model.parameters()})
    trainer.save_model()
    prediction = trainer.predict(trainer.eval_dataset)
    return {"weights": kinds, "predictions": prediction.predictions.tolist()}


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
    return results | {"predictions": output.predictions.tolist(), "mean_ap": output.metrics["test_mean_ap"]}


def framewise(folder, num_processes):
    """The losses of steps on clips of frames, and an evaluation of clips of unequal lengths after each epoch, with and
    without carried states."""
    results = {}
    for carry_state in (False, True):
        trainer = make_frame_trainer(
            folder,
            make_frame_model(),
            blank_clips([26, 9, 17, 17], num_frames=4),
            eval_dataset=blank_clips([11, 6, 3], num_frames=4, training=False),
            per_device_train_batch_size=GLOBAL_BATCH_SIZE // num_processes,
            per_device_eval_batch_size=1,
            num_train_epochs=2,
            eval_strategy="epoch",
            learning_rate=1e-3,
            carry_state=carry_state,
        )
        trainer.train()
        entries = trainer.state.log_history
        results[str(carry_state)] = {
            name: [entry[name] for entry in entries if name in entry]
            for name in ("loss", "grad_norm", "eval_frame_accuracy", "eval_edit_score")
        }
    return results


def resumed_states(folder, num_processes):
    """By how processes share a batch: the losses with carried states of a run, of one that is resumed within an epoch,
    and of one that is resumed from the checkpoint of one process; and whether the second has the weights of the first.
    And what is refused."""
    results, refusal = {}, ""
    for split in (False, True):
        size = GLOBAL_BATCH_SIZE // (1 if split else num_processes)
        for dispatch in (False, True) if split else (False,):
            name = f"split={split} dispatch={dispatch}"
            runs = []
            for checkpoint in (None, folder / name, folder.parent / "one" / name):
                runs.append(
                    make_frame_trainer(
                        folder / name,
                        make_frame_model(),
                        blank_clips([26, 9, 17, 17], num_frames=4),
                        per_device_train_batch_size=size,
                        learning_rate=0.01,
                        save_strategy="no" if checkpoint else "steps",
                        save_steps=1,
                        save_total_limit=None,
                        accelerator_config={"split_batches": split, "dispatch_batches": dispatch},
                    )
                )
                runs[-1].train(resume_from_checkpoint=checkpoint and str(checkpoint / "checkpoint-2"))
            weights = [weights_of(run.model) for run in runs]
            is_same = all(torch.equal(weight, weights[0][each]) for each, weight in weights[1].items())
            results[name] = {"losses": [losses_of(run) for run in runs], "is_same": is_same}
    try:
        make_frame_trainer(
            folder, make_frame_model(), blank_clips([26], num_frames=4), accelerator_config={"dispatch_batches": True}
        )
    except ValueError as error:
        refusal = str(error)
    return {"results": results, "refusal": refusal}


def main(task, folder, num_processes):
    result = {
        "loss_curve": loss_curve,
        "unused": unused,
        "distilled": distilled,
        "balanced": balanced,
        "ragged_evaluation": ragged_evaluation,
        "sharded": sharded,
        "gathered_negatives": gathered_negatives,
        "detected": detected,
        "framewise": framewise,
        "resumed_states": resumed_states,
    }[task](Path(folder), num_processes)
    world_size = dist.get_world_size() if dist.is_initialized() else 1
    if world_size != num_processes:
        raise RuntimeError(f"{num_processes} processes were asked for, there are {world_size}.")
    if world_size == 1 or dist.get_rank() == 0:
        Path(folder, "result.json").write_text(json.dumps(result | {"world_size": world_size}))
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
    # A thread of PyTorch's process groups that is late may abort the process while the interpreter is torn down.
    sys.stderr.flush()
    os._exit(0)
