"""`hf-video train` on classes of different sizes."""

import json

import pytest

from hf_video.cli.main import main

from .conftest import TINY_MODEL, TINY_RUN

NAMES = ("left-up", "right-up", "up-left")


@pytest.fixture
def imbalanced(digits, tmp_path):
    """Training videos of three classes: two, two and one, beside one of each for validation."""
    folder = tmp_path / "data"
    folder.mkdir()
    rows = {
        "train": [(name, number) for name in NAMES for number in range(2)][:-1],
        "validation": [(name, 2) for name in NAMES],
    }
    for split, listed in rows.items():
        lines = [f"{digits / 'train' / name / f'{number:04d}.mp4'},{name}" for name, number in listed]
        (folder / f"{split}.csv").write_text("\n".join(["path,label", *lines]) + "\n")
    return folder


def command(data, out, *words):
    return ["train", str(data), "--output-dir", str(out), *TINY_MODEL, *TINY_RUN, "--max-steps=1", *words]


def test_weights_are_kept_with_the_run_and_the_report_counts_videos(imbalanced, tmp_path, fails):
    weights, out = tmp_path / "weights.json", tmp_path / "out"
    weights.write_text(json.dumps(dict.fromkeys(NAMES, 1) | {"up-left": 2.5}))
    words = [f"--class-weights={weights}", "--loss=focal", "--focal-gamma=1.5", "--sampler=sqrt"]
    assert main(command(imbalanced, out, *words)) == 0
    options = json.loads((out / "train_options.json").read_text())
    assert options["class_weights"] == {"left-up": 1.0, "right-up": 1.0, "up-left": 2.5}
    assert (options["loss"], options["focal_gamma"], options["sampler"]) == ("focal", 1.5, "sqrt")
    assert "| 2 | up-left | 1 | 1 | " in (out / "report" / "report.md").read_text()
    # The same weights may be given again, under any name; others may not. Without the file the run has them.
    resume = ["train", imbalanced, "--output-dir", out, "--resume", "--max-steps=2"]
    other = tmp_path / "other.csv"
    other.write_text("left-up,1\nright-up,1\nup-left,2\n")
    assert "differs from the run being resumed ({'left-up': 1.0" in fails(*resume, "--class-weights", other)
    other.write_text("left-up,1\nright-up,1\nup-left,2.5\n")
    weights.unlink()
    assert main([*map(str, resume), f"--class-weights={other}"]) == 0
    assert main([*map(str, resume[:-1]), "--max-steps=3"]) == 0


def test_a_class_whose_training_videos_are_all_broken(imbalanced, tmp_path, fails):
    broken = tmp_path / "broken.mp4"
    broken.write_bytes(b"no video")
    lines = (imbalanced / "train.csv").read_text().splitlines()
    (imbalanced / "train.csv").write_text("\n".join([*lines[:-1], f"{broken},up-left"]) + "\n")
    words = command(imbalanced, tmp_path / "out", "--on-error=skip", "--class-weights=balanced")
    assert "class_weights=balanced has no weight for up-left: none or each of the 4 training videos has" in fails(
        *words
    )
    assert not (tmp_path / "out").exists()


def test_videos_of_several_classes(digits, tmp_path):
    labels = {"left-up": "left;up", "right-up": "right;up", "up-left": "", "up-right": "right"}
    lines = [
        f"{digits / 'train' / name / f'{number:04d}.mp4'},{label}"
        for name, label in labels.items()
        for number in range(3)
    ]
    data = tmp_path / "several.csv"
    data.write_text("\n".join(["path,labels", *lines]) + "\n")
    words = ["--class-weights=balanced", "--loss=focal", "--sampler=balanced"]
    assert main(command(data, tmp_path / "out", *words)) == 0
    report = (tmp_path / "out" / "report" / "report.md").read_text()
    assert "| id | class | training videos | support | average precision | recall at 0.5 |" in report
