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

from hf_video.training.values import choose_values
from tests.cli.flags import read
from tests.testing.processes import free_port
from tests.testing.torchrun_agents import ENVIRONMENT

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


def container():
    """The container of the Kubernetes job."""
    _, job = yaml.safe_load_all(block("yaml"))
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
    assert [words[0] for words in COMMANDS].count("torchrun") == 6
    assert [words[0] for words in COMMANDS].count("accelerate") == 3


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


def test_the_slurm_script_is_one_of_bash():
    assert subprocess.run(["bash", "-n"], input=block("bash\n#!"), text=True).returncode == 0
    assert f"export {STORE}=1" in block("bash\n#!")
    asked = dict(re.findall(r"^#SBATCH --([\w-]+)=(\S+)", block("bash\n#!"), re.MULTILINE))
    assert asked["ntasks-per-node"] == "1" and asked["nodes"] == JOB["SLURM_NNODES"]


@pytest.fixture
def run_here(digits, tmp_path):
    """Starts a command of the page in a shell, on small data, with two machines of one process each."""
    port = free_port()
    small = {"/shared/my_videos": digits, "my_videos": digits, "/shared/my_model": "my_model", "=500": "=2"}
    small |= {"HOST": "127.0.0.1", "29500": port, "num_processes=8": "num_processes=2", "per-node=8": "per-node=2"}
    small |= {"nnodes=4 --nproc-per-node=2": "nnodes=2 --nproc-per-node=1", "machines=4": "machines=2", "=32": "=2"}
    sizes = " ".join([*TINY_MODEL, "--num-attention-heads 2 --batch-size 4 --max-steps=4 --resume auto"])
    environment = os.environ | ENVIRONMENT | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}

    def run(text):
        for name, here in small.items():
            text = text.replace(name, str(here))
        text = text.replace("--resume auto", sizes)
        return subprocess.Popen(["bash", "-c", text], cwd=tmp_path, env=environment)

    run.port = port
    return run


@pytest.mark.slow
@pytest.mark.parametrize("number", range(2))
def test_the_commands_for_one_machine_train(number, run_here, tmp_path):
    command = shlex.join([words for words in COMMANDS if "my_videos" in words][number])
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
