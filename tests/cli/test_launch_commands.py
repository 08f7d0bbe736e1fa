"""The commands of docs/fine_tune.md and docs/many_machines.md that start many processes."""

import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import yaml
from accelerate.commands.launch import launch_command_parser
from torch.distributed.run import get_args_parser

from hf_video.training.checkpoints import MARK
from hf_video.training.resuming import choose_values
from tests.cli.flags import read

from ..process_group import free_port
from ..torchrun_agents import ENVIRONMENT
from .conftest import TINY_MODEL

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "many_machines.md"
JOB = {"SLURM_JOB_ID": "7", "SLURM_NNODES": "4", "SLURM_GPUS_ON_NODE": "8", "SLURM_CPUS_PER_TASK": "64"}
STORE = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
PARSERS = {"torchrun": get_args_parser, "accelerate": launch_command_parser}


def block(beginning):
    """The text of the page's only block that begins like this, after its language."""
    (text,) = re.findall(rf"^```({beginning}.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    return text.partition("\n")[2]


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
        shlex.split(line.removesuffix(" && exit")) for line in lines if re.match(r" *(srun .*)?torchrun |accel", line)
    ]
    return [words[words.index("torchrun") if "torchrun" in words else 0 :] for words in found]


COMMANDS = [*commands((ROOT / "docs" / "fine_tune.md").read_text()), *commands(PAGE.read_text())]
COMMANDS.append([*container()["command"], *container()["args"]])


def test_all_commands_are_found():
    assert [words[0] for words in COMMANDS].count("torchrun") == 7
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
    settings = read(launched.training_script_args)
    assert settings.resume in (None, "auto") and Path(choose_values(settings).output_dir).name == "my_model"
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
    assert container()["env"] == [{"name": STORE, "value": "1"}]
    assert {each["name"] for each in pod["volumes"]} == {each["name"] for each in container()["volumeMounts"]}


def test_the_slurm_script_is_one_of_bash():
    assert subprocess.run(["bash", "-n"], input=block("bash\n#!"), text=True).returncode == 0
    assert f"export {STORE}=1" in block("bash\n#!")
    asked = dict(re.findall(r"^#SBATCH --([\w-]+)=(\S+)", block("bash\n#!"), re.MULTILINE))
    assert asked["ntasks-per-node"] == "1" and asked["nodes"] == JOB["SLURM_NNODES"]


SRUN = """#!/bin/bash
# Starts a command once for each machine, and ends with an exit code other than 0 if one of them does.
while [[ $1 == --* ]]; do shift; done
for ((node = 0; node < SLURM_NNODES; node++)); do "$@" & done
for ((node = 0; node < SLURM_NNODES; node++)); do wait -n || code=$?; done
exit "${code:-0}"
"""
SCONTROL = """#!/bin/bash
[ "$1" = show ] && printf '127.0.0.1\\n127.0.0.1\\n'
[ "$1" = requeue ] && echo "$2" >> requeued.txt
"""


@pytest.fixture
def run_here(digits, tmp_path):
    """Starts a command or script of the page in a shell, on small data, with two machines of one process each."""
    port = free_port()
    small = {"/shared/my_videos": digits, "my_videos": digits, "/shared/my_model": "my_model", "=500": "=2"}
    small |= {"HOST": "127.0.0.1", "29500": port, "num_processes=8": "num_processes=2", "per-node=8": "per-node=2"}
    small |= {"nnodes=4 --nproc-per-node=2": "nnodes=2 --nproc-per-node=1", "machines=4": "machines=2", "=32": "=2"}
    sizes = " ".join([*TINY_MODEL, "--num-attention-heads 2 --batch-size 4 max_steps=4 --resume auto"])
    for name, text in (("srun", SRUN), ("scontrol", SCONTROL)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    slurm = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "node-[0-1]", "SLURM_NNODES": "2", "SLURM_GPUS_ON_NODE": "1"}
    path = f"{tmp_path}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = os.environ | ENVIRONMENT | slurm | {"SLURM_CPUS_PER_TASK": "1", "PATH": path}

    def run(text, **variables):
        for name, here in small.items():
            text = text.replace(name, str(here))
        text = text.replace("--resume auto", sizes)
        return subprocess.Popen(["bash", "-c", text], cwd=tmp_path, env=environment | variables)

    run.port = port
    return run


@pytest.mark.slow
@pytest.mark.parametrize("number", range(2))
def test_the_commands_for_one_machine_train(number, run_here, tmp_path):
    command = shlex.join([words for words in COMMANDS if "--nnodes=4" not in words][number])
    assert run_here(command).wait(timeout=200) == 0
    assert (tmp_path / "my_model" / "model.safetensors").is_file()


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["torchrun", "accelerate"])
def test_the_commands_for_several_machines_train(launcher, run_here, tmp_path):
    (command,) = [shlex.join(words) for words in COMMANDS if words[0] == launcher and "HOST" in " ".join(words)]
    machines = [run_here(command)]
    # Accelerate refuses a port at which the other machine, which is this one here, already listens.
    while not any(each.laddr.port == int(run_here.port) for each in psutil.net_connections("tcp")):
        assert machines[0].poll() is None
        time.sleep(0.1)
    machines.append(run_here(command.replace("rank=0", "rank=1")))
    assert [machine.wait(timeout=200) for machine in machines] == [0, 0]
    assert (tmp_path / "my_model" / "model.safetensors").is_file()


@pytest.mark.slow
def test_the_slurm_script_puts_a_job_that_failed_into_the_queue_again(run_here, tmp_path):
    script, requeued = block("bash\n#!"), tmp_path / "requeued.txt"
    job = run_here(script)
    checkpoint = tmp_path / "my_model" / "checkpoint-2" / MARK
    while not checkpoint.is_file():
        assert job.poll() is None
        time.sleep(0.01)
    for process in psutil.Process(job.pid).children(recursive=True):
        if "torchrun" in " ".join(process.cmdline()):
            process.kill()
    assert job.wait(timeout=100) == 1 and requeued.read_text() == "7\n"
    assert run_here(script, SLURM_RESTART_COUNT="1").wait(timeout=200) == 0
    assert (tmp_path / "my_model" / "model.safetensors").is_file() and requeued.read_text() == "7\n"
