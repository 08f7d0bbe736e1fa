import io
import tarfile
from pathlib import Path

import pytest

from . import distribution
from .distribution import DistributionUnavailableError


def _archive(folder: Path, version: str, **members: str) -> Path:
    path = folder / "transformers-1.0.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        for name, text in {"PKG-INFO": f"Version: {version}\n", **members}.items():
            member = tarfile.TarInfo(f"transformers-1.0/{name}")
            member.size = len(text)
            tar.addfile(member, io.BytesIO(text.encode()))
    return path


def test_extracts_the_tests_alone(tmp_path: Path) -> None:
    archive = _archive(tmp_path, "1.0", **{"tests/test_x.py": "x = 1", "src/module.py": "raise SystemExit"})
    folder = distribution._extract_tests(archive, "1.0", tmp_path)
    assert (folder / "test_x.py").read_text() == "x = 1"
    assert not (tmp_path / "transformers-1.0" / "src").exists()


def test_refuses_members_outside_the_folder(tmp_path: Path) -> None:
    archive = _archive(tmp_path, "1.0", **{"tests/../../../escaped.py": "x = 1"})
    with pytest.raises(tarfile.OutsideDestinationError):
        distribution._extract_tests(archive, "1.0", tmp_path / "destination")
    assert not (tmp_path.parent / "escaped.py").exists()


def test_refuses_another_version(tmp_path: Path) -> None:
    with pytest.raises(DistributionUnavailableError, match="declares version 2.0, expected 1.0"):
        distribution._extract_tests(_archive(tmp_path, "2.0"), "1.0", tmp_path)


@pytest.mark.parametrize(("ci", "outcome"), [("", pytest.skip.Exception), ("true", DistributionUnavailableError)])
def test_absence_skips_with_a_warning_or_fails(ci: str, outcome: type, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", ci)
    monkeypatch.setattr(distribution, "_import_package", lambda: DistributionUnavailableError("no network"))
    with pytest.raises(outcome, match="no network"):
        if ci:
            distribution.load("test_modeling_common")
        else:
            with pytest.warns(UserWarning, match="no network"):
                distribution.load("test_modeling_common")
