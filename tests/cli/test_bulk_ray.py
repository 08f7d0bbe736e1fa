"""`--engine ray`: whatever dies, each video has one row, and nothing that is done is done again."""

import os
import re
import signal
from importlib.util import find_spec

import pytest

from hf_video.cli.main import main

from .bulk_runs import (
    DECODER,
    MODEL,
    finish,
    kill_actor,
    kill_all,
    kill_driver,
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
    pytest.mark.skipif(find_spec("ray") is None, reason="Ray is missing: pip install hf-video-models[test-extras]"),
]
PART_SIZE = 4


@pytest.fixture(scope="session")
def videos(tmp_path_factory):
    """Eighty videos, ten of them broken."""
    return write_videos(tmp_path_factory.mktemp("bulk") / "videos", 80, 10)


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
            assert len(parts_of(folder)) < 80 // PART_SIZE
        code, said = finish(driver)
    assert code == 1 and "80 rows, 80 of them new\n" in said and "10 of 80 videos failed" in said
    rows = read_rows(folder)
    assert len(rows) == 80 and sum(row["error"] is not None for row in rows.values()) == 10
    assert_same_rows(rows, local_rows)


@pytest.mark.parametrize("kill", [kill_driver, kill_all])
def test_a_run_that_is_killed_goes_on_where_it_was(trained, videos, local_rows, tmp_path, kill):
    folder = tmp_path / "out"
    kept = run_killed(words("ray", trained, videos, folder), folder, 80 // PART_SIZE // 3, kill)
    times = parts_of(folder)
    assert 0 < len(kept) < 80 // PART_SIZE
    # The engines go on with each other's folders.
    engine = "ray" if kill is kill_all else "local"
    with started(*words(engine, trained, videos, folder)) as driver:
        code, said = finish(driver)
    assert code == 1 and num_new(said) <= 80 - PART_SIZE * len(kept)
    assert times.items() <= parts_of(folder).items()
    assert_same_rows(read_rows(folder), local_rows)


def test_ctrl_c_says_what_is_kept_and_leaves_no_process(trained, videos, tmp_path):
    folder = tmp_path / "out"
    with started(*words("ray", trained, videos, folder)) as driver:
        wait_for_parts(driver, folder, 3)
        os.killpg(driver.pid, signal.SIGINT)
        code, said = finish(driver, timeout=60)
    done = PART_SIZE * len(parts_of(folder))
    assert code == 130 and f"The rows of {done} of 80 videos are kept in {folder}; the same command continues" in said
    # Nothing of Ray's is among it. A bar ends without a line break.
    for line in re.split(r"[\r\n]+|video/s\]", said):
        assert line.startswith(("Loading weights", "Videos", "hf-video: interrupted")) or not line, said


def test_classes_are_those_of_the_local_engine(trained, videos, tmp_path):
    for engine in ("ray", "local"):
        with started(*words(engine, trained, videos, tmp_path / engine, "predict")) as driver:
            code, said = finish(driver)
        assert code == 1 and "80 rows, 80 of them new\n" in said
    assert_same_rows(read_rows(tmp_path / "ray"), read_rows(tmp_path / "local"))
