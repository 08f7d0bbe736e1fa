"""`--labels`: names of classes, from the command line of a conversion to the answers of a pipeline."""

import json

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import AutoConfig, AutoModelForVideoClassification, pipeline

from conversion import hf_videomae, videomae, videomamba
from hf_video.loading.class_names import read_class_names
from tests.testing.goldens import load_golden, write_original_config
from tests.testing.videos import encode_video

# Source, family and case with a checkpoint of a classifier.
CLASSIFIERS = [(hf_videomae, "videovit", "hf_videomae_classification"), (videomamba, "videomamba", "image")]


def arguments(family, case, tmp_path, key="kwargs"):
    golden = load_golden(family, case)
    if not (golden.folder / "checkpoint.pth").exists():
        return [str(golden.folder), str(tmp_path / "model")]
    config = write_original_config(golden, tmp_path, key)
    return [str(golden.folder / "checkpoint.pth"), str(tmp_path / "model"), "--original-config", str(config)]


def write_names(folder, number):
    names = [f"class {index} of {number}" for index in range(number)]
    (folder / "names.txt").write_text("\n".join(names))
    return names, ["--labels", str(folder / "names.txt")]


def fails(main, words, capsys):
    with pytest.raises(SystemExit) as exit_request:
        main(words)
    assert exit_request.value.code == 2
    return capsys.readouterr().err


@pytest.mark.parametrize(("source", "family", "case"), CLASSIFIERS)
def test_every_classifier_answers_with_its_names(tmp_path, source, family, case):
    golden = load_golden(family, case)
    names, words = write_names(tmp_path, golden.expected["logits"].shape[-1])
    source.main([*arguments(family, case, tmp_path), *words])
    saved = json.loads((tmp_path / "model" / "config.json").read_text())
    assert saved["id2label"] == {str(index): name for index, name in enumerate(names)}
    assert saved["label2id"] == {name: index for index, name in enumerate(names)}
    frames = np.random.default_rng(0).integers(0, 256, (20, 64, 80, 3), dtype=np.uint8)
    if case == "image":
        image = Image.fromarray(frames[0])
        answers = pipeline("image-classification", str(tmp_path / "model"), top_k=len(names))(image)
    else:
        video = encode_video(tmp_path / "video.mp4", frames)
        answers = pipeline("video-classification", str(tmp_path / "model"), top_k=len(names))(video)
    assert {answer["label"] for answer in answers} == set(names)


def test_names_follow_the_rows_of_the_head(tmp_path):
    golden = load_golden("videovit", "videomae_finetune")
    names, words = write_names(tmp_path, golden.expected["logits"].shape[-1])
    videomae.main([*arguments("videovit", "videomae_finetune", tmp_path), *words])
    model = AutoModelForVideoClassification.from_pretrained(tmp_path / "model")
    with torch.no_grad():
        logits = model(golden.inputs["pixel_values"].transpose(1, 2)).logits
    for row, expected in zip(logits, golden.expected["logits"], strict=True):
        assert model.config.id2label[int(row.argmax())] == names[int(expected.argmax())]


def test_a_list_of_torchvision_names_a_head_of_its_size(tmp_path, capsys):
    pretrained = arguments("videovit", "videomae_pretrain", tmp_path)
    videomae.main([*pretrained, "--task", "video-classification", "--labels", "kinetics400"])
    config = AutoConfig.from_pretrained(tmp_path / "model")
    assert list(config.id2label.values()) == read_class_names("kinetics400")
    case = arguments("videovit", "videomae_finetune", tmp_path)
    number = load_golden("videovit", "videomae_finetune").expected["logits"].shape[-1]
    error = fails(videomae.main, [case[0], str(tmp_path / "b"), *case[2:], "--labels", "imagenet1k"], capsys)
    assert f"1000 names, but the head has {number} classes" in error
    assert not (tmp_path / "b").exists()


def test_a_new_head_has_a_row_for_each_name(tmp_path):
    names, words = write_names(tmp_path, 5)
    options = ["--task", "video-classification"]
    videomamba.main([*arguments("videomamba", "pretrain_masked", tmp_path), *options, *words])
    model = AutoModelForVideoClassification.from_pretrained(tmp_path / "model")
    assert list(model.config.id2label.values()) == names and model.classifier.out_features == 5


def test_a_model_without_classes_refuses_names(tmp_path, capsys):
    _, words = write_names(tmp_path, 5)
    error = fails(videomae.main, [*arguments("videovit", "videomae_pretrain", tmp_path), *words], capsys)
    assert "VideoViTForPreTraining has no classification head" in error and not (tmp_path / "model").exists()


def test_a_wrong_file_is_refused_before_anything_is_read(tmp_path, capsys):
    (tmp_path / "names.txt").write_text("up\nup\n")
    for labels, message in (
        (str(tmp_path / "names.txt"), "class 1 has no name of its own"),
        ("kinetics", "cannot be read"),
    ):
        words = [str(tmp_path / "missing.pth"), str(tmp_path / "model"), "--labels", labels]
        assert message in fails(videomae.main, words, capsys)
