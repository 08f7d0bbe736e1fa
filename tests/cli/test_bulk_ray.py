"""`--engine ray`: whatever dies, each video has one row, and nothing that is done is done again."""

import os
import re
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pyarrow.dataset as ds
import pytest

from hf_video.cli.main import main
from tests.testing.search_models import save_dual_encoder

from ..training.detection_testing import make_detector, make_processor
from .bulk_runs import (
    DECODER,
    MODEL,
    finish,
    kill_actor,
    kill_all,
    num_new,
    parts_of,
    read_rows,
    run_killed,
    started,
    wait_for_parts,
    write_videos,
)

pytestmark = [
    pytest.mark.extras,
    pytest.mark.skipif(find_spec("ray") is None, reason="Ray is missing: pip install 'hf-video-models[test-extras]'"),
]
PART_SIZE, NUM_VIDEOS = 4, 40
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def videos(tmp_path_factory):
    """Five of them are broken."""
    return write_videos(tmp_path_factory.mktemp("bulk") / "videos", NUM_VIDEOS, 5)


@pytest.fixture(scope="session")
def local_rows(trained, videos, tmp_path_factory):
    folder = tmp_path_factory.mktemp("bulk") / "local"
    assert main(words("local", trained, videos, folder)) == 1
    return read_rows(folder)


def words(engine, trained, videos, folder, command="extract", part_size=PART_SIZE):
    options = ["--engine", engine, "--part-size", part_size, "--device", "cpu", "--output", folder]
    return [str(word) for word in (command, videos, "--model", trained, *options)]


def assert_same_rows(found, expected):
    """The batches of both hold the same pieces, so their values have the same bits."""
    assert found == expected


def test_actors_that_die_are_started_again(trained, videos, local_rows, tmp_path):
    folder = tmp_path / "out"
    with started(*words("ray", trained, videos, folder)) as driver:
        for number, title in enumerate((DECODER, MODEL)):
            wait_for_parts(driver, folder, 2 + 3 * number)
            kill_actor(driver, title)
            assert len(parts_of(folder)) < NUM_VIDEOS // PART_SIZE
        code, said = finish(driver)
    assert code == 1 and f"5 of {NUM_VIDEOS} videos failed" in said
    rows = read_rows(folder)
    assert len(rows) == NUM_VIDEOS and sum(row["error"] is not None for row in rows.values()) == 5
    assert_same_rows(rows, local_rows)


def test_a_run_that_is_killed_goes_on_where_it_was(trained, videos, local_rows, tmp_path):
    folder = tmp_path / "out"
    kept = run_killed(words("ray", trained, videos, folder), folder, NUM_VIDEOS // PART_SIZE // 3, kill_all)
    times = parts_of(folder)
    assert 0 < len(kept) < NUM_VIDEOS // PART_SIZE
    # The engines go on with each other's folders.
    with started(*words("local", trained, videos, folder)) as driver:
        code, said = finish(driver)
    assert code == 1 and num_new(said) <= NUM_VIDEOS - PART_SIZE * len(kept)
    assert times.items() <= parts_of(folder).items()
    assert_same_rows(read_rows(folder), local_rows)


def test_ctrl_c_says_what_is_kept_and_leaves_no_process(trained, videos, tmp_path):
    folder = tmp_path / "out"
    with started(*words("ray", trained, videos, folder)) as driver:
        wait_for_parts(driver, folder, 3)
        os.killpg(driver.pid, signal.SIGINT)
        code, said = finish(driver, timeout=60)
    done = PART_SIZE * len(parts_of(folder))
    assert (
        code == 130
        and f"The rows of {done} of {NUM_VIDEOS} videos are kept in {folder}; the same command continues" in said
    )
    # Nothing of Ray's is among it. A bar ends without a line break.
    for line in re.split(r"[\r\n]+|video/s\]", said):
        assert line.startswith(("Loading weights", "Videos", "hf-video: interrupted")) or not line, said


@pytest.mark.slow
@pytest.mark.parametrize(("command", "more"), [("index", []), ("detect", ["--person-threshold", "0.25"])])
def test_clips_and_persons_are_those_of_the_local_engine(command, more, tmp_path):
    model, videos = tmp_path / "model", write_videos(tmp_path / "videos", 8, 1)
    if command == "index":
        save_dual_encoder(model)
    else:
        for part in (make_detector(), make_processor()):
            part.save_pretrained(model)
    for engine in ("ray", "local"):
        with started(*words(engine, model, videos, tmp_path / engine, command), *more) as driver:
            code, said = finish(driver)
        assert code == 1 and "1 of 8 videos failed" in said, said
    of_ray, local = (ds.dataset(tmp_path / engine, format="parquet").to_table() for engine in ("ray", "local"))
    assert of_ray.equals(local) and len(set(local["key"].to_pylist())) == 8


def failing(task, trained, videos, folder):
    program = [sys.executable, "-m", "tests.cli.failing_bulk", task, str(trained), str(videos), str(folder)]
    return subprocess.run(program, capture_output=True, text=True, timeout=400, cwd=ROOT)


def test_a_video_that_ends_its_decoder_ends_nothing_else(trained, tmp_path):
    ended = failing("EndsItsDecoder", trained, write_videos(tmp_path / "videos", 8, 1), tmp_path / "out")
    assert ended.returncode == 2 and "1 of 8 videos are not done, because the processes that read them" in ended.stderr
    assert read_rows(tmp_path / "out").keys() == {f"{number:04d}" for number in range(8)} - {"0003"}


@pytest.mark.slow
def test_a_model_without_memory_ends_the_run(trained, tmp_path):
    ended = failing("RunsOutOfMemory", trained, write_videos(tmp_path / "videos", 8, 1), tmp_path / "out")
    assert ended.returncode == 2 and "The memory of the accelerator was not enough" in ended.stderr
    # That of the broken video needs no model.
    assert read_rows(tmp_path / "out").keys() <= {"0001"}
