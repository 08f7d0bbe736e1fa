"""`hf-video extract` and `predict` with `--engine local`, and what both engines share."""

import json
import os
import shutil

import fsspec
import numpy as np
import pyarrow.dataset as ds
import pytest
import torch
from filelock import FileLock

from hf_video.bulk import run
from hf_video.cli.main import main
from hf_video.inference import scores
from hf_video.output_folders import LOCK_FILE

from .bulk_runs import assert_same_rows, num_new, parts_of, read_rows


def words(command, trained, output, *videos):
    options = ["--model", str(trained), "--device", "cpu", "--output", str(output), "--engine", "local"]
    return [command, *map(str, videos), *options]


@pytest.fixture
def mixed(digits, tmp_path):
    """Eight videos of moving digits and two broken files, in one folder."""
    folder = tmp_path / "mixed"
    for path in (digits / "test").rglob("*.mp4"):
        (folder / path.parent.name).mkdir(parents=True)
        shutil.copy(path, folder / path.parent.name)
    (folder / "broken.mp4").write_bytes(b"not a video")
    (folder / "up-left" / "empty.mp4").touch()
    return folder


@pytest.fixture
def counted(monkeypatch):
    """The batches that the model encodes."""
    seen, encode = [], run._encode
    monkeypatch.setattr(run, "_encode", lambda *words: seen.append(len(words[2])) or encode(*words))
    return seen


def test_features_are_those_without_an_engine(mixed, trained, tmp_path, counted, capsys):
    rate = ["--frame-sampling-rate", "1"]
    command = ["extract", str(mixed), "--model", str(trained), "--device", "cpu", "--output", str(tmp_path / "a")]
    assert main([*command, *rate]) == 1
    assert main([*words("extract", trained, tmp_path / "b", mixed), *rate, "--part-size", "4"]) == 1
    captured = capsys.readouterr()
    # Three windows of each video, and a row for each broken file.
    assert "26 rows of 10 videos in all, 26 of them new\n" in captured.out
    assert "2 of 10 videos failed:\n" in captured.err
    rows, summary = read_rows(tmp_path / "b"), json.loads((tmp_path / "a" / "features.json").read_text())["videos"]
    assert {key for key, _ in rows} == summary.keys()
    for key, record in summary.items():
        of_video = [row for (name, _), row in rows.items() if name == key]
        assert {(row["path"], row["error"]) for row in of_video} == {(record["source"], record.get("error"))}
        assert [row["is_last"] for row in of_video] == [False] * (len(of_video) - 1) + [True]
        if "error" not in record:
            # Batches hold windows of several videos, so the last digits may differ.
            expected = np.load(tmp_path / "a" / f"{key}.npy")
            np.testing.assert_allclose([row["features"] for row in of_video], expected, rtol=0, atol=1e-6)
            assert [row["start"] for row in of_video] == record["starts"]
            assert [row["end"] for row in of_video] == record["ends"]
        else:
            assert [row[name] for row in of_video for name in ("features", "start", "end")] == [None] * 3
    assert len(parts_of(tmp_path / "b")) == 3 and 8 in counted


def test_classes_are_those_without_an_engine(mixed, trained, tmp_path, capsys):
    assert main(["predict", str(mixed), "--model", str(trained), "--device", "cpu", "--json", "--top-k", "3"]) == 1
    printed = {row["video"]: row for row in map(json.loads, capsys.readouterr().out.splitlines())}
    assert main([*words("predict", trained, tmp_path / "out", mixed), "--top-k", "3", "--batch-size", "3"]) == 1
    rows = read_rows(tmp_path / "out").values()
    assert {row["path"] for row in rows} == printed.keys()
    for row in rows:
        if row["error"] is None:
            best = printed[row["path"]]["predictions"]
            assert row["labels"] == [each["label"] for each in best]
            np.testing.assert_allclose(row["scores"], [each["score"] for each in best], rtol=0, atol=1e-6)
        else:
            assert row["error"] == printed[row["path"]]["error"] and row["labels"] is row["scores"] is None


def test_what_is_done_is_not_done_again(mixed, trained, tmp_path, counted, capsys):
    command = [*words("extract", trained, tmp_path / "out", mixed), "--part-size", "3"]
    assert main(command) == 1
    rows, times = read_rows(tmp_path / "out"), parts_of(tmp_path / "out")
    counted.clear()
    assert main(command) == 1 and not counted
    lost = tmp_path / "out" / sorted(times)[1]
    num_lost = len(ds.dataset(lost).to_table())
    lost.unlink()
    capsys.readouterr()
    assert main(command) == 1 and num_new(capsys.readouterr().out) == num_lost
    assert_same_rows(read_rows(tmp_path / "out"), rows, "features")
    assert parts_of(tmp_path / "out").items() >= {name: times[name] for name in times if name != lost.name}.items()
    # Videos may be added, and changed. Other parts are left alone.
    shutil.copy(mixed / "up-left" / "0000.mp4", mixed / "up-left" / "more.mp4")
    os.utime(mixed / "up-left" / "0000.mp4", (0, 0))
    capsys.readouterr()
    assert main(command) == 1 and num_new(capsys.readouterr().out) == 2
    assert {key for key, _ in read_rows(tmp_path / "out")} - {key for key, _ in rows} == {"up-left/more"}


def test_a_url_takes_the_parts(mixed, trained, tmp_path, counted):
    url = f"memory://{tmp_path.name}/out"
    assert main([*words("predict", trained, url, mixed), "--part-size", "4"]) == 1
    counted.clear()
    assert main([*words("predict", trained, url, mixed), "--part-size", "4"]) == 1 and not counted
    files = sorted(path for path in fsspec.filesystem("memory").ls(f"/{tmp_path.name}/out", detail=False))
    parts = [path for path in files if path.endswith(".parquet")]
    assert len(parts) == 3 and len(files) == 4
    table = ds.dataset(parts, filesystem=fsspec.filesystem("memory")).to_table()
    assert len(table) == 10 and table["error"].null_count == 8


def test_a_batch_that_the_model_refuses_is_tried_piece_by_piece(digits, trained, tmp_path, monkeypatch):
    """One piece is refused alone as well, and another one has no numbers."""
    score, sizes = scores.predict_scores, []

    def refuse(model, values):
        sizes.append(len(values))
        if len(values) > 1 or len(sizes) == 3:
            raise RuntimeError("no such size")
        return score(model, values) * (float("nan") if len(sizes) == 4 else 1)

    monkeypatch.setattr(scores, "predict_scores", refuse)
    assert main(words("predict", trained, tmp_path / "out", digits / "test")) == 1
    errors = [row["error"] for row in read_rows(tmp_path / "out").values()]
    assert sizes == [8, *[1] * 8] and errors[:2] == [None, "no such size"]
    assert errors[2].endswith("not finite.") and errors[3:] == [None] * 5


@pytest.mark.parametrize(
    ("where", "error", "message"),
    [
        (
            "inference.features.encode_clips",
            torch.OutOfMemoryError("CUDA out of memory."),
            "The memory of the accelerator was not enough",
        ),
        ("inference.video_search.read_clips", OSError(28, "No space left on device"), "make room on its disk"),
    ],
)
def test_errors_of_the_machine_end_the_run(where, error, message, digits, trained, tmp_path, fails, monkeypatch):
    def fail(*args, **options):
        raise error

    command = words("extract", trained, tmp_path / "out", digits / "test")
    with monkeypatch.context() as patched:
        patched.setattr(f"hf_video.{where}", fail)
        assert message in fails(*command)
    assert not parts_of(tmp_path / "out")
    assert main(command) == 0 and len({key for key, _ in read_rows(tmp_path / "out")}) == 8


def test_folders_that_are_refused(digits, mixed, trained, tmp_path, fails):
    one, other = (digits / "test" / name / "0000.mp4" for name in ("left-up", "up-left"))
    assert "has other files (broken.mp4, down-left" in fails(*words("extract", trained, mixed, one))
    assert "is a file; a folder is expected" in fails(*words("extract", trained, one, one))
    folder = tmp_path / "out"
    assert main(words("extract", trained, folder, one)) == 0
    assert not (folder / LOCK_FILE).exists()
    assert "stride 2, not 1" in fails(*words("extract", trained, folder, one), "--stride", "1")
    assert "task 'extract', not 'predict'" in fails(*words("predict", trained, folder, one))
    assert f"{one} under the key '0000', which {other}" in fails(*words("extract", trained, folder, other))
    with FileLock(folder / LOCK_FILE):
        assert "is being written by" in fails(*words("extract", trained, folder, one))


def test_options_that_do_not_go_together(digits, trained, tmp_path, fails, monkeypatch):
    command = ("extract", digits / "test", "--model", trained, "--device", "cpu", "--output", tmp_path / "out")
    assert "part_size is 2, which has no effect without engine" in fails(*command, "--part-size", "2")
    assert "nosuch" in fails(*command, "--engine", "local", "--output", "nosuch://a/b")
    predict = ("predict", *command[1:6])
    assert "--output DIR" in fails(*predict, "--engine", "local")
    assert "Leave .csv out" in fails(*predict, "--engine", "local", "--output", "out.csv")
    assert "--engine for a folder" in fails(*predict, "--output", "out")
    assert "--json has no effect" in fails(*predict, "--output", "out", "--engine", "local", "--json")
    monkeypatch.setattr("hf_video.bulk.commands.find_spec", lambda name: None)
    assert "hf-video-models[ray]" in fails(*command, "--engine", "ray")
    assert not (tmp_path / "out").exists()
