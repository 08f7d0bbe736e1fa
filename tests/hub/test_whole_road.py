"""From training to a stranger's prediction, over HTTP, for every family."""

import json
import re
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import pipeline

import hf_video
from hf_video.auto import CLASSES
from hf_video.hub import publish
from hf_video.hub.custom_code import classes_of, collect
from tests.hub_server.fixtures import run_in_fresh_process

from .conftest import TINY_CLASSIFIERS, make_model, make_processor

STRANGER = """
    import json, transformers
    from safetensors.torch import load_file, save_file
    {setup}
    def load(name, trust):
        return getattr(transformers, name).from_pretrained("alice/model", trust_remote_code=trust)
    model = load("AutoModelForVideoClassification", {trusts}[0])
    save_file(model.state_dict(), {output!r})
    model.eval()
    logits = model(pixel_values=load_file({clip!r})["pixel_values"]).logits
    logits.square().sum().backward()
    gradients = {{name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}}
    save_file({{"logits": logits.detach(), **gradients}}, {computed!r})
    pipeline = transformers.pipeline("video-classification", model="alice/model", trust_remote_code={trusts}[0])
    classes = [[name, type(load(name, trust))] for name in {auto_classes} for trust in {trusts}]
    named = [[auto_class, found.__module__, found.__name__] for auto_class, found in classes]
    print(json.dumps([named, pipeline({video!r}, num_frames=4, top_k=8)]))
"""
# What is imported beside transformers, and the values of trust_remote_code that the model loads with.
WAYS = {"without hf_video": ("", [True]), "with hf_video": ("import hf_video", [None, True])}


# Of the others a model is quickly loaded without hf_video below, and in `test_publishing_generation.py`.
@pytest.mark.parametrize(
    "trained",
    ["VideoViT", *(pytest.param(name, marks=pytest.mark.slow) for name in ("VideoMamba", "MemoryBankQFormer"))],
    indirect=True,
)
@pytest.mark.parametrize("way", ["without hf_video", pytest.param("with hf_video", marks=pytest.mark.slow)])
def test_a_stranger_gets_the_scores_that_the_author_had(trained, hub, digits, tmp_path, way):
    setup, trusts = WAYS[way]
    family = trained.name
    auto_classes = ("AutoModel", "AutoModelForVideoClassification", "AutoBackbone", "AutoVideoProcessor")
    classes = {
        row.auto_class: row.class_name
        for row in CLASSES
        if row.config_class == f"{family}Config" and row.auto_class in auto_classes
    }
    video = str(digits / "test" / "left-up" / "0000.mp4")
    # The protocol of evaluation travels with the model: the pipeline averages six views.
    folder = shutil.copytree(trained, tmp_path / "model")
    hf_video.VideoClipProcessor.from_pretrained(folder, num_clips=2, num_crops=3).save_pretrained(folder)
    publish(folder, "alice/model", check_download=False)
    clip = torch.randn(1, 4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    save_file({"pixel_values": clip}, tmp_path / "clip.safetensors")
    program = STRANGER.format(
        setup=setup,
        trusts=trusts,
        output=str(tmp_path / "state.safetensors"),
        clip=str(tmp_path / "clip.safetensors"),
        computed=str(tmp_path / "computed.safetensors"),
        auto_classes=list(classes),
        video=video,
    )
    process = run_in_fresh_process(hub, program, with_hf_video=bool(setup))
    assert process.returncode == 0, process.stderr
    loaded, scores = json.loads(process.stdout.splitlines()[-1])

    expected = {
        entry["label"]: entry["score"]
        for entry in pipeline("video-classification", folder)(video, num_frames=4, top_k=8)
    }
    assert {entry["label"]: entry["score"] for entry in scores} == pytest.approx(expected, abs=1e-6)
    weights, received = load_file(trained / "model.safetensors"), load_file(tmp_path / "state.safetensors")
    assert weights.keys() == received.keys() and all(torch.equal(weights[name], received[name]) for name in weights)
    computed, model = (
        load_file(tmp_path / "computed.safetensors"),
        getattr(hf_video, f"{family}ForVideoClassification").from_pretrained(trained),
    )
    logits = model(pixel_values=clip).logits
    logits.square().sum().backward()
    wanted = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    wanted["logits"] = logits.detach()
    assert computed.keys() == wanted.keys()
    for name, found in computed.items():
        assert (found - wanted[name]).abs().max() <= 1e-5 * max(wanted[name].abs().max(), 1), name
    origin = "hf_video." if setup else "transformers_modules.alice.model."
    assert {auto_class for auto_class, _, _ in loaded} == classes.keys()
    for auto_class, module, name in loaded:
        assert module.startswith(origin) and name == classes[auto_class]


def test_a_published_videomamba_can_be_read_before_it_is_trusted():
    """Configuration, model, processing and a plain scan: nothing that calls or compiles other code than PyTorch's."""
    files = collect(classes_of("videomamba")).files
    assert "selective_scan_videomamba.py" in files
    for name, file in files.items():
        found = re.findall(r"\b(ctypes|llvmlite|numba|triton|custom_op)\b", file.read_text())
        assert not found, f"{name} has {set(found)}"
    assert len(files["selective_scan_videomamba.py"].read_text().splitlines()) <= 60


def test_a_published_videomamba_takes_the_operations_of_an_installed_hf_video(hub, tmp_path):
    """Its code imports them, and hf_video registers its own classes while this is loaded."""
    model, _ = make_model("VideoMamba", ["a", "b"])
    code = collect(classes_of("videomamba"))
    model.config.auto_map = code.auto_map
    model.save_pretrained(tmp_path)
    for file in code.files.values():
        shutil.copy(file, tmp_path)
    program = f"""
        import sys
        import torch, transformers
        classes = []
        for _ in range(2):
            load = transformers.AutoModelForVideoClassification.from_pretrained
            model = load({str(tmp_path)!r}, trust_remote_code=True)
            logits = model(torch.ones(1, 4, 3, 32, 32)).logits
            classes.append(type(model.videomamba.layers[0]))
        assert classes[0].__module__.startswith("transformers_modules.") and logits.isfinite().all()
        print(*(sys.modules[each.__module__].selective_scan.__module__ for each in classes))
    """
    process = run_in_fresh_process(hub, program, with_hf_video=True)
    assert process.stdout.split() == ["hf_video.ops.selective_scan.dispatch"] * 2, process.stderr
    assert "pip install git+https://github.com/hf-video/hf-video" not in process.stderr


@pytest.mark.parametrize("family", ["VideoMamba", pytest.param("VideoViT", marks=pytest.mark.slow)])
def test_a_frame_classifier_is_the_same_without_hf_video_and_goes_on_with_a_state(hub, tmp_path, family):
    settings = {"bidirectional": False, "use_temporal_position_embeddings": False} if family == "VideoMamba" else {}
    config = getattr(hf_video, f"{family}Config")(
        **TINY_CLASSIFIERS[family], **settings, tubelet_size=1, id2label={0: "a", 1: "b"}
    )
    model, folder = getattr(hf_video, f"{family}ForFrameClassification")(config).eval(), tmp_path / "model"
    for part in (model, make_processor()):
        part.save_pretrained(folder)
    publish(folder, "alice/frames", check_download=False)
    clip = torch.randn(1, 4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    save_file({"pixel_values": clip}, tmp_path / "clip")
    program = f"""
        import torch
        from safetensors.torch import load_file, save_file
        from transformers import AutoModelForTokenClassification
        from transformers.dynamic_module_utils import get_class_from_dynamic_module

        model = AutoModelForTokenClassification.from_pretrained("alice/frames", trust_remote_code=True)
        clip = load_file({str(tmp_path / "clip")!r})["pixel_values"]
        found = {{"whole": model(clip).logits.detach()}}
        if {family == "VideoMamba"}:
            State = get_class_from_dynamic_module("state_videomamba.VideoMambaState", "alice/frames")
            state, logits = State(model.config), []
            for frames in clip.split([1, 3], dim=1):
                outputs = model(frames, state=state)
                state = outputs.state
                logits.append(outputs.logits.detach())
            found["chunks"] = torch.cat(logits, dim=1)
        save_file(found, {str(tmp_path / "found")!r})
    """
    process = run_in_fresh_process(hub, program)
    assert process.returncode == 0, process.stderr
    expected = model(clip).logits.detach()
    for logits in load_file(tmp_path / "found").values():
        torch.testing.assert_close(logits, expected, rtol=0, atol=1e-5 * expected.abs().max().item())
