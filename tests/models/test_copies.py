"""Families share code as guarded copies alone: `# Copied from`, explained in `copies.py`."""

import shutil

from .copies import ROOT, differing_copies, overwrite_copies


def test_every_copy_is_its_source():
    problems = differing_copies()
    assert not problems, "\n\n".join(problems)


def test_a_difference_is_found_and_brought_up_to_date(tmp_path):
    shutil.copytree(ROOT / "hf_video", tmp_path / "hf_video", ignore=shutil.ignore_patterns("__pycache__"))
    file = tmp_path / "hf_video" / "models" / "videomamba" / "modeling_videomamba.py"
    text = file.read_text()
    assert "keep_prob = 1 - self.drop_prob" in text
    file.write_text(text.replace("keep_prob = 1 - self.drop_prob", "keep_prob = self.drop_prob"))
    (problem,) = differing_copies(tmp_path)
    assert "VideoMambaDropPath" in problem
    overwrite_copies(tmp_path)
    assert not differing_copies(tmp_path)
