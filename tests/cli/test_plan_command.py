import json
import shutil

from hf_video.cli.main import main
from hf_video.cli.plan import _lines


def test_it_foretells_for_each_class_by_features_that_are_kept(digits, trained, tmp_path, says):
    data, features = tmp_path / "list.csv", tmp_path / "features"
    videos = {
        path: "across" if path.parent.name[:4] in ("left", "righ") else "along" for path in digits.rglob("*.mp4")
    }
    data.write_text("path,label\n" + "".join(f"{path},{label}\n" for path, label in videos.items()))
    command = ["plan", data, "--model", trained, "--features", features, "--device", "cpu", "--num-clips", "1"]
    result = json.loads(says(*command, "--json", "--more", "10"))
    assert result["num_clips"] == 32 and result["by_video"] and [*result["classes"]] == ["across", "along"]
    assert result["classes"]["across"]["clips"] == 16
    low, middle, high = result["gain"]
    assert low <= middle <= high and len(result["curve"]) == 5
    written = {path: path.stat().st_mtime_ns for path in features.rglob("*.safetensors")}
    text = says(*command)
    assert "30 more clips of each class would bring" in text
    (row,) = (line for line in text.splitlines() if line.startswith("  across "))
    assert row.count(" to ") == 2, "the accuracy and the gain of a class have their bands"
    assert {path: path.stat().st_mtime_ns for path in features.rglob("*.safetensors")} == written
    assert "\nchance" in text and " 50.0% (always" in text
    doubt = {"video": "a.mp4", "start": None, "end": None, "label": "across", "taken_for": "along"}
    few, many = ("\n".join(_lines(result | {"doubts": [doubt] * number})) for number in (4, 5))  # of 32 clips
    assert "4 labels in doubt" in few and "too many" not in few and "too many" in many


def test_no_label_is_doubted_where_features_do_not_tell_the_classes_apart(digits, trained, tmp_path, says):
    data = tmp_path / "list.csv"
    videos = sorted(digits.rglob("*.mp4"))
    data.write_text("path,label\n" + "".join(f"{path},{'ab'[n % 2]}\n" for n, path in enumerate(videos)))
    text = says("plan", data, "--model", trained, "--device", "cpu", "--num-clips", "1")
    assert "do not tell these classes apart: by chance, 50% of each class are right" in text
    assert "in doubt" not in text


def test_a_class_of_few_clips_and_clips_of_several_classes_are_refused(digits, trained, tmp_path, capsys):
    data = tmp_path / "data"
    shutil.copytree(digits / "train", data)
    few = sorted(data.iterdir())[0]
    for path in sorted(few.iterdir())[3:]:
        path.unlink()
    assert main(["plan", str(data), "--model", str(trained)]) == 2
    assert f"at least 5 clips to foretell anything; '{few.name}' 3" in capsys.readouterr().err
    listed = tmp_path / "list.csv"
    videos = [path for path in data.rglob("*.mp4")]
    listed.write_text("path,labels\n" + "".join(f"{path},a;b\n" for path in videos))
    assert main(["plan", str(listed), "--model", str(trained)]) == 2
    assert "clips of several classes" in capsys.readouterr().err
