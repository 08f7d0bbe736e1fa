"""What `test_plans.py` runs in each process: `plans_run.py FOLDER NUM_PROCESSES AUTO_CLASS KIND`."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
import transformers
from transformers.distributed import DistributedConfig

import hf_video  # noqa: F401

SIZES = {"tensor": "tp_size", "data": "fsdp_size"}


def main(folder, num_processes, auto_class, kind):
    options = {}
    if int(num_processes) > 1:
        dist.init_process_group("gloo")
        options["distributed_config"] = DistributedConfig(**{SIZES[kind]: int(num_processes)})
    model = getattr(transformers, auto_class).from_pretrained(folder, **options).eval()
    inputs = torch.load(Path(folder, "inputs.pt"))
    with torch.no_grad():
        logits = model(**inputs).logits
    model(**inputs).logits.square().mean().backward()
    cut = sum(hasattr(parameter, "placements") for parameter in model.parameters())
    gradients = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    gradients = {
        name: each.full_tensor() if hasattr(each, "full_tensor") else each for name, each in gradients.items()
    }
    if int(num_processes) == 1 or dist.get_rank() == 0:
        torch.save({"logits": logits, "gradients": gradients, "cut": cut}, Path(folder, f"{num_processes}-{kind}.pt"))
    if int(num_processes) > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
