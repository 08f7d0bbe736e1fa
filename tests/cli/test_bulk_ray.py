"""`--engine ray`: whatever dies, the rows are those of the local engine, and none is there twice."""

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from hf_video.cli.main import main
from tests.testing.search_models import save_dual_encoder

from ..training.detection_testing import make_detector, make_processor
from .bulk_runs import (
    assert_same_rows,
    finish,
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
PART_SIZE, NUM_VIDEOS = 4, 60
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


def words(engine, trained, videos, folder, command="extract", *more):
    options = ["--engine", engine, "--part-size", PART_SIZE, "--device", "cpu", "--output", folder, *more]
    return [str(word) for word in (command, videos, "--model", trained, *options)]


def test_a_node_that_dies_takes_no_row_with_it(trained, videos, local_rows, tmp_path):
    """Two nodes on one machine, of which one is killed in the middle."""
    import ray
    from ray.cluster_utils import Cluster

    folder = tmp_path / "out"
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    try:
        node = cluster.add_node(num_cpus=2)

        def kill():
            while len(parts_of(folder)) < 2:
                time.sleep(0.01)
            cluster.remove_node(node, allow_graceful=False)

        killing = threading.Thread(target=kill)
        killing.start()
        more = ["--ray-address", cluster.address]
        assert main(words("ray", trained, videos, folder, "extract", *more)) == 1
        killing.join()
    finally:
        ray.shutdown()
        cluster.shutdown()
    assert_same_rows(read_rows(folder), local_rows, "features")


def test_a_run_that_is_killed_goes_on_where_it_was(trained, videos, local_rows, tmp_path):
    folder = tmp_path / "out"
    assert run_killed(words("ray", trained, videos, folder), folder, 2, kill_all)
    # The engines go on with each other's folders. A part that was cut off is made again.
    with started(*words("local", trained, videos, folder)) as driver:
        code, said = finish(driver)
    assert code == 1 and 0 < num_new(said) < len(local_rows)
    assert_same_rows(read_rows(folder), local_rows, "features")


def test_ctrl_c_says_what_is_kept(trained, videos, tmp_path):
    folder = tmp_path / "out"
    with started(*words("ray", trained, videos, folder)) as driver:
        wait_for_parts(driver, folder, 1)
        os.killpg(driver.pid, signal.SIGINT)
        code, said = finish(driver, timeout=60)
    assert code == 130 and f"of {NUM_VIDEOS} videos are kept in {folder}; the same command continues" in said


@pytest.mark.slow
@pytest.mark.parametrize(("command", "column"), [("index", "vector"), ("detect", "persons")])
def test_clips_and_persons_are_those_of_the_local_engine(command, column, tmp_path):
    model, videos = tmp_path / "model", write_videos(tmp_path / "videos", 8, 1)
    if command == "index":
        save_dual_encoder(model)
    else:
        for part in (make_detector(), make_processor()):
            part.save_pretrained(model)
    for engine in ("ray", "local"):
        with started(*words(engine, model, videos, tmp_path / engine, command)) as driver:
            code, said = finish(driver)
        assert code == 1 and "1 of 8 videos failed" in said, said
    of_ray, local = (read_rows(tmp_path / engine) for engine in ("ray", "local"))
    if command == "index":
        assert_same_rows(of_ray, local, column)
    else:
        assert of_ray.keys() == local.keys()
        for place, row in local.items():
            assert len(row[column] or []) == len(of_ray[place][column] or [])


def test_a_local_run_that_is_killed_loses_no_row_and_has_none_twice(trained, videos, local_rows, tmp_path):
    folder = tmp_path / "out"
    run_killed(words("local", trained, videos, folder), folder, 2, lambda driver: driver.kill())
    # As a write that was cut off.
    shutil.copy(next(folder.glob("part-*")), folder / ("part-" + "0" * 32 + "-000000-0.parquet"))
    assert main(words("local", trained, videos, folder)) == 1
    assert_same_rows(read_rows(folder), local_rows, "features")


def failing(what, trained, videos, folder):
    program = [sys.executable, "-m", "tests.cli.failing_bulk", what, str(trained), str(videos), str(folder)]
    return subprocess.run(program, capture_output=True, text=True, timeout=400, cwd=ROOT)


def test_a_video_that_ends_its_decoder_ends_nothing_else(trained, tmp_path):
    ended = failing("decoder", trained, write_videos(tmp_path / "videos", 8, 1), tmp_path / "out")
    assert ended.returncode == 2 and "1 of 8 videos are not done, such as" in ended.stderr, ended.stderr
    assert {key for key, _ in read_rows(tmp_path / "out")} == {f"{number:04d}" for number in range(8)} - {"0003"}


def test_a_model_without_memory_ends_the_run(trained, tmp_path):
    ended = failing("memory", trained, write_videos(tmp_path / "videos", 8, 1), tmp_path / "out")
    assert ended.returncode == 2 and "The memory of the accelerator was not enough" in ended.stderr, ended.stderr
