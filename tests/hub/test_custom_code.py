"""Models of every family give a stranger without hf_video the same numbers, by the code that went along."""

import json
import re

import numpy as np
import pytest
import torch
from huggingface_hub import HfApi, ModelCard
from safetensors.torch import load_file
from transformers import (
    AutoModelForVideoClassification,
    AutoVideoProcessor,
    BertTokenizer,
)

import hf_video
from hf_video.auto import CLASSES
from hf_video.hub import publish, stage
from hf_video.hub.custom_code import add_code, classes_of, collect
from hf_video.hub.model_card import auto_class_of
from hf_video.loading.heads import load_trained_classifier
from hf_video.loading.processors import load_processor
from tests.hub_server.fixtures import run_in_fresh_process
from tests.models.video_text.video_text_testing import make
from tests.models.videovit.videovit_testing import ATTENTIVE
from tests.testing.answering import tiny_pair
from tests.testing.transformers_families import FAMILIES, NUM_FRAMES, save_family
from tests.training.detection_testing import make_detector
from tests.training.detection_testing import make_processor as make_detection_processor

from .conftest import TINY_CLASSIFIERS, make_model, make_processor

REPO = "alice/model"
VIT = {
    **{"model_type": "videovit", "image_size": 16, "patch_size": 8, "num_frames": 4, "hidden_size": 32},
    **{"num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32},
}
MAMBA_CODE, VIT_CODE = {"modeling_videomamba.py"}, {"modeling_videovit.py"}
# What runs here and, by a stranger, on what was loaded from the Hub, and then on what the stranger saved.
COMPUTE = """
import torch
def compute(model, processor, images, words):
    inputs = processor(images, **words, return_tensors="pt")
    if model.can_generate():
        return {"tokens": model.generate(**inputs, max_new_tokens=5, do_sample=False)}
    outputs = model(**inputs)
    found = {name: each for name, each in outputs.items() if isinstance(each, torch.Tensor)}
    found["logits" if "logits" in found else "similarity"].square().sum().backward()
    found |= {name: each.grad for name, each in model.named_parameters() if each.grad is not None}
    return {name: each.detach().clone().contiguous() for name, each in found.items()}
"""
LOAD = """
import json
import numpy as np
import transformers
from safetensors.torch import save_file
from transformers.dynamic_module_utils import get_class_from_dynamic_module
names, images = [], np.load({images!r})
for source, saved, output in {places!r}:
    model, processor = (
        getattr(transformers, name).from_pretrained(source, trust_remote_code=True) for name in {loaders!r}
    )
    save_file(compute(model.eval(), processor, images, {words!r}), output)
    for part in (model, processor):
        part.save_pretrained(saved)
    names += [type(part).__module__ for part in (model, processor)]
print(json.dumps(names))
"""
# Its state is a class of its own.
GO_ON = """
clip = processor(images, return_tensors="pt")["pixel_values"]
state, logits = get_class_from_dynamic_module("state_videomamba.VideoMambaState", "alice/model")(model.config), []
for frames in clip.split([1, 3], dim=1):
    outputs = model(frames, state=state)
    state = outputs.state
    logits.append(outputs.logits)
torch.testing.assert_close(torch.cat(logits, dim=1), model(clip).logits, rtol=0, atol=1e-5)
"""


def make_classifier(family):
    model, processor = make_model(family, ["a", "b"])
    # The protocol of evaluation travels with the model: six views.
    processor.num_clips, processor.num_crops = 2, 3
    return model, processor


def make_attentive_classifier():
    config = hf_video.VideoViTConfig(**TINY_CLASSIFIERS["VideoViT"] | ATTENTIVE, id2label={0: "a", 1: "b"})
    return hf_video.VideoViTForVideoClassification(config), make_processor()


def make_frame_classifier():
    causal = {"bidirectional": False, "use_temporal_position_embeddings": False, "tubelet_size": 1}
    config = hf_video.VideoMambaConfig(**TINY_CLASSIFIERS["VideoMamba"], **causal, id2label={0: "a", 1: "b"})
    return hf_video.VideoMambaForFrameClassification(config), make_processor()


def make_encoder_of_frames():
    encoder = FAMILIES["timesformer"].configuration()
    config = hf_video.VideoEncoderConfig(encoder_config=encoder, id2label={0: "a", 1: "b"})
    return hf_video.VideoEncoderForFrameClassification(config), make_processor()


def make_dual_encoder(**options):
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "dog", "cat", "man"]
    video_processor = hf_video.VideoClipProcessor(
        num_frames=4, sampling_strategy="middle", size={"height": 16, "width": 16}, do_center_crop=False
    )
    tokenizer = BertTokenizer({word: number for number, word in enumerate(words)})
    return make(**options), hf_video.VideoTextDualEncoderProcessor(video_processor, tokenizer)


TEXTS = {"text": ["a dog", "a cat", "A man!"]}
# How they are made, what the processor gets besides images, and the files that go along, and that do not.
CASES = {
    **{name: (lambda name=name: make_classifier(name), {}, set(), set()) for name in TINY_CLASSIFIERS},
    "attentive": (make_attentive_classifier, {}, VIT_CODE, MAMBA_CODE),
    "frames": (make_frame_classifier, {}, MAMBA_CODE | {"shared_dense.py"}, VIT_CODE),
    "frames by an encoder": (make_encoder_of_frames, {}, {"modeling_video_encoder.py"}, MAMBA_CODE | VIT_CODE),
    "texts, VideoMamba": (make_dual_encoder, TEXTS, MAMBA_CODE, VIT_CODE),
    "texts, VideoViT": (lambda: make_dual_encoder(vision=VIT, pooling="avg"), TEXTS, VIT_CODE, MAMBA_CODE),
    "detector": (lambda: (make_detector(), make_detection_processor()), {}, VIT_CODE, MAMBA_CODE),
    "answers": (tiny_pair, {"text": "what is shown"}, {"qformer_tokenizer/tokenizer.json"}, set()),
}
SLOW = {"VideoMamba", "MemoryBankQFormer", "texts, VideoMamba"}


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=pytest.mark.slow) if case in SLOW else case for case in CASES]
)
def test_a_stranger_gets_the_numbers_that_the_author_had(case, hub, tmp_path):
    make_parts, words, files, others = CASES[case]
    torch.manual_seed(0)
    model, processor = make_parts()
    kind = "AutoProcessor" if hasattr(processor, "tokenizer") else "AutoVideoProcessor"
    loaders = auto_class_of(type(model).__name__), kind
    for part in (model, processor):
        part.save_pretrained(tmp_path / "model")
    images = np.random.default_rng(0).integers(0, 256, (4 if case == "detector" else 6, 48, 64, 3), dtype=np.uint8)
    np.save(tmp_path / "images.npy", images)
    here: dict = {}
    exec(COMPUTE, here)
    expected = here["compute"](model.eval(), processor, images, words)

    publish(tmp_path / "model", REPO)
    published = set(HfApi().list_repo_files(REPO))
    assert files <= published and not others & published
    assert "trust_remote_code=True" in ModelCard.load(REPO).text
    rows = {row.auto_class: row.class_name for row in CLASSES if row.config_class == type(model.config).__name__}
    for apart in ("AutoModelForPreTraining", "AutoModelForTokenClassification", "AutoBackbone"):
        if rows.get(apart) != type(model).__name__:
            rows.pop(apart, None)
    with open(HfApi().hf_hub_download(REPO, "config.json")) as file:
        auto_map = json.load(file)["auto_map"]
    assert {name: each.partition(".")[2] for name, each in auto_map.items() if name in rows} == rows
    assert {f"{each.partition('.')[0]}.py" for each in auto_map.values()} <= published
    again, last, *outputs = (str(tmp_path / name) for name in ("again", "last", "found", "found again"))
    places = [(REPO, again, outputs[0]), (again, last, outputs[1])]
    program = LOAD.format(places=places, images=str(tmp_path / "images.npy"), loaders=loaders, words=words)
    process = run_in_fresh_process(hub, COMPUTE + program + GO_ON * (case == "frames"))
    assert process.returncode == 0, process.stderr
    assert all(name.startswith("transformers_modules.") for name in json.loads(process.stdout.splitlines()[-1]))
    for output in outputs:
        found = load_file(output)
        assert found.keys() == expected.keys()
        for name, tensor in found.items():
            atol = 1e-5 * max(expected[name].abs().max().item(), 1)
            torch.testing.assert_close(tensor, expected[name], atol=atol, rtol=0)


def test_a_published_videomamba_can_be_read_before_it_is_trusted():
    """Configuration, model, processing and a plain scan: nothing that calls or compiles other code than PyTorch's."""
    files = collect(classes_of("videomamba")).files
    assert "selective_scan_videomamba.py" in files
    for name, file in files.items():
        found = re.findall(r"\b(ctypes|llvmlite|numba|triton|custom_op)\b", file.read_text())
        assert not found, f"{name} has {set(found)}"
    assert len(files["selective_scan_videomamba.py"].read_text().splitlines()) <= 60


def test_what_travels_with_a_videovit_is_short():
    classes = classes_of("videovit", ["VideoViTForVideoClassification"])
    processor = collect({"AutoVideoProcessor": classes.pop("AutoVideoProcessor")}).files
    for files, most in ((collect(classes).files, 1365), (processor, 950)):
        assert sum(len(file.read_text().splitlines()) for file in files.values()) <= most, sorted(files)


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
