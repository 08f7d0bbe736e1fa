"""Models of one family around a model of another, published and loaded where hf_video is not installed."""

import json

import numpy as np
import pytest
import torch
from huggingface_hub import HfApi, ModelCard
from safetensors.torch import load_file
from transformers import AutoModelForObjectDetection, AutoVideoProcessor, BertTokenizer

import hf_video
from hf_video.hub import publish, stage
from hf_video.hub.custom_code import types_inside
from tests.hub_server.fixtures import run_in_fresh_process
from tests.models.stmixer.detector import write_detector
from tests.models.video_text.video_text_testing import make

from .conftest import TINY_CLASSIFIERS, make_processor

REPO = "alice/search"
VIT = {
    **{"model_type": "videovit", "image_size": 16, "patch_size": 8, "num_frames": 4, "hidden_size": 32},
    **{"num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32},
}
MAMBA_CODE, VIT_CODE = {"modeling_videomamba.py"}, {"modeling_videovit.py"}
# Settings, code that goes along, and code that does not.
TOWERS = {
    "videomamba": ({}, MAMBA_CODE, VIT_CODE),
    "videomamba with heads": ({"use_alignment_heads": True}, MAMBA_CODE, VIT_CODE),
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

    publish(tmp_path / "model", REPO, check_download=False)
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
    publish(folder, "alice/detector", check_download=False)
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


def test_parts_are_found_at_any_depth_and_others_are_not_ours():
    damaged = {"model_type": ["videovit"]}
    config = {"vision_config": {"model_type": "instructblip_vision_model", "parts": damaged}, "text_config": None}
    assert types_inside(config) == set()
    assert types_inside(config | {"whole": {"model_type": "bert", "backbone_config": {"model_type": "videovit"}}}) == {
        "videovit"
    }
