"""Models whose weights lie in several processes, as `distributed_config` asks for it, against one process."""

import json

import pytest
from safetensors.torch import load_file, save_file

import hf_video
from tests.testing.processes import launched, run_forked

from .videomamba import videomamba_testing

PROGRAM = """
import json, sys
import torch
from safetensors.torch import load_file, save_file
from transformers.distributed import DistributedConfig
import hf_video

name, folder, options = sys.argv[1:]
model = getattr(hf_video, name).from_pretrained(folder, distributed_config=DistributedConfig(**json.loads(options)))
clips = load_file(f"{folder}/clips")["pixel_values"]
found = {}
with torch.no_grad():
    found["inference"] = model(clips).logits
logits = model(clips).logits
found["training"] = logits.detach()
logits.square().sum().backward()
for parameter_name, parameter in model.named_parameters():
    gradient = parameter.grad
    found[parameter_name] = gradient.full_tensor() if hasattr(gradient, "full_tensor") else gradient
if torch.distributed.get_rank() == 0:
    sizes = {n: p.to_local().numel() if hasattr(p, "to_local") else p.numel() for n, p in model.named_parameters()}
    save_file({name: tensor.contiguous() for name, tensor in found.items()}, f"{folder}/found")
    print(sum(sizes.values()))
torch.distributed.destroy_process_group()
"""


@pytest.mark.parametrize("options", [{"tp_size": 2}, {"fsdp_size": 2}], ids=str)
def test_two_processes_give_the_logits_and_gradients_of_one(tmp_path, options):
    model = videomamba_testing.make(hf_video.VideoMambaForVideoClassification, use_bias=True).train()
    model.save_pretrained(tmp_path)
    clips = videomamba_testing.random_clips(model.config)
    save_file({"pixel_values": clips}, tmp_path / "clips")
    words = ["-c", PROGRAM, type(model).__name__, tmp_path, json.dumps(options)]
    results = run_forked(*launched(words, 2))
    assert [result.returncode for result in results] == [0, 0], results[0].stderr[-3000:]
    logits = model(clips).logits
    logits.square().sum().backward()
    wanted = {name: parameter.grad for name, parameter in model.named_parameters()}
    wanted |= {"inference": logits.detach(), "training": logits.detach()}
    found = load_file(tmp_path / "found")
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert (found[name] - tensor).abs().max() <= 1e-5 * max(tensor.abs().max(), 1), name
    held = int(results[0].stdout.split()[-1])
    assert held < 0.8 * model.num_parameters(), "a process holds a part of the weights"
