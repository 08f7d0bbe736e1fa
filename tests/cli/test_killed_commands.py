"""A command that is killed, or whose disk is full, leaves nothing half-written; the next one gives the same bits."""

import errno
import itertools
import json
import math
import os
import re
from io import BytesIO
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.testing.files import files_of
from tests.testing.goldens import load_golden, write_original_config
from tests.testing.processes import launched, run_forked
from tests.testing.search_models import save_dual_encoder

SCRIPT = Path(__file__).with_name("killed_command.py")
STATUS = {"SIGKILL": -9, "SIGTERM": 143, "SIGINT": 130, "full disk": 2}
COMMANDS = ("convert", "evaluate", "extract", "index")
NUM_MOMENTS = 4
# Training has its own tests of kills.
QUICK = [("convert", "SIGTERM", 2), ("evaluate", "full disk", 3), ("extract", "SIGKILL", 3)]
# What `extract` notes while it runs, and the lock of a run that was killed.
GROWING = ("features.json", ".hf-video.lock")


def run(words, folder, **stop):
    """The ended process, and the number of changes that it began to make under the folder."""
    (process,) = run_forked(*launched([SCRIPT, folder, json.dumps(stop), *words]))
    return process, int(folder.with_name(f"{folder.name}.changes").read_text() or 0)


@pytest.fixture(scope="module")
def words_of(digits, trained, tmp_path_factory):
    """The words of a command that writes into a folder."""
    golden = load_golden("videovit", "videomae_finetune")
    config = write_original_config(golden, tmp_path_factory.mktemp("original"))
    dual_encoder = save_dual_encoder(tmp_path_factory.mktemp("dual_encoder") / "model")

    def words(command, folder):
        folder = Path(folder)
        return {
            "convert": (
                *("convert", "videomae", golden.folder / "checkpoint.pth", folder / "model"),
                *("--original-config", config),
            ),
            "evaluate": (
                *("evaluate", digits, "--model", trained, "--device", "cpu", "--output", folder / "result.json"),
                *("--predictions", folder / "table.csv"),
            ),
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


def whole_files_of(folder):
    """Contents by name, but for what was never given its name. Parts of an index have random names: of these the rows,
    by video and piece, none of which is there twice."""
    files = {name: content for name, content in files_of(folder).items() if ".partial" not in name}
    parts = [pq.read_table(BytesIO(files.pop(name))) for name in [*files] if name.endswith(".parquet")]
    rows = [row for part in parts for row in part.to_pylist()]
    found = files | {f"{row['key']} {row['piece']}": row for row in rows}
    assert len(found) == len(files) + len(rows)
    return found


@pytest.fixture(scope="module")
def undisturbed(words_of, tmp_path_factory):
    """What a command writes, the bytes of its largest file, and the changes in which it makes all."""
    known = {}

    def get(command):
        if command not in known:
            folder = tmp_path_factory.mktemp(command)
            process, num_changes = run(words_of(command, folder), folder)
            assert process.returncode == 0, process.stderr
            known[command] = whole_files_of(folder), max(map(len, files_of(folder).values())), num_changes
        return known[command]

    return get


@pytest.mark.parametrize(
    ("command", "kind", "moment"),
    [
        pytest.param(*case, marks=[] if case in QUICK else pytest.mark.slow)
        for case in itertools.product(COMMANDS, STATUS, range(1, NUM_MOMENTS + 1))
    ],
)
def test_nothing_is_half_written_and_the_next_run_gives_the_same_bits(
    words_of, undisturbed, tmp_path, command, kind, moment
):
    whole, num_bytes, num_changes = undisturbed(command)
    folder, share = tmp_path / "folder", moment / (NUM_MOMENTS + 1)
    folder.mkdir()
    if kind == "full disk":
        stop = {"limit": int(share * num_bytes)}
    else:
        stop = {"signal": kind, "moment": math.ceil(share * num_changes)}
    stopped, _ = run(words_of(command, folder), folder, **stop)
    assert stopped.returncode == STATUS[kind], stopped.stderr
    said = re.findall(r"^.*: (?:error: .*|interrupted|terminated)", stopped.stderr, flags=re.MULTILINE)
    assert len(said) == (kind != "SIGKILL") and "Traceback" not in stopped.stderr, stopped.stderr
    if kind == "full disk":
        assert str(folder) in said[0] and os.strerror(errno.EFBIG) in said[0], said

    # What `extract` notes of a finished video stands beside its features.
    left = {name: content for name, content in whole_files_of(folder).items() if not name.endswith(".npy.json")}
    left = {name: content for name, content in left.items() if not {*Path(name).parts} & {*GROWING}}
    assert left == {name: content for name, content in whole.items() if name in left}
    if kind != "SIGKILL":
        assert not list(folder.rglob("*.partial"))
    if command == "evaluate":  # two files, either of them whole; it writes over neither
        for name in left:
            (folder / name).unlink()
    assert run(words_of(command, folder), folder)[0].returncode == 0
    assert whole_files_of(folder) == whole
