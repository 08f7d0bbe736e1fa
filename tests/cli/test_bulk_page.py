"""The commands and files of docs/bulk.md."""

import re
import shlex
from pathlib import Path

import yaml

from tests.cli.flags import read

PAGE = (Path(__file__).parents[2] / "docs" / "bulk.md").read_text()
BLOCK = re.compile(r"^```yaml\n(.*?)^```$", re.MULTILINE | re.DOTALL)
RAY_UP, RAY_JOB = map(yaml.safe_load, BLOCK.findall(PAGE))
LINES = BLOCK.sub("", PAGE).replace("\\\n", " ").splitlines()
COMMANDS = [shlex.split(line) for line in LINES if line.startswith("hf-video ")]


def test_commands_and_clusters_are_sound():
    commands = [*COMMANDS, shlex.split(RAY_JOB["spec"]["entrypoint"])]
    settings = [read(words[1:]) for words in commands]
    for each in settings:
        assert each.engine in ("local", "ray") and each.output
    gpu = RAY_UP["available_node_types"]["gpu"]
    assert len(commands) > 3 and gpu["max_workers"] == settings[-2].models * settings[-2].num_gpus
    groups = {each["groupName"]: each for each in RAY_JOB["spec"]["rayClusterSpec"]["workerGroupSpecs"]}
    (container,) = groups["gpu"]["template"]["spec"]["containers"]
    gpus = groups["gpu"]["maxReplicas"] * container["resources"]["limits"]["nvidia.com/gpu"]
    assert gpus == settings[-1].models * settings[-1].num_gpus
