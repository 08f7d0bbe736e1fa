"""The processes that launchers start: which is the first, and that none trains alone."""

from types import SimpleNamespace

import pytest

from hf_video.processes import is_first_process, join_processes, launched_processes
from tests.testing.processes import launched, run_forked

JOINING = {"use_cpu": True, "backend": None, "timeout": 60}
DECIDING = """
from hf_video.processes import decided_by_first, join_processes
join_processes(use_cpu=True, backend=None, timeout=60)
print(decided_by_first(lambda: "decided"))
"""


def test_of_all_launchers_variables_the_first_one_counts_as_in_accelerate(monkeypatch):
    assert (launched_processes(), is_first_process()) == (1, True)
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "1")
    assert (launched_processes(), is_first_process()) == (2, False)
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("RANK", "0")
    assert (launched_processes(), is_first_process()) == (4, True)


def test_the_first_one_decides_where_a_launcher_runs_under_another():
    """As under mpirun or srun, each of whose tasks has a rank of its own."""
    for process in run_forked(*launched(["-c", DECIDING], 2, PMI_RANK="1", OMPI_COMM_WORLD_RANK="1")):
        assert (process.returncode, process.stdout) == (0, "decided\n"), process.stderr


@pytest.mark.parametrize("name", ["WORLD_SIZE", "OMPI_COMM_WORLD_SIZE"])
def test_processes_that_would_train_alone_are_refused(name, monkeypatch):
    monkeypatch.setenv(name, "2")
    monkeypatch.setattr("accelerate.PartialState", lambda **options: SimpleNamespace(num_processes=2))
    join_processes(**JOINING)
    monkeypatch.setattr("accelerate.PartialState", lambda **options: SimpleNamespace(num_processes=1))
    with pytest.raises(ValueError, match="A launcher started 2 processes, but this one would train alone"):
        join_processes(**JOINING)


def test_tasks_of_slurm_that_would_train_alone_are_refused(monkeypatch):
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "2")
    with pytest.raises(ValueError, match="srun started 2 tasks that do not know of each other: let it start torchrun"):
        join_processes(**JOINING)
