import json

from hf_video.cli import demo
from hf_video.cli.main import main


def test_the_short_demo_goes_all_the_way(tmp_path, capsys):
    assert main(["demo", str(tmp_path / "demo"), "--fast"]) == 0
    out = capsys.readouterr().out
    assert "FAILED" not in out and out.count("   ok    ") == 4
    metrics = json.loads((tmp_path / "demo" / "model" / "report" / "metrics.json").read_text())
    assert metrics["split"] == "test"
    for command in ("train", "evaluate", "predict"):
        assert f"   hf-video {command} " in out


def test_differences_between_the_processes_are_noticed():
    trained = {"weights": "a", "top1_accuracy": 0.5, "logits": [[1.0, -2.0]], "scores": [0.3, 0.7]}
    loaded = {"pipeline": {"score": 0.7}}
    assert all(demo._compare(trained, trained | loaded).values())
    for change in (
        {"weights": "b"},
        {"top1_accuracy": 0.6},
        {"logits": [[1.0, -2.00001]]},
        {"pipeline": {"score": 0.71}},
    ):
        assert list(demo._compare(trained, trained | loaded | change).values()).count(False) == 1
