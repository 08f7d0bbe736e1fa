"""Families share code as guarded copies alone: `# Copied from`, explained in `copies.py`."""

import shutil

import pytest

from .copies import ROOT, differing_copies, overwrite_copies, unguarded_copies, unguarded_lines

SOURCE = '''
class ViTDropPath(nn.Module):
    """Drops branches of ViT."""

    def forward(self, branch):
        # See vit.
        if self.rate == 0:
            return branch
        kept = branch.new_empty(len(branch)).bernoulli_(1 - self.rate)
        return branch * kept
'''
COPY = SOURCE.replace("ViT", "FastMamba").replace("vit", "fast_mamba")
COMMENT = "# Copied from hf_video.models.vit.modeling_vit.ViTDropPath with ViT->FastMamba"


@pytest.fixture
def write(tmp_path):
    """Writes a package of two families, and returns its root."""

    def write(copy, source=SOURCE):
        for family, text in {"vit": source, "fast_mamba": copy}.items():
            folder = tmp_path / "hf_video" / "models" / family
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "__init__.py").touch()
            (folder / f"modeling_{family}.py").write_text(text)
        return tmp_path

    return write


def test_every_copy_is_its_source():
    problems = differing_copies()
    assert not problems, "\n\n".join(problems)


def test_families_share_nothing_without_a_comment():
    groups = ["\n  ".join(definition.place for definition in group) for group in unguarded_copies()]
    assert not groups, "the same code without `# Copied from`:\n  " + "\n\n  ".join(groups)


def test_a_copy_with_other_names_is_its_source(write):
    root = write(f"{COMMENT}{COPY}")
    assert not differing_copies(root)
    assert not unguarded_copies(root)


@pytest.mark.parametrize("old", ["1 - self.rate", "# See fast_mamba.", "Drops branches of FastMamba."])
def test_a_planted_difference_is_found(write, old):
    (problem,) = differing_copies(write(COMMENT + COPY.replace(old, old.replace("e", "3"))))
    assert "-" in problem and old in problem and old.replace("e", "3") in problem


def test_where_lines_are_broken_does_not_matter(write):
    broken = COPY.replace("branch.new_empty(len(branch))", "branch.new_empty(\n            len(branch)\n        )")
    assert broken != COPY
    assert not differing_copies(write(COMMENT + broken))


def test_a_method_and_several_replacements(write):
    method = COPY[COPY.index("    def") :].replace("rate", "drop_prob").replace("bernoulli_", "normal_")
    comment = "    # Copied from hf_video.models.vit.modeling_vit.ViTDropPath.forward with "
    replacements = "rate->drop_prob, bernoulli_->normal_, ViT->FastMamba"
    assert not differing_copies(write(f"class FastMambaNoise:\n{comment}{replacements}\n{method}"))
    (problem,) = differing_copies(write(f"class FastMambaNoise:\n{comment}{replacements[:15]}\n{method}"))
    assert "+    kept = branch.new_empty(len(branch)).normal_(1 - self.drop_prob)" in problem


def test_copies_are_brought_up_to_date(write, capsys):
    method = "    # Copied from hf_video.models.vit.modeling_vit.ViTDropPath.forward with ViT->FastMamba\n"
    method += COPY[COPY.index("    def") :]
    text = f"{COMMENT}{COPY}\n\nclass FastMambaNoise:\n    name = 'noise'\n\n{method}"
    root = write(text.replace("1 - self.rate", "self.rate").replace("Drops", "Leaves out"))
    overwrite_copies(root)
    assert (root / "hf_video/models/fast_mamba/modeling_fast_mamba.py").read_text() == text
    assert "FastMambaNoise.forward" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("comment", "message"),
    [
        (COMMENT.replace("ViTDropPath", "ViTDropout"), "there is no hf_video.models.vit.modeling_vit.ViTDropout"),
        (COMMENT.replace("modeling_vit", "drop_path"), "there is no hf_video.models.vit.drop_path.ViTDropPath"),
        (COMMENT.replace("->", "=>"), "expected `# Copied from package.module.Name with Old->New"),
        (f"{COMMENT}\n", "directly above a class or function"),
    ],
)
def test_a_comment_that_guards_nothing_is_found(write, comment, message):
    (problem,) = differing_copies(write(comment + COPY))
    assert message in problem


def test_shared_code_without_a_comment_is_found(write):
    root = write(COPY.replace("Drops branches", "Leaves out branches"))
    ((first, second),) = unguarded_copies(root)
    assert {first.name, second.name} == {"ViTDropPath", "FastMambaDropPath"}
    lines = unguarded_lines(root)
    assert lines.pop(("fast_mamba", "vit")) == 7
    assert lines and not any(lines.values())


def test_a_shared_method_and_a_renamed_function_are_found(write):
    root = write(COPY.replace("class FastMambaDropPath", "@decorated\nclass FastMambaDropPath"))
    ((first, second),) = unguarded_copies(root)
    assert first.name.endswith("DropPath.forward") and second.name.endswith("DropPath.forward")
    function = "def {}(x):\n    a = x + 1\n    b = a * x\n    c = a * b\n    return c\n"
    (names,) = unguarded_copies(write(function.format("double"), function.format("twice")))
    assert {each.name for each in names} == {"double", "twice"}


def test_a_difference_planted_in_this_package_is_found(tmp_path):
    shutil.copytree(ROOT / "hf_video", tmp_path / "hf_video", ignore=shutil.ignore_patterns("__pycache__"))
    file = tmp_path / "hf_video" / "models" / "videomamba" / "modeling_videomamba.py"
    stem = "hf_video.models.videovit.modeling_videovit."
    file.write_text(f"{file.read_text()}\n\n# Copied from {stem}make_norm\ndef make_norm():\n    return None\n")
    assert any("make_norm" in problem for problem in differing_copies(tmp_path))
