"""What numba compiles for hf_video is kept in the user's cache folder, and nothing else is."""

import errno
import importlib.util
import itertools
import os
from pathlib import Path

import pytest
from numba.core.caching import IndexDataCacheFile

import hf_video
from hf_video.ops import numba_vectors
from hf_video.ops.selective_scan import cpu_kernels

SOURCE = """
import numba
from hf_video.ops.numba_vectors import compiled

@compiled
def ours(number):
    return number + 1

@numba.njit(cache=True)
def theirs(number):
    return number + 2
"""
NUMBERS = itertools.count()


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr(numba_vectors.config, "CACHE_DIR", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def start(tmp_path):
    """A function that imports the kernels as a process that has just begun."""
    path = tmp_path / "kernels.py"
    path.write_text(SOURCE)

    def start():
        specification = importlib.util.spec_from_file_location(f"kernels_{next(NUMBERS)}", path)
        module = importlib.util.module_from_spec(specification)
        specification.loader.exec_module(module)
        assert (module.ours(1), module.theirs(1)) == (2, 3)
        return module

    return start


def kernels_of(*modules):
    return [each for module in modules for each in vars(module).values() if hasattr(each, "py_func")]


def kept(folder):
    return sorted(path for path in folder.rglob("*.nb?"))


def test_kernels_are_kept_in_the_cache_folder_and_those_of_others_stay_where_they_were(cache, start, tmp_path):
    first, second = start(), start()
    assert first.ours.stats.cache_misses and second.ours.stats.cache_hits and not second.ours.stats.cache_misses
    assert Path(first.ours.stats.cache_path).parent == cache / "hf_video" / hf_video.__version__
    assert Path(first.theirs.stats.cache_path) == tmp_path / "__pycache__"
    assert all("ours" in path.name for path in kept(cache)) and len(kept(cache)) == 2
    assert "NUMBA_CACHE_DIR" not in os.environ and not numba_vectors.config.CACHE_DIR


def test_no_kernel_of_the_package_is_kept_beside_its_source():
    kernels = kernels_of(numba_vectors, cpu_kernels)
    assert numba_vectors.exp2 in kernels and cpu_kernels.scan_forward_unit in kernels
    root = Path(hf_video.__file__).parent
    assert not [each for each in kernels if each.stats.cache_path and root in Path(each.stats.cache_path).parents]


def test_the_folder_that_the_user_gives_to_numba_is_taken(cache, start, tmp_path, monkeypatch):
    monkeypatch.setattr(numba_vectors.config, "CACHE_DIR", str(tmp_path / "given"))
    assert Path(start().ours.stats.cache_path).parent == tmp_path / "given" / "hf_video" / hf_video.__version__
    assert not cache.exists()


@pytest.mark.parametrize("change", ["version", "kernel", "vectors"])
def test_nothing_old_is_taken(change, cache, start, tmp_path, monkeypatch):
    start()
    if change == "version":
        monkeypatch.setattr(numba_vectors, "__version__", "9.9.9")
    elif change == "kernel":
        (tmp_path / "kernels.py").write_text(SOURCE + "# another\n")
    else:
        (tmp_path / "vectors.py").write_text("# another")
        monkeypatch.setattr(numba_vectors, "VECTORS", tmp_path / "vectors.py")
    assert not start().ours.stats.cache_hits


@pytest.mark.parametrize("fault", ["no folder", "full disk", "lost", "cut"])
def test_kernels_run_where_nothing_can_be_kept_or_read(fault, cache, start, monkeypatch):
    if fault == "no folder":
        cache.write_text("a file")
    elif fault == "full disk":
        save = IndexDataCacheFile.save

        def fill(file, key, data):
            if "hf_video" in file._cache_path:
                raise OSError(errno.ENOSPC, "No space left on device")
            save(file, key, data)

        monkeypatch.setattr(IndexDataCacheFile, "save", fill)
    else:
        start()
        for path in kept(cache):
            path.unlink() if fault == "lost" else path.write_bytes(path.read_bytes()[:5])
    assert not start().ours.stats.cache_hits
