"""The commands with a small random V-JEPA 2: its encoder, and its classifier with an attentive pooler."""

import json

import numpy as np
import onnxruntime
import pytest
import torch
from transformers import (
    AutoModel,
    AutoModelForObjectDetection,
    AutoModelForTokenClassification,
    AutoModelForVideoClassification,
)

from hf_video import VideoClipProcessor, VideoViTForVideoClassification, VideoViTModel
from hf_video.cli.main import main
from tests.data.detection_files import OWN, write_annotations, write_videos
from tests.data.frame_videos import write_flashes
from tests.hub_server.fixtures import hub, unverified  # noqa: F401
from tests.models.videovit.videovit_testing import ATTENTIVE, VJEPA2, VJEPA2_1, make

SIZES = {"patch_size": 16, "num_frames": 4, "hidden_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2}
TRAIN = ["--epochs=1", "--batch-size=4", "--learning-rate=0.01", "--device=cpu", "--no-load-best-model-at-end"]
CLIP = torch.randn(1, 4, 3, 32, 32, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def video(few):
    return min(few.glob("test/*/*.mp4"))


@pytest.fixture(scope="module")
def folders(few, tmp_path_factory):
    """The folders of encoders and of a classifier."""
    names = sorted(path.name for path in (few / "train").iterdir())
    labels = {"id2label": dict(enumerate(names)), "label2id": {name: index for index, name in enumerate(names)}}
    crop = {"height": 32, "width": 32}
    processor = VideoClipProcessor(num_frames=4, sampling_strategy="uniform", size=crop, crop_size=crop)
    found = {}
    for name, made in {
        "encoder": make(VideoViTModel, **SIZES, **VJEPA2),
        "encoder of 2.1": make(VideoViTModel, **SIZES | {"num_hidden_layers": 2}, **VJEPA2_1),
        "classifier": make(VideoViTForVideoClassification, **SIZES, **ATTENTIVE, num_labels=8, **labels),
    }.items():
        found[name] = tmp_path_factory.mktemp(name)
        for part in (made, processor):
            part.save_pretrained(found[name])
    return found


def trained(few, source, output, *words):
    words = ["train", few, "--model", source, "--output-dir", output, *TRAIN, *words]
    assert main([str(word) for word in words]) == 0
    return output


def moved(before, after):
    """The names of weights that differ between two folders of classifiers, without the last part."""
    one, two = (AutoModelForVideoClassification.from_pretrained(each).state_dict() for each in (before, after))
    assert one.keys() == two.keys()
    return {name for name in one if one[name].shape != two[name].shape or not torch.equal(one[name], two[name])}


@pytest.mark.parametrize("source", ["encoder", "encoder of 2.1", "classifier"])
def test_clips(source, few, folders, tmp_path):
    model = AutoModelForVideoClassification.from_pretrained(trained(few, folders[source], tmp_path / "out"))
    assert model.config.rope_layout.startswith("vjepa2") and (model.pooler is not None) == (source == "classifier")
    assert json.loads((tmp_path / "out" / "report" / "metrics.json").read_text())["num_videos"] == 8


@pytest.mark.parametrize("source", ["encoder", "classifier"])
def test_frames_and_their_timeline(source, folders, tmp_path):
    times = write_flashes(tmp_path, num_videos=3)
    out = trained(times, folders[source], tmp_path / "out", "--task=frames", "--background=rest", "--fps=8")
    model = AutoModelForTokenClassification.from_pretrained(out)
    assert model.config.rope_layout == "vjepa2"
    words = ["--model", out, "--output", tmp_path / "timeline", "--device", "cpu", "--onset=0.1"]
    assert main(["timeline", str(tmp_path / "0.mp4"), *map(str, words)]) == 0
    assert (tmp_path / "timeline" / "segments.json").is_file()


def test_detection(folders, tmp_path):
    data = write_annotations(write_videos(tmp_path), train=OWN, validation=OWN)
    small = '{"hidden_size": 16, "num_hidden_layers": 1, "intermediate_size": 16}'
    words = ["--task=detection", "--num-queries=5", f"--detector-config={small}"]
    out = trained(data, folders["encoder"], tmp_path / "out", *words)
    model = AutoModelForObjectDetection.from_pretrained(out)
    assert model.backbone.config.rope_layout == "vjepa2"


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["--linear-probe"], {"pooler", "classifier"}),
        (["--lora-rank=2"], {"videovit", "pooler", "classifier"}),
    ],
)
def test_parts(words, parts, few, folders, tmp_path):
    out = trained(few, folders["classifier"], tmp_path / "out", *words)
    assert {name.partition(".")[0] for name in moved(folders["classifier"], out)} == parts


def test_a_frozen_encoder_gets_an_attentive_head(few, folders, tmp_path):
    """With the settings of the original's evaluation."""
    words = ["--recipe=vjepa2_large_ssv2", "--num-frames=4", "--image-size=32", "--num-clips=1", "--no-fp16"]
    out = trained(few, folders["encoder"], tmp_path / "out", *words)
    model = AutoModelForVideoClassification.from_pretrained(out)
    before = VideoViTModel.from_pretrained(folders["encoder"]).state_dict()
    after = model.videovit.state_dict()
    assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)
    assert len(model.pooler.layers) == 3 and model.pooler.scaling == 3**-0.5


@pytest.mark.parametrize("source", ["encoder", "classifier"])
def test_extract_and_index(source, folders, video, tmp_path):
    words = ["--model", folders[source], "--device", "cpu", "--output"]
    assert main(["extract", str(video), *map(str, words), str(tmp_path / "features"), "--stride=1"]) == 0
    (file,) = (tmp_path / "features").rglob("*.npy")
    features = np.load(file)
    assert features.shape[1] == 48 and np.isfinite(features).all()
    assert main(["index", str(video.parents[1]), *map(str, words), str(tmp_path / "index")]) == 0
    assert main(["search", "--video", str(video), "--index", str(tmp_path / "index"), "--device=cpu"]) == 0


def test_timeline_probe_and_explain(few, folders, video, tmp_path):
    model = ["--model", str(folders["classifier"]), "--device", "cpu"]
    assert main(["timeline", str(video), *model, "--output", str(tmp_path / "timeline"), "--onset=0.01"]) == 0
    assert json.loads((tmp_path / "timeline" / "segments.json").read_text())["results"]
    assert main(["explain", str(video), *model, "--output", str(tmp_path / "why")]) == 0
    words = ["--output-dir", tmp_path / "probe", "--features", tmp_path / "kept", "--epochs=1"]
    assert main(["probe", str(few), *model, *map(str, words)]) == 0
    assert moved(folders["classifier"], tmp_path / "probe") == {"classifier.weight", "classifier.bias"}


@pytest.mark.parametrize("source", ["encoder", "classifier"])
def test_bfloat16_is_as_near_as_its_digits(source, folders):
    """Relative to the largest value; the digits of bfloat16 are 0.004 apart."""
    auto = {"encoder": AutoModel, "classifier": AutoModelForVideoClassification}[source]
    expected, found = (
        auto.from_pretrained(folders[source], dtype=dtype)(CLIP)[0].detach() for dtype in ("float32", "bfloat16")
    )
    assert found.dtype == torch.bfloat16
    assert (found.float() - expected).abs().max() < 0.05 * expected.abs().max()


@pytest.mark.parametrize("to", ["onnx", "torch-export"])
def test_an_exported_program_gives_the_logits(to, folders, tmp_path):
    assert main(["export", str(folders["classifier"]), str(tmp_path / "out"), "--to", to]) == 0
    expected = AutoModelForVideoClassification.from_pretrained(folders["classifier"])(CLIP).logits.detach()
    if to == "onnx":
        session = onnxruntime.InferenceSession(tmp_path / "out" / "model.onnx")
        (logits,) = session.run(None, {"pixel_values": CLIP.numpy()})
        logits = torch.from_numpy(logits)
    else:
        (logits,) = torch.export.load(tmp_path / "out" / "model.pt2").module()(CLIP)
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=1e-4)


def test_a_dry_run_of_publishing(folders, hub, unverified, says):  # noqa: F811
    out = says("publish", folders["classifier"], "alice/model", "--dry-run")
    assert "  modeling_videovit.py\n" in out and "\npipeline_tag: video-classification\n" in out
