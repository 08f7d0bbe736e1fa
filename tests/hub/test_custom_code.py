"""Models of every family give a stranger without hf_video the same numbers, by the code that went along."""

import json
import re
import shutil

import numpy as np
import pytest
import torch
from huggingface_hub import HfApi, ModelCard
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForObjectDetection,
    AutoModelForVideoClassification,
    AutoVideoProcessor,
    BertTokenizer,
    pipeline,
)

import hf_video
from hf_video.auto import CLASSES
from hf_video.hub import publish, stage
from hf_video.hub.custom_code import add_code, classes_of, collect, types_inside
from hf_video.loading.classifiers import load_trained_classifier
from hf_video.loading.processors import load_processor
from tests.hub_server.fixtures import run_in_fresh_process
from tests.models.stmixer.detector import write_detector
from tests.models.video_text.video_text_testing import make
from tests.testing.answering import random_images, tiny_pair
from tests.testing.transformers_families import NUM_FRAMES, save_family

from .conftest import TINY_CLASSIFIERS, make_model, make_processor

REPO = "alice/search"
VIT = {
    **{"model_type": "videovit", "image_size": 16, "patch_size": 8, "num_frames": 4, "hidden_size": 32},
    **{"num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32},
}
MAMBA_CODE, VIT_CODE = {"modeling_videomamba.py"}, {"modeling_videovit.py"}
# Settings, code that goes along, and code that does not.
TOWERS = {
    "videomamba": ({}, MAMBA_CODE, VIT_CODE),
    "videovit": ({"vision": VIT, "pooling": "avg"}, VIT_CODE, MAMBA_CODE),
}
# Loads it from the Hub, then what it saved, from a folder.
LOAD = """
    import json
    import numpy as np
    import torch
    from safetensors.torch import save_file
    from transformers import AutoConfig, AutoModel, AutoProcessor

    trusted = {{"trust_remote_code": True}}
    names = []
    for source, saved, output in {places!r}:
        processor = AutoProcessor.from_pretrained(source, **trusted)
        model = AutoModel.from_pretrained(source, **trusted)
        inputs = processor(np.load({images!r}), ["a dog", "a cat", "A man!"], return_tensors="pt")
        with torch.inference_mode():
            outputs = model(**inputs)
        found = {{"similarity": outputs.similarity, "video_embeds": outputs.video_embeds, **inputs}}
        save_file({{name: tensor.contiguous() for name, tensor in found.items()}}, output)
        for part in (model, processor):
            part.save_pretrained(saved)
        names += [type(each).__module__ for each in (model, model.vision_model, processor)]
        str(AutoConfig.from_pretrained(source, **trusted))
    print(json.dumps(names))
"""
STRANGER = """
    import json, transformers
    from safetensors.torch import load_file, save_file
    def load(name):
        return getattr(transformers, name).from_pretrained("alice/model", trust_remote_code=True)
    model = load("AutoModelForVideoClassification")
    save_file(model.state_dict(), {output!r})
    model.eval()
    logits = model(pixel_values=load_file({clip!r})["pixel_values"]).logits
    logits.square().sum().backward()
    gradients = {{name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}}
    save_file({{"logits": logits.detach(), **gradients}}, {computed!r})
    pipeline = transformers.pipeline("video-classification", model="alice/model", trust_remote_code=True)
    classes = [[name, type(load(name))] for name in {auto_classes}]
    named = [[auto_class, found.__module__, found.__name__] for auto_class, found in classes]
    print(json.dumps([named, pipeline({video!r}, num_frames=4, top_k=8)]))
"""


# Of the others a model is quickly loaded below.
@pytest.mark.parametrize(
    "trained",
    ["VideoViT", *(pytest.param(name, marks=pytest.mark.slow) for name in ("VideoMamba", "MemoryBankQFormer"))],
    indirect=True,
)
def test_a_stranger_gets_the_scores_that_the_author_had(trained, hub, digits, tmp_path):
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
    publish(folder, "alice/model")
    clip = torch.randn(1, 4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    save_file({"pixel_values": clip}, tmp_path / "clip.safetensors")
    program = STRANGER.format(
        output=str(tmp_path / "state.safetensors"),
        clip=str(tmp_path / "clip.safetensors"),
        computed=str(tmp_path / "computed.safetensors"),
        auto_classes=list(classes),
        video=video,
    )
    process = run_in_fresh_process(hub, program)
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
    assert {auto_class for auto_class, _, _ in loaded} == classes.keys()
    for auto_class, module, name in loaded:
        assert module.startswith("transformers_modules.alice.model.") and name == classes[auto_class]


def test_a_published_videomamba_can_be_read_before_it_is_trusted():
    """Configuration, model, processing and a plain scan: nothing that calls or compiles other code than PyTorch's."""
    files = collect(classes_of("videomamba")).files
    assert "selective_scan_videomamba.py" in files
    for name, file in files.items():
        found = re.findall(r"\b(ctypes|llvmlite|numba|triton|custom_op)\b", file.read_text())
        assert not found, f"{name} has {set(found)}"
    assert len(files["selective_scan_videomamba.py"].read_text().splitlines()) <= 60


@pytest.mark.slow
def test_a_published_videomamba_takes_the_operations_of_an_installed_hf_video(hub, tmp_path):
    """Its code imports them, and hf_video registers its own classes while this is loaded."""
    make_model("VideoMamba", ["a", "b"])[0].save_pretrained(tmp_path)
    add_code(tmp_path)
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
    assert process.stdout.split() == ["hf_video.ops.selective_scan"] * 2, process.stderr
    assert "pip install git+https://github.com/hf-video/hf-video" not in process.stderr


def test_a_frame_classifier_is_the_same_without_hf_video_and_goes_on_with_a_state(hub, tmp_path):
    config = hf_video.VideoMambaConfig(
        **TINY_CLASSIFIERS["VideoMamba"],
        **{"bidirectional": False, "use_temporal_position_embeddings": False, "tubelet_size": 1},
        id2label={0: "a", 1: "b"},
    )
    model, folder = hf_video.VideoMambaForFrameClassification(config).eval(), tmp_path / "model"
    for part in (model, make_processor()):
        part.save_pretrained(folder)
    publish(folder, "alice/frames")
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


@pytest.mark.parametrize(
    "tower", [*(pytest.param(name, marks=pytest.mark.slow) for name in TOWERS if name != "videovit"), "videovit"]
)
def test_a_model_of_videos_and_texts_is_the_same_without_hf_video(tower, hub, tmp_path):
    options, modules, others = TOWERS[tower]
    model = make(**options)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "dog", "cat", "man"]
    video_processor = hf_video.VideoClipProcessor(
        num_frames=4, sampling_strategy="middle", size={"height": 16, "width": 16}, do_center_crop=False
    )
    tokenizer = BertTokenizer({word: number for number, word in enumerate(words)})
    processor = hf_video.VideoTextDualEncoderProcessor(video_processor, tokenizer)
    for part in (model, processor):
        part.save_pretrained(tmp_path / "model")
    images = np.random.default_rng(0).integers(0, 256, (2, 6, 20, 24, 3), dtype=np.uint8)
    np.save(tmp_path / "images.npy", images)
    inputs = processor(images, ["a dog", "a cat", "A man!"], return_tensors="pt")
    with torch.inference_mode():
        outputs = model(**inputs)
    expected = {"similarity": outputs.similarity, "video_embeds": outputs.video_embeds, **inputs}

    publish(tmp_path / "model", REPO)
    files = set(HfApi().list_repo_files(REPO))
    assert modules <= files and not others & files
    assert "trust_remote_code=True" in ModelCard.load(REPO).text
    again, last, *outputs = (str(tmp_path / name) for name in ("again", "last", "found", "found again"))
    places = [(REPO, again, outputs[0]), (again, last, outputs[1])]
    process = run_in_fresh_process(hub, LOAD.format(places=places, images=str(tmp_path / "images.npy")))
    assert process.returncode == 0, process.stderr
    assert all(name.startswith("transformers_modules.") for name in json.loads(process.stdout.splitlines()[-1]))
    for output in outputs:
        found = load_file(output)
        assert found.keys() == expected.keys()
        for name, tensor in found.items():
            torch.testing.assert_close(tensor, expected[name], atol=1e-6, rtol=0)


def test_a_detector_is_the_same_without_hf_video(hub, tmp_path):
    write_detector(tmp_path)
    folder = tmp_path / "detector"
    clip = np.random.default_rng(0).integers(0, 256, (16, 64, 64, 3), dtype=np.uint8)
    np.save(tmp_path / "clip.npy", clip)
    processor = AutoVideoProcessor.from_pretrained(folder, size={"shortest_edge": 64})
    processor.save_pretrained(folder)
    with torch.inference_mode():
        expected = AutoModelForObjectDetection.from_pretrained(folder)(**processor([clip], return_tensors="pt"))
    publish(folder, "alice/detector")
    files = set(HfApi().list_repo_files("alice/detector"))
    assert VIT_CODE | {"modeling_stmixer.py", "loss_stmixer.py", "video_processing_detection.py"} <= files
    assert not MAMBA_CODE & files
    program = f"""
        import numpy as np
        import torch
        from safetensors.torch import save_file
        from transformers import AutoModelForObjectDetection, AutoVideoProcessor

        processor = AutoVideoProcessor.from_pretrained("alice/detector", trust_remote_code=True)
        model = AutoModelForObjectDetection.from_pretrained("alice/detector", trust_remote_code=True)
        inputs = processor([np.load({str(tmp_path / "clip.npy")!r})], return_tensors="pt")
        label = {{"boxes": torch.tensor([[5.0, 5.0, 40.0, 60.0]]), "class_labels": torch.ones(1, 10)}}
        outputs = model(**inputs, labels=[label])
        assert outputs.loss.isfinite()
        names = ("logits", "action_logits", "pred_boxes")
        save_file({{name: outputs[name].detach() for name in names}}, {str(tmp_path / "found")!r})
    """
    process = run_in_fresh_process(hub, program)
    assert process.returncode == 0, process.stderr
    for name, tensor in load_file(tmp_path / "found").items():
        torch.testing.assert_close(tensor, expected[name], atol=1e-4, rtol=1e-4)


def test_a_classifier_around_another_of_ours_is_published_with_both(tmp_path):
    config = hf_video.MemoryBankQFormerConfig(
        **TINY_CLASSIFIERS["MemoryBankQFormer"] | {"vision_config": VIT | {"num_frames": 1, "tubelet_size": 1}},
        **{"id2label": {0: "a", 1: "b"}, "label2id": {"a": 0, "b": 1}},
    )
    hf_video.MemoryBankQFormerForVideoClassification(config).save_pretrained(tmp_path / "model")
    make_processor().save_pretrained(tmp_path / "model")
    (tmp_path / "staging").mkdir()
    # This loads it in a process without hf_video.
    publication = stage(tmp_path / "model", tmp_path / "staging", REPO)
    assert {"modeling_memory_bank_qformer.py", "modeling_videovit.py"} <= publication.files.keys()
    assert "import hf_video" not in (publication.folder / "README.md").read_text()


def test_a_model_that_answers_is_the_same_without_hf_video(hub, tmp_path):
    model, processor = tiny_pair()
    model.save_pretrained(tmp_path / "model")
    processor.save_pretrained(tmp_path / "model")
    images = random_images(6)
    np.save(tmp_path / "images.npy", images)
    inputs = processor(videos=images, text="what is shown", return_tensors="pt")
    with torch.no_grad():
        expected = model.generate(**inputs, max_new_tokens=5, do_sample=False)

    publish(tmp_path / "model", REPO)
    assert {"tokenizer.json", "qformer_tokenizer/tokenizer.json"} <= set(HfApi().list_repo_files(REPO))
    program = f"""
        import json
        import numpy as np
        from transformers import AutoModelForImageTextToText, AutoProcessor, AutoVideoProcessor

        trusted = {{"trust_remote_code": True}}
        model = AutoModelForImageTextToText.from_pretrained({REPO!r}, **trusted)
        processor = AutoProcessor.from_pretrained({REPO!r}, **trusted)
        images = np.load({str(tmp_path / "images.npy")!r})
        inputs = processor(videos=images, text="what is shown", return_tensors="pt")
        found = model.generate(**inputs, max_new_tokens=5, do_sample=False).tolist()
        alone = type(AutoVideoProcessor.from_pretrained({REPO!r}, **trusted)).__name__
        print(json.dumps([found, type(processor).__name__, alone]))
    """
    process = run_in_fresh_process(hub, program, token="hf_write")
    assert process.returncode == 0, process.stderr
    found, *names = json.loads(process.stdout.splitlines()[-1])
    assert found == expected.tolist()
    assert names == ["MemoryBankQFormerProcessor", "VideoClipProcessor"]


def test_a_classifier_of_transformers_takes_our_processor_along(tmp_path, hub):
    folder = save_family("vjepa2", tmp_path / "model", ["clap", "jump"])
    model = load_trained_classifier(folder).eval()
    processor = load_processor(folder, model.config)
    for file in folder.glob("*preprocessor_config.json"):
        file.unlink()
    processor.save_pretrained(folder)
    publish(folder, REPO)
    assert type(model).__name__ in ModelCard.load(REPO).text
    files = HfApi().list_repo_files(REPO)
    assert "video_processing_clip.py" in files and "modeling_videovit.py" not in files

    frames = np.random.default_rng(0).integers(0, 256, (NUM_FRAMES, 48, 64, 3), dtype=np.uint8)
    inputs = AutoVideoProcessor.from_pretrained(REPO, trust_remote_code=True)(
        frames, do_sample_frames=False, return_tensors="pt"
    )
    loaded = AutoModelForVideoClassification.from_pretrained(REPO).eval()
    with torch.inference_mode():
        logits = loaded(**inputs).logits.reshape(1, 2)
        expected = model(**processor(frames, do_sample_frames=False, return_tensors="pt")).logits
    torch.testing.assert_close(logits, expected)


def test_parts_are_found_at_any_depth_and_others_are_not_ours():
    damaged = {"model_type": ["videovit"]}
    config = {"vision_config": {"model_type": "instructblip_vision_model", "parts": damaged}, "text_config": None}
    assert types_inside(config) == set()
    assert types_inside(config | {"whole": {"model_type": "bert", "backbone_config": {"model_type": "videovit"}}}) == {
        "videovit"
    }
