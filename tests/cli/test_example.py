"""`hf-video example`: a model and clips that show every command without a network."""

from hf_video.cli.main import main


def test_the_model_that_ships_is_right_about_its_clips(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["example"]) == 0
    assert main(["predict", "example/walks_right.mp4", "--model", "example/model", "--top-k", "1"]) == 0
    assert "walks right" in capsys.readouterr().out.splitlines()[-1]
    # Somebody comes, walks to the right, turns round and goes back.
    words = ["timeline", "example/there_and_back.mp4", "--model", "example/model", "--min-duration-on", "1"]
    assert main(words) == 0
    found = [line.split("  ")[-1] for line in capsys.readouterr().out.splitlines()]
    assert found == ["nobody", "walks right", "walks left"]


def test_a_folder_is_not_written_over(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "example").mkdir()
    assert main(["example"]) == 2
    assert "example exists already" in capsys.readouterr().err
    assert main(["example", "another"]) == 0
    assert (tmp_path / "another" / "model" / "model.safetensors").is_file()
