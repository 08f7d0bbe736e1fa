import json
import re

from hf_video.cli.main import main


def test_the_short_demo_goes_all_the_way(tmp_path, capsys, says):
    out = says("demo", tmp_path / "demo", "--fast")
    assert "FAILED" not in out and out.count("   ok    ") == 3
    metrics = json.loads((tmp_path / "demo" / "model" / "report" / "metrics.json").read_text())
    assert metrics["split"] == "test"
    program, words = re.search(r"class of a video:\n +(hf-video|\S+ -m hf_video.cli) (predict .*)", out).groups()
    assert f"   {program} train " in out and f"   {program} evaluate " in out
    capsys.readouterr()
    assert "left" in says(*words.split())


def test_an_interrupted_demo_names_no_option_that_it_lacks(tmp_path, monkeypatch, capsys):
    def interrupt(*args):
        raise KeyboardInterrupt("checkpoint-1 is kept; run the same command with --resume to continue from it.")

    monkeypatch.setattr("hf_video.training.task.train", interrupt)
    assert main(["demo", str(tmp_path / "demo"), "--fast"]) == 130
    assert capsys.readouterr().err.endswith(
        "\nhf-video: interrupted. Run the same command again: it starts from the beginning.\n"
    )
