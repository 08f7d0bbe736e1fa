"""The card that writes itself: true to the facts, valid, and with an example that runs."""

import json
import re
import shutil

import pytest
import torch
from huggingface_hub import HfApi, ModelCard
from safetensors.torch import load_file, save_file
from transformers import BertTokenizer

import hf_video
from hf_video.evaluation import audit_model
from hf_video.hub import publish, stage
from hf_video.hub.model_card import read_facts, write_card
from hf_video.inference import AuditSettings
from hf_video.loading.released import SHIPPED, model_path
from hf_video.training.facts import describe_source
from tests.data.detection_files import write_videos
from tests.hub.conftest import TINY_CLASSIFIERS, make_processor
from tests.hub_server.fixtures import run_in_fresh_process
from tests.models.video_text.video_text_testing import make
from tests.training.detection_testing import make_detector
from tests.training.detection_testing import make_processor as detection_processor

REPO = "alice/model"


@pytest.fixture
def card_of(staging, hub, unverified):
    """Stages a folder; returns its card."""

    def make(folder, **options):
        return ModelCard.load(stage(folder, staging, REPO, **options).folder / "README.md")

    return make


def test_it_states_what_training_recorded(card_of, trained_videovit):
    card = card_of(trained_videovit)
    facts = json.loads((trained_videovit / "training_facts.json").read_text())
    accuracy = facts["validation"]["eval_top1_accuracy"]
    for cell in (
        f"| train: sha256 | `{facts['data']['train']['sha256']}` |",
        f"| digits | validation | 8 | 1 clip x 1 crop | top-1 accuracy | {accuracy:.2%} |",
        f"| learning rate | {facts['recipe']['learning_rate']} |",
        f"| seed | {facts['seed']} |",
        f"| torch | {facts['versions']['torch']} |",
        f"| hardware | {facts['hardware']} |",
    ):
        assert cell in card.text
    card.validate()
    data = card.data
    assert (data.pipeline_tag, data.library_name) == ("video-classification", "transformers")
    assert data.metrics == ["accuracy"]
    # The videos are of no data set of the Hub.
    assert data.datasets is None and {result.dataset_type for result in data.eval_results} == {"unknown"}
    values = {result.metric_name: result.metric_value for result in data.eval_results}
    assert values["top-1 accuracy (1 clip x 1 crop)"] == round(accuracy, 4)


def test_an_audit_of_these_weights_is_on_it_and_one_of_others_is_not(
    trained_videovit, digits, tmp_path, card_of, caplog
):
    folder = shutil.copytree(trained_videovit, tmp_path / "audited")
    found = audit_model(AuditSettings(data=str(digits), model=str(folder), device="cpu", split="train"))
    text = card_of(folder).text
    assert "8 videos of the train split of digits" in text and str(digits) not in text
    for name, each in found["variants"].items():
        assert f"| {name.replace('_', ' ')} |" in text and f"| {each['sentence']} |" in text
    weights = load_file(folder / "model.safetensors")
    save_file({name: tensor + 1 for name, tensor in weights.items()}, folder / "model.safetensors", {"format": "pt"})
    assert "audit" not in read_facts(folder) and "audit.json is of other weights" in caplog.text


def test_its_example_runs_for_a_stranger(trained_videovit, hub, digits, tmp_path):
    publish(trained_videovit, REPO)
    shutil.copy(digits / "test" / "left-up" / "0000.mp4", tmp_path / "video.mp4")
    example, _ = re.findall(r"```python\n(.*?)```", ModelCard.load(REPO).text, re.DOTALL)
    process = run_in_fresh_process(hub, example, cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    assert "'score':" in process.stdout and "'label': '" in process.stdout


def test_a_detector_finds_people_and_actions(hub, tmp_path, unverified):
    model = make_detector()
    with torch.no_grad():
        # Every query finds a person.
        model.layers[-1].person_head.output.bias.copy_(torch.tensor([9.0, -9.0]))
    folder = tmp_path / "detector"
    for part in (model, detection_processor()):
        part.save_pretrained(folder)
    write_records(
        folder,
        {
            "data": {"train": {"num_key_frames": 3}, "validation": {"num_key_frames": 2}},
            **{"validation": {"eval_mean_ap": 0.25}, "recipe": {"learning_rate": 0.1}},
        },
        **{"metrics": {"split": "test", "num_key_frames": 4, "mean_ap": 0.5}},
    )
    publish(folder, REPO)
    card = ModelCard.load(REPO)
    card.validate()
    assert card.data.pipeline_tag == "object-detection" and card.data.metrics == ["mean_average_precision"]
    assert "It finds people, and knows 3 actions: sit, run, talk." in card.text
    values = {result.dataset_split: result.metric_value for result in card.data.eval_results}
    assert values == {"test": 0.5, "validation": 0.25}
    assert "| test | 4 | 1 clip a key frame | mAP at IoU 0.5 | 50.00% |" in card.text
    assert "| train: num key frames | 3 |" in card.text and "How it was trained was not recorded" not in card.text
    assert "The model is not run: there is no self-test of a STMixerForActionDetection." in card.text
    (example,) = re.findall(r"```python\n(.*?)```", card.text, re.DOTALL)
    (write_videos(tmp_path) / "a.mp4").rename(tmp_path / "video.mp4")
    process = run_in_fresh_process(hub, example, cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    lines = process.stdout.splitlines()
    assert len(lines) == 6 and all(re.fullmatch(r"\[(-?\d+, ){3}-?\d+\] (sit|run|talk)", line) for line in lines)


def test_a_classifier_of_frames_says_what_a_frame_gets_and_when(hub, digits, tmp_path):
    labels = {"id2label": {0: "hell", 1: "dunkel", 2: "Pause"}, "background_label": "Pause"}
    causal = {"bidirectional": False, "use_temporal_position_embeddings": False, "tubelet_size": 1, "frame_delay": 2}
    config = hf_video.VideoMambaConfig(**TINY_CLASSIFIERS["VideoMamba"], **causal, **labels)
    folder = tmp_path / "frames"
    for part in (hf_video.VideoMambaForFrameClassification(config), make_processor()):
        part.save_pretrained(folder)
    data = {"train": {"num_videos": 1}, "validation": {"num_videos": 1}}
    report = {"split": "validation", "num_videos": 1, "frame_accuracy": 0.75, "edit_score": 0.5}
    write_records(
        folder,
        {"data": data, "clips": {"frame_interval": 0.125}},
        metrics=report | {"f1_10": 0.6, "f1_25": 0.5, "f1_50": 0.4},
    )
    publish(folder, REPO)
    card = ModelCard.load(REPO)
    card.validate()
    # The page of the Hub shows a pipeline for a tag, and that of videos takes the weights for a classifier of clips.
    assert card.data.pipeline_tag is None and "pipeline" not in card.text
    assert card.data.metrics == ["accuracy", "edit_score", "f1"]
    assert "It gives every frame one of 3 classes: hell, dunkel, Pause. Frames of `Pause` are no segment." in card.text
    assert "The scores of a frame come 2 token frames (0.25 s) later." in card.text
    for title, value in (("frame accuracy", 75), ("edit score", 50), ("F1 at 10% overlap", 60)):
        assert f"| validation | 1 | all frames | {title} | {value}.00% |" in card.text
    assert "| train: num videos | 1 |" in card.text and "frames of a video at a time" not in card.text
    example, self_test = re.findall(r"```python\n(.*?)```", card.text, re.DOTALL)
    shutil.copy(digits / "test" / "left-up" / "0000.mp4", tmp_path / "video.mp4")
    process = run_in_fresh_process(hub, example + self_test, cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    *frames, first, second = process.stdout.splitlines()
    assert len(frames) == 2 and all(re.fullmatch(r"frame \d: (hell|dunkel|Pause)", line) for line in frames)
    assert all("of the largest logit" in line for line in (first, second))


def write_records(folder, facts, **reports):
    """What training writes beside a model."""
    (folder / "training_facts.json").write_text(json.dumps(facts))
    (folder / "report").mkdir()
    for name, content in reports.items():
        (folder / "report" / f"{name}.json").write_text(json.dumps(content))


def test_a_metric_of_ones_own_and_the_kept_epoch_are_stated(tmp_path, trained_videovit, hub):
    hf_video.VideoViTForVideoClassification.from_pretrained(trained_videovit).save_pretrained(tmp_path)
    measured = {"eval_loss": 0.5, "eval_worst_recall": 0.75, "eval_runtime": 1.5, "eval_samples_per_second": 3.5}
    facts = {"data": {"validation": {"num_videos": 7}}, "validation": measured, "recipe": {}, "kept_epoch": 4.0}
    write_card(tmp_path, REPO, facts)
    card = ModelCard.load(tmp_path / "README.md")
    card.validate()
    assert [result.metric_value for result in card.data.eval_results] == [0.75]
    assert "| own videos | validation | 7 | 1 clip x 1 crop | worst recall | 0.75 |" in card.text
    assert "| kept epoch | 4.0 |" in card.text


def test_a_regression_has_values_and_errors(tmp_path, hub):
    config = hf_video.VideoViTConfig(**TINY_CLASSIFIERS["VideoViT"], id2label={0: "speed"}, label2id={"speed": 0})
    hf_video.VideoViTForVideoClassification(config).save_pretrained(tmp_path)
    errors = {"eval_mse": 0.123456, "eval_mae": 0.25, "eval_r2": 0.5}
    write_card(tmp_path, REPO, {"data": {"validation": {"num_videos": 7}}, "validation": errors, "recipe": {}})
    card = ModelCard.load(tmp_path / "README.md")
    card.validate()
    assert card.data.metrics == ["mse", "mae", "r_squared"]
    assert "| own videos | validation | 7 | 1 clip x 1 crop | mean squared error | 0.1235 |" in card.text
    assert "It estimates 1 values: speed." in card.text and "classes" not in card.text


def test_a_model_of_features_has_no_metrics_of_a_classifier(tmp_path, trained_videovit):
    """Its facts may be those of the classifier that it was taken from."""
    classifier = hf_video.VideoViTForVideoClassification.from_pretrained(trained_videovit)
    classifier.videovit.save_pretrained(tmp_path)
    facts = json.loads((trained_videovit / "training_facts.json").read_text())
    write_card(tmp_path, REPO, facts)
    card = ModelCard.load(tmp_path / "README.md")
    assert card.data.pipeline_tag == "feature-extraction"
    assert card.data.eval_results is None and card.data.metrics is None and "## Results" not in card.text


def test_the_report_of_a_test_split_comes_first(tmp_path, trained_videovit, card_of):
    folder = shutil.copytree(trained_videovit, tmp_path / "model")
    (folder / "report").mkdir()
    report = {"split": "test", "num_videos": 40, "top1_accuracy": 0.925, "top1_interval": [0.801, 0.974]}
    (folder / "report" / "metrics.json").write_text(json.dumps(report | {"chance": 0.1}))
    for name in ("confusion_matrix", "worst_clips"):
        (folder / "report" / f"{name}.png").touch()
    text = card_of(folder).text
    worth = "92.50% (95% interval 80.1% to 97.4%, by chance 10.0%)"
    row = text.index(f"| digits | test | 40 | 1 clip x 1 crop | top-1 accuracy | {worth} |")
    assert row < text.index("| validation |")
    # The worst clips show frames of the user's videos.
    assert "(report/confusion_matrix.png)" in text and "worst_clips" not in text


def test_a_source_is_named_with_the_licence_that_the_hub_knows(trained_videovit, card_of):
    api = HfApi()
    api.create_repo("alice/base")
    content = b"---\nlicense: cc-by-nc-4.0\n---\n"
    api.upload_file(path_or_fileobj=content, path_in_repo="README.md", repo_id="alice/base")
    facts = {"source": {"name": "alice/base"}}
    card = card_of(trained_videovit, facts=facts)
    assert (card.data.base_model, card.data.license) == ("alice/base", "cc-by-nc-4.0")
    assert "fine-tuned from `alice/base`" in card.text


@pytest.mark.parametrize(
    ("start", "named", "stated"),
    [(SHIPPED, None, "apache-2.0"), (SHIPPED, "mit", "mit"), (None, "mit", "mit"), (None, None, None)],
)
def test_a_licence_is_that_which_is_named_or_that_of_the_start(
    start, named, stated, trained_videovit, card_of, caplog
):
    facts = {"source": describe_source(start and model_path(start))}
    card = card_of(trained_videovit, facts=facts, license=named)
    assert card.data.license == stated and ("name one with --license" in caplog.text) == (stated is None)


def test_a_model_of_videos_and_texts_says_so(tmp_path, card_of):
    tokenizer = BertTokenizer({"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "[MASK]": 4})
    processor = hf_video.VideoTextDualEncoderProcessor(make_processor(), tokenizer)
    for part in (make(), processor):
        part.save_pretrained(tmp_path / "model")
    card = card_of(tmp_path / "model")
    # With the tag of features the page of the Hub would show code that gives the model no text.
    assert card.data.pipeline_tag is None and "It compares videos with texts." in card.text
    assert "The model is not run: there is no self-test of a VideoTextDualEncoderModel." in card.text


def test_what_was_not_recorded_is_not_claimed(trained_videovit, card_of):
    card = card_of(trained_videovit, facts={})
    assert card.data.eval_results is None and "the data above" not in card.text
    assert "How it was trained was not recorded." in card.text and "## Recipe" not in card.text


def test_names_that_users_chose_do_not_become_markup(trained_videovit, tmp_path):
    shutil.copy(trained_videovit / "config.json", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["id2label"]["0"] = "<script>alert(1)</script>"
    (tmp_path / "config.json").write_text(json.dumps(config))
    write_card(tmp_path, REPO, {"data": {"train": {"name": "a|b<i>"}}})
    text = (tmp_path / "README.md").read_text()
    assert "<script>" not in text and "a\\|b&lt;i&gt;" in text
