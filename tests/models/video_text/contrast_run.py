"""What `test_contrast_of_processes.py` runs in each process: `contrast_run.py FOLDER NUM_PROCESSES ORIGINAL_SCALE`."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from tests.models.video_text.video_text_testing import make, random_pairs


def main(folder, num_processes, original_scale):
    rank = 0
    if int(num_processes) > 1:
        dist.init_process_group("gloo")
        rank = dist.get_rank()
    model = make(loss_weights={"vtc": 1.0}, original_gradient_scale=original_scale == "True").double()
    pairs = random_pairs() | {"video_ids": torch.tensor([0, 1, 2, 1])}
    size = 4 // int(num_processes)
    pairs = {name: each[rank * size : (rank + 1) * size] for name, each in pairs.items()}
    pairs["pixel_values"] = pairs["pixel_values"].double()
    called = model if int(num_processes) == 1 else DistributedDataParallel(model, find_unused_parameters=True)
    loss = called(**pairs, return_loss=True).loss
    loss.backward()
    if rank == 0:
        gradients = {name: each.grad for name, each in model.named_parameters() if each.grad is not None}
        torch.save({"loss": loss.detach(), "gradients": gradients}, Path(folder, "result.pt"))
    if int(num_processes) > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
