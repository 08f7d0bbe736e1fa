"""`hf-video evaluate` of classifiers, of files of segments, and of models of videos and texts."""

import csv
import json
import re
import shutil
import signal
import threading
from pathlib import Path

import pytest

from hf_video.cli.main import main
from hf_video.evaluation import classes as evaluation
from hf_video.metrics import wilson_interval
from tests.testing.videos import encode_video, make_frames

from ..models.video_text.retrieval_model import write_retrieval_model


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
    assert f"warning: trained on: {num_train} of these 32 videos" in out
    assert f"warning: used to choose the checkpoint: {num_chosen} of these 32 videos" in out
    known = json.loads(says("evaluate", tmp_path / "all.csv", *words, "--json"))["known_videos"]
    assert known == {"train": num_train, "validation": num_chosen}


def test_several_views_another_split_and_a_table(digits, trained, says):
    words = ["--split", "train", "--num-clips", "2", "--num-crops", "3", "--dtype", "bfloat16", "--device", "cpu"]
    out = says("evaluate", digits, "--model", trained, *words)
    assert "24 videos of the train split, 2 clips x 3 crops each" in out
    (line,) = (line for line in out.splitlines() if line.startswith("top-1 accuracy"))
    assert " (chance 12.5%, 95% interval " in line and "top-5 accuracy" in out and "\ndown-left " in out


def test_wrong_options_are_named(digits, trained, tmp_path, fails):
    for words, named in (
        (["--split", "validation"], "--split validation"),
        (["--output", "/no/such/folder/result.json"], "/no/such/folder"),
        (["--output", digits], f"--output {digits} exists"),
        (["--device", "gpu"], "--device gpu"),
    ):
        assert named in fails("evaluate", digits, "--model", trained, *words)
    assert "--model" in fails("evaluate", digits)
    (tmp_path / "link").symlink_to(tmp_path)
    words = ["--output", tmp_path / "table.csv", "--predictions", tmp_path / "link" / "table.csv"]
    message = fails("evaluate", digits, "--model", trained, *words)
    assert f"--output and --predictions are both {tmp_path / 'table.csv'}" in message


def test_classes_that_the_model_does_not_know(digits, trained, tmp_path, fails):
    shutil.copytree(digits / "test", tmp_path / "data")
    (tmp_path / "data" / "left-up").rename(tmp_path / "data" / "sideways")
    assert "sideways" in fails("evaluate", tmp_path / "data", "--model", trained)


def test_broken_videos_end_the_command_or_are_left_out(digits, trained, tmp_path, says, fails):
    shutil.copytree(digits / "test", tmp_path / "data")
    broken, other, *_ = sorted((tmp_path / "data").rglob("*.mp4"))
    broken.write_bytes(b"no video")
    whole = other.read_bytes()
    other.write_bytes(b"")
    words = ["evaluate", tmp_path / "data", "--model", trained, "--device", "cpu", "--batch-size", "1"]
    message = fails(*words)
    assert str(broken) in message and str(other) in message and "--on-error skip" in message
    other.write_bytes(whole)
    words = [*map(str, words), "--on-error", "skip"]
    result = json.loads(says(*words, "--json", "--predictions", tmp_path / "table.csv"))
    assert result["num_videos"] == 7 and result["broken_videos"] == [str(broken)]
    table = (tmp_path / "table.csv").read_text()
    assert len(table.splitlines()) == 8 and str(broken) not in table
    out = says(*words)
    assert "7 videos, 1 clip" in out and f"1 video could not be read:\n  {broken}" in out


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


def test_the_values_of_a_column_are_measured(digits, trained, tmp_path, says, fails):
    videos = sorted((digits / "test").rglob("*.mp4"))
    rows = [f"{video};{video.parent.name};{number % 3 + 9};" for number, video in enumerate(videos)]
    file, table = tmp_path / "list.csv", tmp_path / "table.csv"
    file.write_text("\n".join(["File;Class;Camera;Day", *rows]))
    words = ["evaluate", file, "--model", trained, "--device", "cpu"]
    result = json.loads(says(*words, "--by", "camera", "--predictions", table, "--json"))
    assert result["by_column"] == "Camera" and [*result["by"]] == ["9", "10", "11"]
    written = [*csv.DictReader(table.open())]
    for camera, figures in result["by"].items():
        is_right = [row["is_right"] == "True" for row in written if row["Camera"] == camera]
        assert figures["num_videos"] == len(is_right)
        assert figures["top1_accuracy"] == pytest.approx(sum(is_right) / len(is_right))
        assert figures["top1_interval"] == [*wilson_interval(figures["top1_accuracy"], len(is_right))]
        assert figures["chance"] == 1 / len(is_right), "each of the videos is of a class of its own"
    out = says(*words, "--by", "Camera")
    assert [line.split()[:3] for line in out.splitlines() if line.endswith("33.3%")][0] == ["9", "3", "videos"]
    assert "only video, Camera, Day" in fails(*words, "--by", "person")
    assert f"8 of 8 rows are empty there, such as that of {videos[0]}" in fails(*words, "--by", "Day")
    assert "no such column" in fails("evaluate", digits, *words[2:], "--by", "Camera")


def test_some_rows_of_a_training_are_told_apart(digits, trained, tmp_path, says):
    kept = json.loads((trained / "trained_videos.json").read_text())["splits"]
    chosen = {name: [video for video, *_ in kept[name][:2]] for name in ("train", "validation")}
    rows = [f"{video},{Path(video).parent.name}" for video in chosen["train"] + chosen["validation"]]
    (tmp_path / "part.csv").write_text("\n".join(["path,label", *rows]))
    words = ["evaluate", tmp_path / "part.csv", "--model", trained, "--device", "cpu", "--json"]
    result = json.loads(says(*words))
    assert (result["part_of_training"], result["known_videos"]) == ("held out", {"train": 0, "validation": 2})
    assert json.loads(says(*words, "--split", "train"))["known_videos"] == {"train": 2, "validation": 0}


def test_ctrl_c_ends_the_command_and_its_reading_threads(heard_ctrl_c, digits, trained, capsys, monkeypatch):
    before = {*threading.enumerate()}
    monkeypatch.setattr(evaluation, "predict_scores", lambda *words: signal.raise_signal(signal.SIGINT))
    assert main(["evaluate", str(digits), "--model", str(trained), "--batch-size", "2"]) == 130
    error = capsys.readouterr().err
    assert "hf-video: interrupted." in error and "Traceback" not in error
    assert not [each for each in {*threading.enumerate()} - before if each.name.startswith("reading")]


def entry(label, start, end, **others):
    return {"label": label, "segment": [start, end], **others}


@pytest.fixture
def files(tmp_path):
    """Predictions and ground truth: one of two dives is found, and one of one run, less well."""
    predictions, truth = tmp_path / "predictions.json", tmp_path / "truth.json"
    found = [entry("dive", 0, 10, score=0.9), entry("run", 20, 26, score=0.8)]
    predictions.write_text(json.dumps({"version": "1", "results": {"a": found}, "external_data": {}}))
    known = [entry("dive", 0, 10), entry("dive", 30, 40), entry("run", 20, 30)]
    database = {
        "a": {"subset": "test", "duration": 60, "annotations": known},
        "b": {"subset": "training", "duration": 60, "annotations": [entry("run", 0, 5)]},
    }
    truth.write_text(json.dumps({"database": database}))
    return [str(predictions), "--task", "segments", "--ground-truth", str(truth)]


def test_a_table_for_people(files, capsys):
    assert main(["evaluate", *files, "--subset", "test", "--tiou", "0.5", "0.7"]) == 0
    out, err = capsys.readouterr()
    lines = [re.split(r"  +", line.strip()) for line in out.splitlines()]
    assert lines[0] == ["3 segments of 2 classes in 1 video, 2 predictions"]
    # dive: one of two, 50%. run: IoU 0.6.
    assert ["temporal IoU", "0.50", "0.70", "mean"] in lines
    assert ["average precision", "75.0%", "25.0%", "50.0%"] in lines
    assert ["recall", "66.7%", "33.3%"] in lines and ["precision", "100.0%", "50.0%"] in lines
    assert ["F1", "80.0%", "40.0%"] in lines
    assert ["median border error", "0.00 s", "0.00 s"] in lines
    assert ["dive", "50.0%", "50.0%", "2"] in lines and ["run", "100.0%", "0.0%", "1"] in lines
    assert err == ""


def test_json_on_stdout_and_in_a_file_and_warnings_on_stderr(files, tmp_path, capsys):
    output = tmp_path / "figures.json"
    assert main(["evaluate", *files, "--json", "--output", str(output)]) == 0
    out, err = capsys.readouterr()
    result = json.loads(out)
    assert result == json.loads(output.read_text())
    assert result["tious"] == [0.3, 0.4, 0.5, 0.6, 0.7] and result["num_segments"] == 4
    assert result["classes"]["run"]["average_precision"] == [0.5, 0.5, 0.5, 0.5, 0]
    assert err.startswith("warning: Without predictions") and err.endswith("1 of 2 videos ('b').\n")


def test_mistakes_are_sentences(files, tmp_path, fails):
    assert "`database` is missing" in fails("evaluate", *files[:-1], files[0])
    assert "does not exist" in fails("evaluate", tmp_path / "none.json", *files[1:])
    assert "no video of the subset 'validation'" in fails("evaluate", *files, "--subset", "validation")
    assert "needs --ground-truth" in fails("evaluate", files[0], "--task", "segments")
    assert "no effect without task=segments" in fails("evaluate", files[0], "--model", "m", "--subset", "test")
    assert "above 0 and up to 1" in fails("evaluate", *files, "--tiou", "50")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_retrieval_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def captions(tmp_path_factory):
    folder = tmp_path_factory.mktemp("captioned")
    texts = ["A dog, running.", ["Two cats!", "A red ball - on the street"], "The man is cooking."]
    for number in range(len(texts)):
        encode_video(folder / f"{number}.mp4", make_frames(12 + number, 40, 48), fps=4)
    rows = [{"video": f"{number}.mp4", "caption": caption} for number, caption in enumerate(texts)]
    (folder / "test.json").write_text(json.dumps(rows))
    return folder / "test.json"


def recalls(capsys, data, model, *options):
    words = ["evaluate", str(data), "--task", "retrieval", "--model", str(model), "--device", "cpu", *options]
    assert main(words) == 0
    return capsys.readouterr().out


def test_both_passes_are_measured_both_ways(captions, model, tmp_path, capsys):
    out = recalls(capsys, captions, model, "--json", "--output", str(tmp_path / "result.json"))
    result = json.loads(out)
    assert json.loads((tmp_path / "result.json").read_text()) == result
    assert (result["num_videos"], result["num_texts"], result["k_test"]) == (3, 4, 128)
    names = {f"{way}_r{k}" for way in ("text_to_video", "video_to_text") for k in (1, 5, 10)}
    assert result["dual_encoder"].keys() == result["reranked"].keys() == names
    assert result["reranked"]["video_to_text_r5"] == 100
    table = recalls(capsys, captions, model, "--k-test", "2", "--max-length", "4")
    assert "3 videos and 4 texts\n" in table and "\nthe 2 best ranked again, text to video" in table


def test_paragraphs_of_the_first_seconds(captions, model, capsys):
    options = ("--paragraph", "--first-seconds", "1", "--k-test", "0", "--json")
    result = json.loads(recalls(capsys, captions, model, *options))
    assert (result["num_videos"], result["num_texts"]) == (3, 3)
    assert "reranked" not in result


def test_a_broken_video_is_left_out_if_asked(captions, model, tmp_path, capsys):
    rows = json.loads(captions.read_text())
    (tmp_path / "broken.mp4").write_bytes(b"no video")
    data = tmp_path / "rows.json"
    data.write_text(json.dumps([*rows, {"video": str(tmp_path / "broken.mp4"), "caption": "a car"}]))
    options = ("--video-root", str(captions.parent), "--on-error", "skip", "--json")
    result = json.loads(recalls(capsys, data, model, *options))
    assert (result["num_videos"], result["num_texts"]) == (3, 4)
    assert result["broken_videos"] == [str(tmp_path / "broken.mp4")]


def test_what_is_refused(captions, model, trained, fails):
    words = ("evaluate", captions, "--model", model)
    assert "no effect without task=retrieval" in fails(*words, "--k-test", "5")
    assert "no effect without task=classific" in fails(*words, "--task", "retrieval", "--num-clips", "2")
    assert "does not compare videos with texts" in fails(*words[:3], trained, "--task", "retrieval")
