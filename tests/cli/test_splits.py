"""What training holds out, and what an evaluation on the same data measures."""

import json
import shutil

import pytest

from hf_video.cli.main import main
from tests.testing.videos import encode_video, make_frames

from .conftest import TINY_MODEL, TINY_RUN


@pytest.fixture(scope="module")
def recording(tmp_path_factory):
    """A recording of 24 s with a list of 24 segments of two classes."""
    folder = tmp_path_factory.mktemp("recording")
    encode_video(folder / "rec.mp4", make_frames(240, 32, 32), fps=10)
    rows = [f"rec.mp4,{'xy'[second % 2]},{second},{second + 1},{'pqr'[second // 8]}" for second in range(24)]
    (folder / "list.csv").write_text("\n".join(["path,label,start,end,part", *rows]))
    return folder / "list.csv"


def say(capsys, data, model, *words):
    capsys.readouterr()
    assert main(["evaluate", str(data), "--model", str(model), "--device", "cpu", *words]) == 0
    return capsys.readouterr().out


def evaluate(*words):
    return json.loads(say(*words, "--json"))


def test_one_recording_trains_and_its_last_seconds_are_measured(recording, tmp_path, capsys):
    folder = tmp_path / "model"
    words = ["train", str(recording), "--output-dir", str(folder), *TINY_MODEL, *TINY_RUN]
    assert main(words) == 0
    line = "Held out: the last 20 % of the seconds of each class of rec.mp4, with a gap of 0.48 s."
    assert line in capsys.readouterr().out.splitlines()
    report = json.loads((folder / "report" / "metrics.json").read_text())
    result = evaluate(capsys, recording, folder)
    assert result["num_clips"] == report["num_clips"] == 4
    assert result["confusion_matrix"] == report["confusion_matrix"]
    assert (result["split"], result["part_of_training"]) == ("validation", "held out")
    assert result["known_videos"] == {"train": 0, "validation": 4}
    assert f"The training of {folder} held these videos out" in say(capsys, recording, folder)
    by_part = evaluate(capsys, recording, folder, "--by", "Part", "--predictions", str(tmp_path / "table.csv"))
    (measured,) = by_part.pop("by").values()
    assert by_part.pop("by_column") == "part" and by_part == result, "a training does not know further columns"
    assert {name: result[name] for name in measured} == measured
    assert (tmp_path / "table.csv").read_text().startswith("video,part,label,")
    result = evaluate(capsys, recording, folder, "--split", "train")
    assert (result["num_clips"], result["split"], result["part_of_training"]) == (20, "train", "trained on")
    assert result["known_videos"] == {"train": 20, "validation": 0}
    assert f"The training of {folder} had these videos to learn from" in say(
        capsys, recording, folder, "--split", "train"
    )
    capsys.readouterr()
    assert main([*words, "--resume", "--split-by", "part"]) == 2
    assert "--split-by part differs from the run being resumed (not set)" in capsys.readouterr().err


def test_videos_held_out_by_a_training_are_measured_at_any_place(digits, tmp_path, capsys, says):
    data = shutil.copytree(digits / "train", tmp_path / "data")
    (data / "left-up" / "broken.mp4").write_bytes(b"no video")
    words = ["--output-dir", str(tmp_path / "model"), *TINY_MODEL, *TINY_RUN, "--on-error", "skip", "--seed", "3"]
    assert "Held out: 8 of 24 videos." in says("train", data, *words)
    moved = data.rename(tmp_path / "moved")
    report = json.loads((tmp_path / "model" / "report" / "metrics.json").read_text())
    for model in (next((tmp_path / "model").glob("checkpoint-*")), tmp_path / "model"):
        result = evaluate(capsys, moved, model)
        assert (result["num_videos"], result["part_of_training"]) == (8, "held out")
    assert result["confusion_matrix"] == report["confusion_matrix"]
    (moved / "left-up" / "broken.mp4").unlink()
    result = evaluate(capsys, moved, tmp_path / "model")
    assert (result["split"], result["num_videos"]) == (None, 24) and "part_of_training" not in result


def test_a_column_of_the_list_is_held_out(recording, tmp_path, capsys, says):
    recording.write_text(recording.read_text().replace("part", "Part ", 1))  # as in a spreadsheet
    words = ["train", str(recording), "--output-dir", str(tmp_path / "model"), *TINY_MODEL, *TINY_RUN]
    assert "Held out: 1 of 3 values of part (" in says(*words, "--split-by", "part")
    result = evaluate(capsys, recording, tmp_path / "model")
    assert result["num_clips"] == 8 and result["known_videos"] == {"train": 0, "validation": 8}
    by_part = evaluate(capsys, recording, tmp_path / "model", "--by", "part")
    assert [each["num_clips"] for each in by_part.pop("by").values()] == [8]
    assert by_part.pop("by_column") == "part" and by_part == result
    other = recording.with_name("other.csv")
    other.write_text(recording.read_text().replace(",p\n", ",q\n"))
    result = evaluate(capsys, other, tmp_path / "model")
    assert result["num_clips"] == 24 and "part_of_training" not in result


def test_a_column_that_is_not_there_is_named(recording, tmp_path, fails):
    words = ["train", recording, "--output-dir", tmp_path / "model", *TINY_MODEL, *TINY_RUN]
    assert "The videos have no column 'persn' to split by" in fails(*words, "--split-by", "persn")
    assert "No class has more than one video (1 in all)" in fails(*words, "--split-by", "video")
    assert not (tmp_path / "model").exists()


def test_splits_that_share_seconds_are_refused(recording, tmp_path, capsys, fails):
    data = tmp_path / "data"
    data.mkdir()
    rows = recording.read_text().replace("rec.mp4", str(recording.with_name("rec.mp4"))).splitlines()
    (data / "train.csv").write_text("\n".join(rows[:20]))
    (data / "validation.csv").write_text("\n".join([rows[0], *rows[18:]]))
    shared = "18 s to 19 s (train row 19 and validation row 2)"
    message = fails("train", data, "--output-dir", tmp_path / "model", *TINY_MODEL, *TINY_RUN)
    assert "share seconds of a video" in message and "in 2 pairs of rows" in message and shared in message
    assert not (tmp_path / "model").exists()
    assert main(["inspect", str(data), "--quick"]) == 1
    assert shared in capsys.readouterr().out
    assert main(["inspect", str(data), "--quick", "--json"]) == 1
    overlaps = json.loads(capsys.readouterr().out)["overlaps"]
    assert [overlap["rows"] for overlap in overlaps] == [[18, 1], [19, 2]]
    (data / "validation.csv").write_text("\n".join([rows[0], *rows[20:]]))
    assert main(["inspect", str(data), "--quick"]) == 0
