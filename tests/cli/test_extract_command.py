import json
import shutil

import numpy as np
import pytest
from filelock import FileLock
from transformers import AutoModelForVideoClassification

from hf_video import VideoClipProcessor, VideoMambaConfig, VideoMambaForFrameClassification
from hf_video.cli.main import main
from hf_video.output_folders import LOCK_FILE
from hf_video.reading import read_video
from tests.testing.transformers_families import save_family


@pytest.fixture
def video(digits):
    return digits / "test" / "left-up" / "0000.mp4"


def words(trained, output, *videos):
    return ["extract", *map(str, videos), "--model", str(trained), "--device", "cpu", "--output", str(output)]


def summary(folder):
    return json.loads((folder / "features.json").read_text())


def test_folders_keep_their_paths_and_defaults_are_those_of_the_model(digits, trained, tmp_path, capsys):
    assert main(words(trained, tmp_path / "out", digits / "test")) == 0
    found = summary(tmp_path / "out")
    # The model takes 4 frames, and learned from clips of every other one of 8 frames.
    assert (found["num_frames"], found["feat_stride"], found["input_dim"], len(found["videos"])) == (4, 2, 24, 8)
    assert np.load(tmp_path / "out" / "left-up" / "0000.npy").shape == (1, 24)
    assert f"features {tmp_path / 'out'}\n8 windows of 8 videos" in capsys.readouterr().out
    assert not (tmp_path / "out" / LOCK_FILE).exists()


def test_broken_videos_are_listed_and_the_others_done(trained, video, tmp_path, capsys):
    broken = tmp_path / "broken.mp4"
    broken.write_bytes(b"not a video")
    shutil.copy(video, tmp_path / "ünï 1.mp4")
    assert main(words(trained, tmp_path / "out", broken, tmp_path / "ünï 1.mp4", tmp_path / "missing.mp4")) == 1
    assert np.load(tmp_path / "out" / "ünï 1.npy").shape == (1, 24)
    error = capsys.readouterr().err
    assert f"2 of 3 videos failed:\n  {broken} cannot be opened" in error
    assert f"  {tmp_path / 'missing.mp4'} does not exist" in error
    assert "error" in summary(tmp_path / "out")["videos"]["missing"]


def test_a_folder_of_frames_needs_its_rate(trained, video, tmp_path, capsys):
    from PIL import Image

    (tmp_path / "frames").mkdir()
    for number, frame in enumerate(read_video(video)[0]):
        Image.fromarray(frame).save(tmp_path / "frames" / f"{number}.png")
    assert main(words(trained, tmp_path / "out", tmp_path / "frames", video)) == 1
    assert "source_fps" in capsys.readouterr().err
    assert main([*words(trained, tmp_path / "rated", tmp_path / "frames", video), "--source-fps", "30"]) == 0
    frames, file = (np.load(tmp_path / "rated" / f"{name}.npy") for name in ("frames", "0000"))
    assert frames.shape == file.shape


def test_a_classifier_of_frames_gives_the_mean_of_its_tokens(video, tmp_path, caplog, fails):
    config = VideoMambaConfig(
        **{"image_size": 16, "patch_size": 8, "num_frames": 4, "hidden_size": 16, "num_hidden_layers": 1},
        **{"bidirectional": False, "use_temporal_position_embeddings": False},
    )
    size = {"height": 16, "width": 16}
    for part in (
        VideoMambaForFrameClassification(config),
        VideoClipProcessor(num_frames=4, size=size, crop_size=size),
    ):
        part.save_pretrained(tmp_path / "model")
    for name, options in (("out", ()), ("mean", ("--pooling", "mean"))):
        assert main([*words(tmp_path / "model", tmp_path / name, video), *options]) == 0
    found, expected = (np.load(tmp_path / name / "0000.npy") for name in ("out", "mean"))
    np.testing.assert_array_equal(found, expected)
    assert found.shape[1] == 16 and "do not depend on the pixels" not in caplog.text
    head = [*words(tmp_path / "model", tmp_path / "head", video), "--pooling", "head"]
    assert "choose from mean" in fails(*head)


def test_an_encoder_alone_has_tokens_and_no_features_of_a_head(video, tmp_path, capsys):
    """Its head sees what a pooler makes of the tokens, which an encoder does not have."""
    save_family("vjepa2", tmp_path / "classifier", ["a", "b"])
    shutil.copytree(tmp_path / "classifier", tmp_path / "encoder", ignore=shutil.ignore_patterns("*.safetensors"))
    classifier = AutoModelForVideoClassification.from_pretrained(tmp_path / "classifier")
    classifier.base_model.save_pretrained(tmp_path / "encoder")
    assert main(words(tmp_path / "encoder", tmp_path / "out", video)) == 2
    assert "--pooling mean" in capsys.readouterr().err
    for model in ("encoder", "classifier"):
        assert main([*words(tmp_path / model, tmp_path / f"{model} mean", video), "--pooling", "mean"]) == 0
    of_encoder, of_classifier = (
        np.load(tmp_path / f"{model} mean" / "0000.npy") for model in ("encoder", "classifier")
    )
    np.testing.assert_allclose(of_encoder, of_classifier, rtol=1e-5, atol=1e-6)
    # A random pooler would be another one each time: the same folder goes on.
    assert main([*words(tmp_path / "encoder", tmp_path / "encoder mean", video), "--pooling", "mean"]) == 0


def test_what_is_refused(trained, video, tmp_path, fails):
    out = tmp_path / "out"
    assert "layer=9 is out of range" in fails(*words(trained, out, video), "--layer", "9")
    rates = ("--fps", "5", "--frame-sampling-rate", "2")
    assert "--fps 5 and --frame-sampling-rate 2" in fails(*words(trained, out, video), *rates)
    assert "has other files (0000.mp4)" in fails(*words(trained, video.parent, video))
    other = video.parents[1] / "up-left" / "0000.mp4"
    assert "would both be called '0000'" in fails(*words(trained, out, video, other))
    assert main(words(trained, out, video)) == 0
    with FileLock(out / LOCK_FILE):
        assert "is being written by" in fails(*words(trained, out, video))
