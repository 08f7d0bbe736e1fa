import json

import pytest

from hf_video.cli.main import main


@pytest.fixture
def videos(digits):
    return [str(digits / "test" / name / "0000.mp4") for name in ("left-up", "up-left", "down-right")]


def predict(capsys, trained, *words):
    code = main(["predict", *words, "--model", str(trained), "--device", "cpu", "--json"])
    return code, [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_every_video_gets_its_best_classes(trained, videos, capsys):
    code, rows = predict(capsys, trained, *videos, "--top-k", "3")
    assert code == 0
    assert [row["video"] for row in rows] == videos
    for row in rows:
        scores = [prediction["score"] for prediction in row["predictions"]]
        assert len(scores) == 3 and scores == sorted(scores, reverse=True) and 0 < sum(scores) < 1
        assert row["predictions"][0].keys() == {"label", "score"}


def test_the_batch_size_and_repetitions_change_nothing(trained, videos, capsys):
    _, together = predict(capsys, trained, *videos)
    _, singly = predict(capsys, trained, *videos, videos[0], "--batch-size", "1")
    assert [row["video"] for row in singly] == [*videos, videos[0]]
    for one, other in zip(together, singly, strict=False):
        assert [p["label"] for p in one["predictions"]] == [p["label"] for p in other["predictions"]]
        assert [p["score"] for p in one["predictions"]] == pytest.approx([p["score"] for p in other["predictions"]])


def test_views_are_averaged(trained, videos, capsys):
    _, one = predict(capsys, trained, *videos)
    _, many = predict(capsys, trained, *videos, "--num-clips", "3", "--num-crops", "2")
    assert len(many) == 3 and many != one


def test_a_broken_file_is_reported_and_the_rest_goes_on(trained, videos, tmp_path, capsys):
    broken, missing = tmp_path / "broken.mp4", tmp_path / "missing.mp4"
    broken.write_bytes(b"not a video")
    code, rows = predict(capsys, trained, videos[0], str(broken), str(missing), videos[1])
    assert code == 1
    assert ["predictions" in row for row in rows] == [True, False, False, True]
    assert str(broken) in rows[1]["error"] and str(missing) in rows[2]["error"]


def test_without_json_there_is_a_table(trained, videos, tmp_path, capsys):
    missing = str(tmp_path / "missing.mp4")
    assert main(["predict", videos[0], missing, "--model", str(trained), "--top-k", "20"]) == 1
    captured = capsys.readouterr()
    lines = captured.out.splitlines()
    assert lines[0] == videos[0] and len(lines) == 1 + 8 and lines[1].split()[0].endswith("%")
    assert missing in captured.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--top-k", "0"], "--top-k: expected a whole number of at least 1, got '0'"),
        (["--batch-size", "x"], "--batch-size: expected a whole number of at least 1, got 'x'"),
        (["--model", "../none/such"], "there is no such folder"),
    ],
)
def test_wrong_options_are_named(trained, videos, fails, words, message):
    assert message in fails("predict", *videos, "--model", trained, *words)


def test_a_folder_without_a_model(tmp_path, videos, fails):
    assert "config.json" in fails("predict", *videos, "--model", tmp_path)


def test_no_file_is_given(trained, fails):
    assert "the following arguments are required: FILE" in fails("predict", "--model", trained)
