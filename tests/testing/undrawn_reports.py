"""The fixture `undrawn_reports`: to draw the pictures of a report takes longer than the training of a test."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hf_video.training import report


@pytest.fixture(autouse=True)
def undrawn_reports() -> Iterator[None]:
    """The pictures of reports are empty files. `test_report.py` draws them, and so do fixtures of a module or session,
    which are made before."""

    def touch(path: Path, write: Any) -> None:
        path.touch()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report, "replace_file", touch)
        yield
