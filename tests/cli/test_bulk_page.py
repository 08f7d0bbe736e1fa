"""The commands and files of docs/bulk.md."""

import re
import shlex
from pathlib import Path

import pytest
import yaml

from hf_video.jobs.bulk import check_engine
from tests.cli.flags import read

PAGE = (Path(__file__).parents[2] / "docs" / "bulk.md").read_text()
BLOCK = re.compile(r"^```yaml\n(.*?)^```$", re.MULTILINE | re.DOTALL)
RAY_UP, RAY_JOB = map(yaml.safe_load, BLOCK.findall(PAGE))
LINES = BLOCK.sub("", PAGE).replace("\\\n", " ").splitlines()
COMMANDS = [shlex.split(line) for line in LINES if line.startswith("hf-video ")]
COMMANDS.append(shlex.split(RAY_JOB["spec"]["entrypoint"]))


def test_all_commands_are_found():
    assert [words[1] for words in COMMANDS] == ["extract", "extract", "predict", "extract", "extract"]


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_the_words_of_a_command_are_known(words, monkeypatch):
    monkeypatch.setattr("hf_video.jobs.bulk.find_spec", lambda name: True)
    args = read(words[1:])
    check_engine(args)
    assert args.engine in ("local", "ray") and args.output and args.model.endswith("my_model")


def test_options_that_the_page_names_exist():
    args = vars(read(COMMANDS[0][1:])) | vars(read(COMMANDS[2][1:]))
    named = re.findall(r"`--([a-z-]+)", PAGE)
    assert {"part-size", "retry-errors", "max-decoders", "models"} <= set(named)
    assert {name.replace("-", "_") for name in named} <= args.keys()


def test_the_cluster_has_what_the_command_asks_for():
    args = read(COMMANDS[3][1:])
    kinds = RAY_UP["available_node_types"]
    assert RAY_UP["head_node_type"] in kinds and RAY_UP["max_workers"] == sum(
        kind.get("max_workers", 0) for kind in kinds.values()
    )
    assert kinds["gpu"]["max_workers"] == args.models * args.num_gpus


def test_the_job_has_what_its_command_asks_for():
    args = read(COMMANDS[-1][1:])
    cluster = RAY_JOB["spec"]["rayClusterSpec"]
    assert (RAY_JOB["apiVersion"], RAY_JOB["kind"]) == ("ray.io/v1", "RayJob") and cluster["enableInTreeAutoscaling"]
    groups = {group["groupName"]: group for group in cluster["workerGroupSpecs"]}

    def resources(group):
        (container,) = group["template"]["spec"]["containers"]
        volumes = {each["name"] for each in group["template"]["spec"]["volumes"]}
        assert {each["name"] for each in container["volumeMounts"]} == volumes
        return container["resources"]

    gpus = groups["gpu"]["maxReplicas"] * resources(groups["gpu"])["limits"]["nvidia.com/gpu"]
    assert gpus == args.models * args.num_gpus
    assert groups["decode"]["maxReplicas"] * resources(groups["decode"])["requests"]["cpu"] >= args.max_decoders
    assert resources(cluster["headGroupSpec"])
