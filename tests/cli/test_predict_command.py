import csv
import json
import pathlib
import shutil
import subprocess
import sys

import pytest
import torch
from datasets import Dataset, Video
from transformers import AutoModelForVideoClassification, AutoVideoProcessor

from hf_video.cli.main import main


@pytest.fixture
def videos(digits):
    return [str(digits / "test" / name / "0000.mp4") for name in ("left-up", "up-left", "down-right")]


def predict(capsys, trained, *words):
    code = main(["predict", *words, "--model", str(trained), "--device", "cpu", "--json"])
    return code, [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_every_video_gets_its_best_classes_whatever_the_batch_size(trained, videos, capsys):
    code, together = predict(capsys, trained, *videos)
    assert code == 0 and [row["video"] for row in together] == videos
    _, best = predict(capsys, trained, videos[0], "--top-k", "3")
    assert [each["label"] for each in best[0]["predictions"]] == [
        each["label"] for each in together[0]["predictions"][:3]
    ]
    scores = [prediction["score"] for prediction in best[0]["predictions"]]
    assert scores == sorted(scores, reverse=True) and 0 < sum(scores) < 1
    _, many = predict(capsys, trained, *videos, "--num-clips", "3", "--num-crops", "2")
    assert len(many) == 3 and many != together
    _, singly = predict(capsys, trained, *videos, videos[0], "--batch-size", "1")
    assert [row["video"] for row in singly] == [*videos, videos[0]]
    for one, other in zip(together, singly, strict=False):
        assert [p["label"] for p in one["predictions"]] == [p["label"] for p in other["predictions"]]
        assert [p["score"] for p in one["predictions"]] == pytest.approx([p["score"] for p in other["predictions"]])


def test_a_regression_gives_a_number(trained, videos, tmp_path, capsys):
    model = AutoModelForVideoClassification.from_pretrained(
        trained, num_labels=1, id2label={0: "jumps"}, problem_type="regression", ignore_mismatched_sizes=True
    )
    torch.nn.init.constant_(model.classifier.bias, 250.0)
    torch.nn.init.zeros_(model.classifier.weight)
    model.save_pretrained(tmp_path)
    AutoVideoProcessor.from_pretrained(trained).save_pretrained(tmp_path)
    assert main(["predict", videos[0], "--model", str(tmp_path), "--device", "cpu"]) == 0
    assert capsys.readouterr().out.split() == [videos[0], "250", "jumps"]


def test_the_others_are_classified_whatever_fails(trained, videos, tmp_path, capsys):
    broken = tmp_path / "broken.mp4"
    broken.write_bytes(b"not a video")
    odd = [str(broken), str(tmp_path / "none.mp4"), "", "a\0b.mp4", "http://[::1"]
    words = [videos[0], *odd[:3], videos[1], *odd[3:], videos[2]]
    code, rows = predict(capsys, trained, *words, "--batch-size", "2")
    assert code == 1 and [row["video"] for row in rows] == words
    assert [row["video"] for row in rows if "predictions" in row] == videos
    assert all(row["error"] for row in rows if row["video"] in odd) and str(broken) in rows[1]["error"]


@pytest.mark.slow
def test_a_single_file_is_classified_without_libraries_for_data_sets(trained, videos):
    words = ["predict", videos[0], "--model", str(trained), "--device", "cpu"]
    heavy = ("datasets", "pandas", "sklearn", "matplotlib", "numba", "pyarrow.dataset", "transformers.trainer")
    run = f"from hf_video.cli.main import main; print(main({words}))"
    program = f"import sys; {run}; print([name for name in {heavy} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert result.stdout.splitlines()[-2:] == ["0", "[]"], result.stderr


def test_without_json_there_is_a_table(trained, videos, tmp_path, capsys):
    missing = str(tmp_path / "missing.mp4")
    assert main(["predict", videos[0], missing, "--model", str(trained), "--top-k", "20"]) == 1
    captured = capsys.readouterr()
    lines = captured.out.splitlines()
    assert lines[0] == videos[0] and len(lines) == 1 + 8 and lines[1].split()[0].endswith("%")
    assert missing in captured.err


def test_the_best_classes_are_a_table_that_trains_or_is_read_again(trained, videos, tmp_path, capsys, monkeypatch):
    words = ["predict", *videos[:2], str(tmp_path / "missing.mp4"), "--model", str(trained), "--json", "--output"]
    assert main([*words, str(tmp_path / "found.csv")]) == 1
    printed = [json.loads(line) for line in capsys.readouterr().out.splitlines()][:2]
    rows = list(csv.DictReader((tmp_path / "found.csv").open()))
    assert [row["path"] for row in rows] == videos[:2]
    best = [each["predictions"][0] for each in printed]
    assert [(row["label"], float(row["score"])) for row in rows] == [(each["label"], each["score"]) for each in best]
    assert main([*words, str(tmp_path / "folder")]) == 2
    assert "ends in .csv" in capsys.readouterr().err


def test_folders_lists_manifests_and_data_sets_are_classified_as_their_videos(
    trained, videos, digits, tmp_path, capsys
):
    _, expected = predict(capsys, trained, *videos)
    for path in videos:
        name = pathlib.Path(path).parent.name
        (tmp_path / "folder" / name).mkdir(parents=True)
        shutil.copy(path, tmp_path / "folder" / name / "0000.mp4")
    names = [pathlib.Path(path).parent.name for path in videos]
    lines = [f"folder/{name}/0000.mp4,{name}" for name in names]
    (tmp_path / "list.csv").write_text("\n".join(["path,label", *lines]) + "\n")
    assert main(["inspect", str(tmp_path / "list.csv"), "--output", str(tmp_path / "manifest.parquet")]) == 0
    stored = Dataset.from_dict({"video": videos, "label": names}).class_encode_column("label")
    stored = stored.cast_column("video", Video(decode=False)).map(
        lambda row: {"video": {"bytes": pathlib.Path(row["video"]["path"]).read_bytes(), "path": None}}
    )
    stored.save_to_disk(tmp_path / "stored")
    capsys.readouterr()
    for name in ("folder", "list.csv", "manifest.parquet", "stored"):
        code, rows = predict(capsys, trained, str(tmp_path / name))
        assert (code, len(rows)) == (0, 3)
        found = {json.dumps(row["predictions"]) for row in rows}
        assert found == {json.dumps(row["predictions"]) for row in expected}
    # Words of both kinds, in their order.
    _, rows = predict(capsys, trained, videos[2], str(tmp_path / "list.csv"))
    assert [row["video"] for row in rows] == [
        videos[2],
        *(str(tmp_path / "folder" / name / "0000.mp4") for name in names),
    ]
