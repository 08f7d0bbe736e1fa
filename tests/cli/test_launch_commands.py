"""The commands of README.md and docs/many_machines.md that start many processes."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import yaml
from accelerate.commands.launch import launch_command_parser
from torch.distributed.run import get_args_parser

from hf_video.cli.main import parse
from hf_video.cli.run_settings import read_given

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "many_machines.md"
JOB = {"SLURM_JOB_ID": "7", "SLURM_NNODES": "4", "SLURM_GPUS_ON_NODE": "8", "SLURM_CPUS_PER_TASK": "64"}
PARSERS = {"torchrun": get_args_parser, "accelerate": launch_command_parser}


def block(language):
    """The text of the page's only block in a language."""
    (text,) = re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    return text


def service_and_job():
    return yaml.safe_load_all(block("yaml"))


def container():
    _, job = service_and_job()
    (container,) = job["spec"]["template"]["spec"]["containers"]
    return container


def commands(text):
    """The words of each command in a text that starts a launcher."""
    lines = text.replace("\\\n", " ").splitlines()
    found = [
        shlex.split(line.removesuffix(" && exit"))
        for line in lines
        if re.match(r" *(srun .*)?torchrun |    accel", line)
    ]
    return [words[words.index("torchrun") if "torchrun" in words else 0 :] for words in found]


COMMANDS = [*commands((ROOT / "README.md").read_text()), *commands(PAGE.read_text())]
COMMANDS.append([*container()["command"], *container()["args"]])


def test_all_commands_are_found():
    assert [words[0] for words in COMMANDS].count("torchrun") == 5
    assert [words[0] for words in COMMANDS].count("accelerate") == 4


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_the_words_of_a_command_are_known(words, monkeypatch):
    for name, value in {**JOB, "host": "node-0"}.items():
        monkeypatch.setenv(name, value)
    launcher, *rest = map(os.path.expandvars, words)
    if launcher == "accelerate":
        assert rest.pop(0) == "launch"
    launched = PARSERS[launcher]().parse_args(rest)
    assert launched.module and launched.training_script == "hf_video.cli"
    args = parse(launched.training_script_args)
    given = read_given(args)
    assert args.resume in (False, None, "auto") and Path(given.value("output_dir")).name == "my_model"
    if launcher == "torchrun":
        assert (launched.rdzv_backend == "c10d") == (launched.nnodes == "4") == (launched.max_restarts == 3)
    elif launched.config_file:
        assert (ROOT / launched.config_file).is_file()
    else:
        assert launched.multi_gpu and launched.num_processes == 8 * (launched.num_machines or 1)


def test_the_parts_of_the_kubernetes_job_fit_together():
    service, job = service_and_job()
    name, spec = job["metadata"]["name"], job["spec"]
    pod = spec["template"]["spec"]
    launched = get_args_parser().parse_args(container()["args"])
    assert (job["apiVersion"], job["kind"], spec["completionMode"]) == ("batch/v1", "Job", "Indexed")
    assert int(launched.nnodes) == spec["completions"] == spec["parallelism"]
    assert int(launched.nproc_per_node) == container()["resources"]["limits"]["nvidia.com/gpu"]
    assert (service["apiVersion"], service["kind"], service["spec"]["clusterIP"]) == ("v1", "Service", "None")
    assert service["spec"]["selector"] == {"batch.kubernetes.io/job-name": name}
    assert pod["subdomain"] == service["metadata"]["name"]
    assert launched.rdzv_endpoint.split(":")[0] == f"{name}-0.{pod['subdomain']}"
    assert {each["name"] for each in pod["volumes"]} == {each["name"] for each in container()["volumeMounts"]}


def test_the_slurm_script_is_one_of_bash():
    assert subprocess.run(["bash", "-n"], input=block("bash"), text=True).returncode == 0
    asked = dict(re.findall(r"^#SBATCH --([\w-]+)=(\S+)", block("bash"), re.MULTILINE))
    assert asked["ntasks-per-node"] == "1" and asked["nodes"] == JOB["SLURM_NNODES"]
