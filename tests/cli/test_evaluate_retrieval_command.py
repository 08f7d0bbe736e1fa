"""`hf-video evaluate --task retrieval`: captioned videos, and models with and without a fusion encoder."""

import json

import pytest

from hf_video.cli.main import main
from tests.testing.videos import encode_video, make_frames

from ..models.video_text.retrieval_model import write_retrieval_model


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


def evaluate(capsys, data, model, *options):
    words = ["evaluate", str(data), "--task", "retrieval", "--model", str(model), "--device", "cpu", *options]
    assert main(words) == 0
    return capsys.readouterr().out


def test_both_passes_are_measured_both_ways(captions, model, tmp_path, capsys):
    out = evaluate(capsys, captions, model, "--json", "--output", str(tmp_path / "result.json"))
    result = json.loads(out)
    assert json.loads((tmp_path / "result.json").read_text()) == result
    assert (result["num_videos"], result["num_texts"], result["k_test"]) == (3, 4, 128)
    names = {f"{way}_r{k}" for way in ("text_to_video", "video_to_text") for k in (1, 5, 10)}
    assert result["dual_encoder"].keys() == result["reranked"].keys() == names
    assert result["reranked"]["video_to_text_r5"] == 100
    table = evaluate(capsys, captions, model, "--k-test", "2", "--max-length", "4")
    assert "3 videos and 4 texts of the train split" in table and "the 2 best ranked again\n  text to video" in table


def test_paragraphs_of_the_first_seconds(captions, model, capsys):
    options = ("--paragraph", "--first-seconds", "1", "--k-test", "0", "--json")
    result = json.loads(evaluate(capsys, captions, model, *options))
    assert (result["num_videos"], result["num_texts"]) == (3, 3)
    assert "reranked" not in result


def test_a_broken_video_is_left_out_if_asked(captions, model, tmp_path, capsys):
    rows = json.loads(captions.read_text())
    (tmp_path / "broken.mp4").write_bytes(b"no video")
    data = tmp_path / "rows.json"
    data.write_text(json.dumps([*rows, {"video": str(tmp_path / "broken.mp4"), "caption": "a car"}]))
    options = ("--video-root", str(captions.parent), "--on-error", "skip", "--json")
    result = json.loads(evaluate(capsys, data, model, *options))
    assert (result["num_videos"], result["num_texts"]) == (3, 4)
    assert result["broken_videos"] == [str(tmp_path / "broken.mp4")]


def test_what_is_refused(captions, model, trained, fails):
    words = ("evaluate", captions, "--model", model)
    assert "no effect without task=retrieval" in fails(*words, "--k-test", "5")
    assert "no effect without task=classific" in fails(*words, "--task", "retrieval", "--num-clips", "2")
    assert "does not compare videos with texts" in fails(*words[:3], trained, "--task", "retrieval")
