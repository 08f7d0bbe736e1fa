"""Exported models give the model's numbers for any batch, and nothing is kept that does not."""

import json
import os
import sys
from types import SimpleNamespace

import numpy as np
import onnxruntime
import pytest
import torch
from transformers import VideoMAEConfig, VideoMAEForVideoClassification

import hf_video
from hf_video.inference.exporting import ExportError, export_model
from tests.hub.conftest import TINY_CLASSIFIERS, make_processor
from tests.testing.processes import Program, run_fresh

SHAPE = (4, 3, 32, 32)
CLIPS = torch.randn(5, *SHAPE, generator=torch.Generator().manual_seed(1))
TRANSFORMERS = {"num_hidden_layers": 1, "num_attention_heads": 2, "hidden_size": 16, "intermediate_size": 32}


def make(family, kind="ForVideoClassification", **options):
    torch.manual_seed(0)
    config = getattr(hf_video, f"{family}Config")(**TINY_CLASSIFIERS[family] | options)
    return getattr(hf_video, family + kind)(config).eval()


def make_videomae():
    torch.manual_seed(0)
    return VideoMAEForVideoClassification(VideoMAEConfig(image_size=32, num_frames=4, **TRANSFORMERS)).eval()


def compare(model, export, clips):
    """The file's outputs for a batch of a size that was not checked at the export."""
    if export.file.suffix == ".onnx":
        found = onnxruntime.InferenceSession(export.file).run(None, {"pixel_values": clips.numpy()})
    with torch.no_grad():
        if export.file.suffix != ".onnx":
            found = torch.export.load(export.file).module()(clips)
        wanted = model(clips)
    wanted = [wanted.logits] if "logits" in wanted else wanted.feature_maps
    assert len(found) == len(wanted) == len(export.outputs)
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


@pytest.fixture(scope="module")
def exports(tmp_path_factory):
    """A classifier, and its exports by format."""
    folder, model = tmp_path_factory.mktemp("exports"), make("VideoViT")
    return model, {
        to: export_model(model, folder / to, SHAPE, to, make_processor()) for to in ("onnx", "torch-export")
    }


@pytest.mark.parametrize("to", ["onnx", "torch-export"])
def test_a_classifier_of_videos_takes_any_batch(to, exports):
    model, export = exports[0], exports[1][to]
    assert export.difference < 1e-5 and export.outputs == ("logits",) and export.clip_shape == SHAPE
    compare(model, export, CLIPS)
    assert {"config.json", export.file.name} < {path.name for path in export.file.parent.iterdir()}
    assert hf_video.VideoClipProcessor.from_pretrained(export.file.parent).num_frames == 4


KINDS = {
    "VideoMamba": lambda: make("VideoMamba"),
    "VideoMambaBackbone": lambda: make("VideoMamba", "Backbone"),
    "VideoViTBackbone": lambda: make("VideoViT", "Backbone"),
    "VideoMAE": make_videomae,
    "VideoMambaForFrameClassification": lambda: make("VideoMamba", "ForFrameClassification"),
    "VideoViTForFrameClassification": lambda: make("VideoViT", "ForFrameClassification"),
    "VideoViTForImageClassification": lambda: make("VideoViT", "ForImageClassification", num_frames=1, tubelet_size=1),
    "VideoMambaForImageClassification": lambda: make("VideoMamba", "ForImageClassification", num_frames=1),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("to", ["onnx", "torch-export"])
def test_every_kind_takes_any_batch(to, kind, tmp_path):
    model, is_image = KINDS[kind](), "Image" in kind
    export = export_model(model, tmp_path / "out", SHAPE[1:] if is_image else SHAPE, to)
    compare(model, export, CLIPS[:, 0] if is_image else CLIPS)


@pytest.mark.slow
def test_the_program_runs_where_hf_video_is_not(exports, tmp_path):
    model, export = exports[0], exports[1]["torch-export"]
    torch.save(CLIPS, tmp_path / "clips.pt")
    code = (
        "import sys, torch; sys.modules['hf_video'] = None; "
        f"program = torch.export.load({str(export.file)!r}).module(); "
        f"print(program(torch.load({str(tmp_path / 'clips.pt')!r}))[0].tolist())"
    )
    answer = run_fresh(Program(["-c", code], os.environ, str(tmp_path)))[0]
    assert answer.returncode == 0, answer.stderr
    with torch.no_grad():
        torch.testing.assert_close(torch.tensor(json.loads(answer.stdout)), model(CLIPS).logits)


@pytest.mark.parametrize("wrong", [1.0, float("nan")])
def test_an_export_with_other_numbers_is_not_kept(wrong, tmp_path, monkeypatch):
    """Numbers that are wrong for one of the batches, which is not the first one."""
    model = make("VideoViT")
    load = torch.export.load

    def load_wrong(file):
        program = load(file).module()
        run = lambda batch: [each + (wrong if len(each) == 2 else 0) for each in program(batch)]  # noqa: E731
        return SimpleNamespace(module=lambda: run)

    monkeypatch.setattr(torch.export, "load", load_wrong)
    with pytest.raises(ExportError, match=r"VideoViTForVideoClassification as torch-export gives other numbers"):
        export_model(model, tmp_path / "out", SHAPE, "torch-export")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "make_model, message",
    [
        (lambda: make("VideoViT", "ForPreTraining"), "VideoViTForPreTraining cannot be exported: classifiers"),
        (lambda: make("VideoViT", "Model"), "VideoViTModel cannot be exported: classifiers"),
        (lambda: make("MemoryBankQFormer"), "MemoryBankQFormerForVideoClassification cannot be exported: its memory"),
    ],
)
def test_what_cannot_be_exported(make_model, message, tmp_path):
    with pytest.raises(ExportError, match=message):
        export_model(make_model(), tmp_path / "out", SHAPE)
    assert list(tmp_path.iterdir()) == []


def test_a_missing_package_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(ImportError, match=r"onnxscript: pip install 'hf-video-models\[export\]'"):
        export_model(make("VideoViT"), tmp_path / "out", SHAPE)
