"""`hf-video audit`: what it prints and writes, and what it refuses."""

import json
import shutil

from hf_video import VideoClipProcessor, VideoMambaConfig, VideoMambaForFrameClassification
from hf_video.evaluation.audit import VARIANTS


def test_the_accuracy_is_that_of_evaluate_and_both_files_have_the_result(digits, trained, tmp_path, says):
    model = shutil.copytree(trained, tmp_path / "model", ignore=shutil.ignore_patterns("checkpoint-*"))
    words = [digits, "--model", model, "--device", "cpu", "--split", "train", "--num-crops", 2, "--json"]
    expected = json.loads(says("evaluate", *words))
    found = json.loads(says("audit", *words, "--output", tmp_path / "found.json"))
    as_it_is = found["variants"]["as_it_is"]
    assert as_it_is["accuracy"] == expected["top1_accuracy"] and as_it_is["num_clips"] == expected["num_videos"]
    assert [*found["variants"]] == [variant.name for variant in VARIANTS] and found["chance"] == 1 / 8
    shared = ("split", "views", "num_videos", "known_videos")
    assert {name: found[name] for name in shared} == {name: expected[name] for name in shared}
    assert json.loads((tmp_path / "found.json").read_text()) == found
    assert found.items() < json.loads((model / "audit.json").read_text()).items()
    out = says("audit", *words[:-1])
    assert "24 videos of the train split, 1 clip x 2 crops each" in out
    assert "warning: trained on: 16 of these 24 videos" in out
    for each in found["variants"].values():
        assert each["sentence"] in out


def test_a_classifier_of_frames_and_a_file_that_exists_are_refused(digits, trained, tmp_path, fails):
    folder = tmp_path / "frames"
    VideoMambaForFrameClassification(VideoMambaConfig(image_size=32, num_hidden_layers=1)).save_pretrained(folder)
    VideoClipProcessor(num_frames=4).save_pretrained(folder)
    assert "classifier of frames" in fails("audit", digits, "--model", folder)
    assert f"--output {digits} exists" in fails("audit", digits, "--model", trained, "--output", digits)
