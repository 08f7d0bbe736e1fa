import json
import shutil
import signal
import threading

import pytest

from hf_video.cli.main import main
from hf_video.evaluation import classes as evaluation


def snapshot(folder):
    return sorted((str(path), path.stat().st_mtime_ns) for path in folder.rglob("*"))


def test_the_metrics_of_the_report_are_found_again_and_nothing_is_written(digits, trained, tmp_path, says):
    before = snapshot(trained)
    words = ["--model", str(trained), "--json", "--device", "cpu", "--output", str(tmp_path / "result.json")]
    result = json.loads(says("evaluate", digits, *words))
    assert result == json.loads((tmp_path / "result.json").read_text())
    report = json.loads((trained / "report" / "metrics.json").read_text())
    for key in ("split", "num_videos", "top1_accuracy", "top5_accuracy", "class_names", "confusion_matrix"):
        assert result[key] == report[key]
    assert snapshot(trained) == before


def test_videos_of_the_training_are_counted(digits, trained, tmp_path, says):
    """The training held some of its 24 videos out for validation, and used those of test/ for the report alone."""
    words = ["--model", str(trained), "--device", "cpu"]
    assert "warning" not in says("evaluate", digits, *words)
    counts = json.loads((trained / "training_facts.json").read_text())["data"]
    num_train, num_chosen = (counts[name]["num_videos"] for name in ("train", "validation"))
    assert num_train + num_chosen == 24
    rows = [f"{video},{video.parent.name}" for video in sorted(digits.rglob("*.mp4"))]
    (tmp_path / "all.csv").write_text("\n".join(["path,label", *rows]))
    out = says("evaluate", tmp_path / "all.csv", *words)
    assert f"warning: {num_train} of these 32 videos were trained on" in out
    assert f"warning: {num_chosen} of these 32 videos were used to choose the checkpoint" in out
    known = json.loads(says("evaluate", tmp_path / "all.csv", *words, "--json"))["known_videos"]
    assert known == {"train": num_train, "validation": num_chosen}


def test_several_views_another_split_and_a_table(digits, trained, says):
    words = ["--split", "train", "--num-clips", "2", "--num-crops", "3", "--dtype", "bfloat16", "--device", "cpu"]
    out = says("evaluate", digits, "--model", trained, *words)
    assert "24 videos of the train split, 2 clips x 3 crops each" in out
    assert "top-1 accuracy" in out and "top-5 accuracy" in out and "\ndown-left " in out


def test_wrong_options_are_named(digits, trained, fails):
    for words, named in (
        (["--split", "validation"], "--split validation"),
        (["--output", "/no/such/folder/result.json"], "/no/such/folder"),
        (["--output", digits], f"--output {digits} exists"),
        (["--device", "gpu"], "--device gpu"),
    ):
        assert named in fails("evaluate", digits, "--model", trained, *words)
    assert "--model" in fails("evaluate", digits)


def test_classes_that_the_model_does_not_know(digits, trained, tmp_path, fails):
    shutil.copytree(digits / "test", tmp_path / "data")
    (tmp_path / "data" / "left-up").rename(tmp_path / "data" / "sideways")
    assert "sideways" in fails("evaluate", tmp_path / "data", "--model", trained)


def test_broken_videos_end_the_command_or_are_left_out(digits, trained, tmp_path, says, fails):
    shutil.copytree(digits / "test", tmp_path / "data")
    broken = min((tmp_path / "data").rglob("*.mp4"))
    broken.write_bytes(b"no video")
    words = ["evaluate", tmp_path / "data", "--model", trained, "--device", "cpu", "--batch-size", "1"]
    assert str(broken) in fails(*words)
    words = [*map(str, words), "--on-error", "skip"]
    result = json.loads(says(*words, "--json", "--predictions", tmp_path / "table.csv"))
    assert result["num_videos"] == 7 and result["broken_videos"] == [str(broken)]
    table = (tmp_path / "table.csv").read_text()
    assert len(table.splitlines()) == 8 and str(broken) not in table
    out = says(*words)
    assert "7 videos of the train split" in out and f"1 videos could not be read:\n  {broken}" in out


def test_a_table_of_predictions(digits, trained, tmp_path, says, fails):
    table = tmp_path / "table.csv"
    words = ["evaluate", str(digits), "--model", str(trained), "--device", "cpu", "--predictions", str(table)]
    result = json.loads(says(*words, "--json"))
    lines = table.read_text().splitlines()
    assert len(lines) == 1 + result["num_videos"]
    assert sum(",True," in line for line in lines) == round(result["top1_accuracy"] * result["num_videos"])
    assert 0 <= result["calibration_error"] <= 1 and 0 <= result["mean_class_accuracy"] <= 1
    assert f"--predictions {table} exists" in fails(*words)
    assert "table.txt is not a table" in fails(*words[:-1], tmp_path / "table.txt")


def test_two_results_in_one_file_are_refused_before_any_work(digits, trained, tmp_path, fails):
    (tmp_path / "link").symlink_to(tmp_path)
    words = ["--output", tmp_path / "table.csv", "--predictions", tmp_path / "link" / "table.csv"]
    message = fails("evaluate", digits, "--model", trained, *words)
    assert f"--output and --predictions are both {tmp_path / 'table.csv'}" in message
    assert not (tmp_path / "table.csv").exists()


def test_a_file_that_came_meanwhile_is_left_alone(digits, trained, tmp_path, capsys, monkeypatch):
    file = tmp_path / "result.json"
    evaluate_dataset = evaluation.evaluate_dataset

    def evaluate(*args, **kwargs):
        file.write_text("mine")
        return evaluate_dataset(*args, **kwargs)

    monkeypatch.setattr(evaluation, "evaluate_dataset", evaluate)
    words = ["evaluate", str(digits), "--model", str(trained), "--device", "cpu", "--output", str(file)]
    assert main(words) == 2
    said = capsys.readouterr()
    assert "top-1 accuracy" in said.out and f"--output {file} exists" in said.err
    assert file.read_text() == "mine"


@pytest.fixture
def heard_ctrl_c():
    """A shell starts what runs behind it with SIGINT ignored."""
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, previous)


def test_ctrl_c_ends_the_command_and_its_reading_threads(heard_ctrl_c, digits, trained, capsys, monkeypatch):
    monkeypatch.setattr(evaluation, "predict_scores", lambda *words: signal.raise_signal(signal.SIGINT))
    assert main(["evaluate", str(digits), "--model", str(trained), "--batch-size", "2"]) == 130
    error = capsys.readouterr().err
    assert "hf-video: interrupted." in error and "Traceback" not in error
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("reading")]
