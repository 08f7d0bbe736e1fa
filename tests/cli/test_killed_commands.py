"""A command that is killed, or whose disk is full, leaves nothing half-written; the next one gives the same bits."""

import itertools
import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.goldens import load_golden, write_original_config
from tests.inference.search_models import save_dual_encoder

ROOT = Path(__file__).parents[2]
STATUS = {"SIGKILL": -9, "SIGTERM": 143, "SIGINT": 130, "full disk": 2}
COMMANDS = ("convert", "probe", "evaluate", "extract", "index", "pack")
NUM_MOMENTS = 5
# A cut through the matrix of commands, kinds and moments; the whole of it is slow. Of a probe,
# `test_probe_command.py` ends one.
QUICK = [
    ("convert", "SIGTERM", 2),
    ("extract", "full disk", 3),
    ("evaluate", "full disk", 4),
    ("index", "SIGKILL", 3),
    ("pack", "SIGINT", 3),
]
# What `extract` and `pack` note while they run, and the lock of a run that was killed.
GROWING = ("features.json", ".packing", ".hf-video.lock")
# Times, and paths of the folder that is renamed once it is whole.
VOLATILE = ("training_args.bin", "trainer_state.json")


@pytest.fixture(scope="module")
def server():
    """Runs a case of `killed_commands.py`."""
    script, environment = str(Path(__file__).with_name("killed_commands.py")), os.environ | {"PYTHONPATH": str(ROOT)}
    environment["OMP_NUM_THREADS"] = "1"
    with subprocess.Popen(
        [sys.executable, script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, cwd=ROOT
    ) as process:

        def run(words, folder, **stop):
            case = {"words": [str(word) for word in words], "folder": str(folder), "stop": stop}
            process.stdin.write(json.dumps(case) + "\n")
            process.stdin.flush()
            return json.loads(process.stdout.readline())

        yield run
        process.stdin.close()


@pytest.fixture(scope="module")
def words_of(digits, trained, tmp_path_factory):
    """The words of a command that writes into a folder."""
    golden = load_golden("videovit", "videomae_finetune")
    config = write_original_config(golden, tmp_path_factory.mktemp("original"))
    dual_encoder = save_dual_encoder(tmp_path_factory.mktemp("dual_encoder") / "model")
    of_model = (digits, "--model", trained, "--device", "cpu")

    def words(command, folder):
        return {
            "convert": (
                *("convert", "videomae", golden.folder / "checkpoint.pth", folder / "model"),
                *("--original-config", config),
            ),
            "probe": (
                *("probe", *of_model, "--output-dir", folder / "out", "--features", folder / "features"),
                *("--num-train-epochs=1", "--batch-size", "4"),
            ),
            "evaluate": (
                *("evaluate", *of_model, "--output", folder / "result.json"),
                *("--predictions", folder / "table.csv"),
            ),
            "pack": (*("pack", digits, "--output", folder / "pack", "--shard-size", "20KB", "--num-workers", "1"),),
            "extract": (
                *("extract", digits / "test", "--model", trained, "--device", "cpu", "--output", folder / "features"),
                *("--frame-sampling-rate", "1", "--stride", "1"),
            ),
            "index": (
                *("index", digits / "test", "--model", dual_encoder, "--device", "cpu", "--output", folder / "index"),
                *("--window", "2", "--part-size", "2"),
            ),
        }[command]

    return words


@pytest.fixture(scope="module")
def undisturbed(server, words_of, tmp_path_factory):
    """The files of a command, and the changes in which it makes them."""
    known = {}

    def run(command):
        if command not in known:
            folder = tmp_path_factory.mktemp(command)
            result = server(words_of(command, folder), folder)
            assert result["status"] == 0, result["stderr"]
            known[command] = files_of(folder), result["changes"]
        return known[command]

    return run


def files_of(folder):
    """Contents by name, but for what was never given its name."""
    found = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
    return {
        name: path.read_bytes()
        for name, path in found.items()
        if ".partial" not in name and Path(name).name not in VOLATILE
    }


@pytest.mark.parametrize(
    ("command", "kind", "moment"),
    [
        pytest.param(*case, marks=[] if case in QUICK else pytest.mark.slow)
        for case in itertools.product(COMMANDS, STATUS, range(1, NUM_MOMENTS + 1))
    ],
)
def test_nothing_is_half_written_and_the_next_run_gives_the_same_bits(
    server, words_of, undisturbed, tmp_path, command, kind, moment
):
    whole, num_changes = undisturbed(command)
    words, share = words_of(command, tmp_path), moment / (NUM_MOMENTS + 1)
    if kind == "full disk":
        stop = {"limit": int(share * max(map(len, whole.values())))}
    else:
        stop = {"signal": kind, "moment": math.ceil(share * num_changes)}
    stopped = server(words, tmp_path, **stop)
    assert stopped["status"] == STATUS[kind], stopped["stderr"]
    said = re.findall(r"^.*: (?:error: .*|interrupted|terminated)", stopped["stderr"], flags=re.MULTILINE)
    assert len(said) == (kind != "SIGKILL") and "Traceback" not in stopped["stderr"], stopped["stderr"]
    if kind == "full disk":
        assert str(tmp_path) in said[0] and os.strerror(27) in said[0], said

    # What `extract` notes of a finished video stands beside its features.
    left = {name: content for name, content in files_of(tmp_path).items() if not name.endswith(".npy.json")}
    left = {name: content for name, content in left.items() if not {*Path(name).parts} & {*GROWING}}
    assert left == {name: content for name, content in whole.items() if name in left}
    if kind != "SIGKILL":
        assert not list(tmp_path.rglob("*.partial"))
    if command == "evaluate":  # two files, either of them whole; it writes over neither
        for name in left:
            (tmp_path / name).unlink()
    assert server(words, tmp_path)["status"] == 0
    assert files_of(tmp_path) == whole
