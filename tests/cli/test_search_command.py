"""`hf-video index`, `search` and `predict --labels` as a user runs them."""

import json

import pytest

from hf_video.cli.main import main
from tests.testing.search_models import save_dual_encoder, write_videos


@pytest.fixture
def indexed(tmp_path, capsys):
    """The folders of a model, of videos, and of their index."""
    model, videos = save_dual_encoder(tmp_path / "model"), write_videos(tmp_path / "videos")
    words = ["--model", str(model), "--device", "cpu"]
    assert main(["index", str(videos), *words, "--output", str(tmp_path / "index")]) == 0
    assert "6 rows of 6 videos in all, 6 of them new" in capsys.readouterr().out
    return tmp_path


def test_a_search_prints_hits(indexed, capsys, says):
    search = ["search", "a glass breaks", "--index", str(indexed / "index"), "--device", "cpu", "--top-k", "3"]
    assert main([*search, "--json", "--rerank", "5"]) == 0
    hits = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(hits) == 3 and list(hits[0]) == ["path", "start", "end", "score", "match"]
    assert hits[0]["match"] >= hits[1]["match"] >= hits[2]["match"]
    first = says(*search).splitlines()[0]
    assert str(indexed / "videos") in first and first.endswith("0.00 to 2.00 s")


def test_what_cannot_be_searched_is_said(indexed, fails):
    folder = str(indexed / "index")
    assert "for a text, or for a video" in fails("search", "--index", folder, "--device", "cpu")
    assert "is empty" in fails("search", " ", "--index", folder, "--device", "cpu")
    assert "is no index of videos" in fails("search", "a glass", "--index", str(indexed / "model"))


def test_classes_in_words(indexed, says, fails):
    predict = ["predict", str(indexed / "videos" / "0.mp4"), "--model", str(indexed / "model"), "--device", "cpu"]
    row = json.loads(says(*predict, "--labels", "a dog;a glass", "--template", "a video of {}", "--json"))
    assert {each["label"] for each in row["predictions"]} == {"a dog", "a glass"}
    assert sum(each["score"] for each in row["predictions"]) == pytest.approx(1)
    for labels in ("a dog", "a dog; a dog ;left"):
        assert "two or more different classes" in fails(*predict, "--labels", labels)
    assert "once is expected" in fails(*predict, "--labels", "a;b", "--template", "a video")
