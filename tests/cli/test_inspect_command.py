import json
import shutil

from hf_video.cli.main import main

from ..data.broken_videos import spread_broken_videos
from ..odd_files import ODD_FILES, make_odd_file


def test_a_sound_data_set(digits, capsys):
    assert main(["inspect", str(digits), "--num-workers", "2"]) == 0
    out = capsys.readouterr().out
    assert "32 videos, 32 labelled clips" in out
    assert "train: 24 clips of 8 classes" in out and "test: 8 clips of 8 classes" in out
    assert "frames    8 to 8" in out and "size      32x32" in out and "0 broken videos" in out


def test_broken_videos_are_named_and_nothing_is_changed(digits, tmp_path, capsys):
    shutil.copytree(digits, tmp_path / "data")
    folders = sorted((tmp_path / "data" / "train").iterdir())
    broken = spread_broken_videos(tmp_path / "broken", folders)
    files = sorted(path for path in (tmp_path / "data").rglob("*"))
    assert main(["inspect", str(tmp_path / "data"), "--json"]) == 1
    result = json.loads(capsys.readouterr().out)
    assert set(result["broken"]) == {str(path) for path in broken}
    assert result["num_videos"] == 38 and sum(result["splits"]["train"].values()) == 30
    assert result["num_frames"] == {"fewest": 8, "most": 8}
    assert sorted((tmp_path / "data").rglob("*")) == files
    assert main(["inspect", str(tmp_path / "data")]) == 1
    out = capsys.readouterr().out
    assert "6 broken videos:" in out and all(str(path) in out for path in broken)


def test_what_stands_in_the_place_of_a_video_is_broken(digits, tmp_path, capsys):
    folder = shutil.copytree(digits / "test", tmp_path / "data")
    odd = {make_odd_file(folder / "left-up" / f"{kind}.mp4", kind) for kind in ODD_FILES}
    for words in ([], ["--quick"]):
        assert main(["inspect", str(folder), "--json", *words]) == 1
        assert set(json.loads(capsys.readouterr().out)["broken"]) == set(map(str, odd))


def test_clips_with_different_labels_or_in_several_splits_are_counted(digits, tmp_path, capsys):
    assert main(["inspect", str(digits), "--quick", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["repeated"] == []
    folder = shutil.copytree(digits, tmp_path / "data")
    first = folder / "train" / "left-up" / "0000.mp4"
    shutil.copy(first, folder / "train" / "up-left" / "copy.mp4")
    shutil.copy(first, folder / "test" / "left-up" / "copy.mp4")
    assert main(["inspect", str(folder), "--quick"]) == 0
    out = capsys.readouterr().out
    assert "1 clip is in several splits" in out and "1 clip is listed with different labels" in out
    assert str(first) in out
    assert main(["inspect", str(folder), "--quick", "--json"]) == 0
    (clip,) = json.loads(capsys.readouterr().out)["repeated"]
    assert clip["splits"] == ["train", "test"] and clip["labels"] == ["left-up", "up-left"]
    assert len(clip["videos"]) == 3


def test_classes_of_almost_the_same_name_are_shown(digits, tmp_path, capsys, caplog):
    folder = shutil.copytree(digits / "test", tmp_path / "data")
    shutil.copytree(folder / "left-up", folder / "Left-Up ")
    assert main(["inspect", str(folder), "--quick"]) == 0
    assert "count as different ones: 'Left-Up ' and 'left-up'" in caplog.text


def test_data_that_do_not_exist(tmp_path, fails):
    assert "does not exist" in fails("inspect", tmp_path / "none")
