"""The commands with the video classifiers of Transformers, trained for a moment."""

import json

import numpy as np
import pytest
import torch
from transformers import AutoModelForVideoClassification, BertConfig, BertForSequenceClassification

from hf_video.cli.main import main
from hf_video.loading.heads import load_trained_classifier
from hf_video.loading.processors import load_processor
from tests.testing.transformers_families import FAMILIES, NUM_FRAMES, save_family

RUN = ["--epochs=2", "--batch-size=4", "--device=cpu", "--gradient-accumulation-steps=2", "--validation-fraction=0.5"]
# `tests/loading/test_heads.py` quickly trains the others.
EACH_FAMILY = [name if name == "vjepa2" else pytest.param(name, marks=pytest.mark.slow) for name in FAMILIES]


@pytest.fixture(scope="module")
def video(few):
    return str(min(few.glob("test/*/*.mp4")))


@pytest.fixture(scope="module")
def source(few, tmp_path_factory):
    """Makes the folder of a family as Transformers saved it, with the classes of the videos."""
    names = sorted(path.name for path in (few / "train").iterdir())
    folder = tmp_path_factory.mktemp("sources")
    return lambda family, **options: save_family(family, folder / family, names, **options)


@pytest.fixture(scope="module", params=EACH_FAMILY)
def finished(request, few, source, tmp_path_factory):
    """The output folder of a finished training of each family."""
    output = tmp_path_factory.mktemp("finished") / request.param
    words = ["train", few, "--model", source(request.param), "--output-dir", output, *RUN]
    assert main([str(word) for word in words]) == 0
    return output


def test_the_trained_model_is_the_best_checkpoint(finished):
    state = json.loads(max(finished.glob("checkpoint-*/trainer_state.json")).read_text())
    best = AutoModelForVideoClassification.from_pretrained(state["best_model_checkpoint"])
    torch.testing.assert_close(load_trained_classifier(finished).state_dict(), best.state_dict(), rtol=0, atol=0)
    metrics = json.loads((finished / "report" / "metrics.json").read_text())
    assert metrics["num_videos"] == 8 and metrics["clip"] == f"{NUM_FRAMES} frames of 32 x 32 pixels, dense"


def test_predict_evaluate_and_the_model_agree(finished, few, video, tmp_path, says):
    out = says("predict", video, "--model", finished, "--device", "cpu", "--json", "--top", "1")
    (predicted,) = json.loads(out.splitlines()[-1])["predictions"]
    model = AutoModelForVideoClassification.from_pretrained(finished).eval()
    inputs = load_processor(finished, model.config)(video, return_tensors="pt")
    with torch.inference_mode():
        scores = model(**inputs).logits.reshape(-1).softmax(0)
    assert predicted["label"] == model.config.id2label[int(scores.argmax())]
    assert predicted["score"] == pytest.approx(float(scores.max()), abs=1e-5)

    table = tmp_path / "table.csv"
    assert main(["evaluate", str(few), "--model", str(finished), "--device", "cpu", "--predictions", str(table)]) == 0
    row = next(row for row in table.read_text().splitlines() if row.startswith(video))
    assert f",{predicted['label']}," in row


def test_features_of_windows_are_those_of_the_head(finished, video, tmp_path):
    words = ["--model", finished, "--output", tmp_path / "features", "--device", "cpu", "--stride", "1", "--fps", "8"]
    assert main(["extract", video, *map(str, words)]) == 0
    (file,) = (tmp_path / "features").rglob("*.npy")
    features = np.load(file)
    model = load_trained_classifier(finished)
    assert features.shape[1] == model.classifier.in_features and len(features) > 1
    assert np.isfinite(features).all() and features.std() > 0


def test_a_timeline_has_segments_of_known_classes(finished, video, tmp_path):
    words = ["--model", finished, "--output", tmp_path / "timeline", "--onset", "0.01", "--offset", "0.005"]
    assert main(["timeline", video, *map(str, words), "--device", "cpu"]) == 0
    (segments,) = json.loads((tmp_path / "timeline" / "segments.json").read_text())["results"].values()
    assert {segment["label"] for segment in segments} <= set(load_trained_classifier(finished).config.label2id)
    assert segments


def test_probe(finished, few, tmp_path):
    words = ["--validation-fraction=0.5", "--model", finished, "--output-dir", tmp_path / "probe"]
    words += ["--features", tmp_path / "kept", "--device=cpu", "--epochs=1"]
    assert main(["probe", str(few), *map(str, words)]) == 0
    assert json.loads((tmp_path / "probe" / "report" / "metrics.json").read_text())["num_videos"] == 8


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_a_resumed_run_ends_with_the_weights_of_a_whole_one(family, few, source, tmp_path):
    folders = [tmp_path / "whole", tmp_path / "parts"]
    for folder in folders:
        words = ["train", few, "--model", source(family), "--output-dir", folder, *RUN]
        assert main([str(word) for word in words]) == 0
    last = max(folders[1].glob("checkpoint-*"), key=lambda path: int(path.name[11:]))
    for path in sorted(last.rglob("*"), reverse=True):
        path.unlink()
    last.rmdir()
    assert main(["train", str(few), "--output-dir", str(folders[1]), "--resume"]) == 0
    whole, resumed = (load_trained_classifier(folder / last.name).state_dict() for folder in folders)
    torch.testing.assert_close(resumed, whole, rtol=0, atol=0)


@pytest.mark.parametrize("family", EACH_FAMILY)
def test_what_a_family_cannot_do_is_said_before_anything_is_written(family, few, source, tmp_path, fails):
    words = ["--layer-decay=0.75", "--freeze-layers=1", "--lora-rank=2", "--num-clips=2", "--image-size=48"]
    words += [] if family == "vjepa2" else ["--drop-path-rate=0.1"]
    for word in words:
        message = fails("train", few, "--model", source(family), "--output-dir", tmp_path / "run", word)
        assert word[2:].partition("=")[0].replace("-", "_") in message
    assert not (tmp_path / "run").exists()


def test_a_model_of_another_kind_is_named(few, video, tmp_path, fails):
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
    BertForSequenceClassification(BertConfig(**sizes, vocab_size=8)).save_pretrained(tmp_path / "bert")
    for words in (["predict", video], ["train", few, "--output-dir", tmp_path / "run"], ["timeline", video]):
        message = fails(*words, "--model", tmp_path / "bert")
        assert "'bert'" in message and "vjepa2" in message


def test_layers_that_see_frames_alone_have_no_features_of_windows(source, video, tmp_path, fails):
    words = ["--model", source("videoprism"), "--output", tmp_path / "features", "--layer", "0"]
    assert "pooling head" in fails("extract", video, *words)
