"""`hf-video train --task frame-classification`: from random weights, from a clip classifier, and what is measured."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from transformers import (
    AutoModelForTokenClassification,
    AutoModelForVideoClassification,
    AutoVideoProcessor,
    VJEPA2Model,
)

from hf_video import VideoMambaConfig, VideoMambaForFrameClassification, VideoMambaForVideoClassification
from hf_video.cli.main import main
from hf_video.loading.released import START_FOLDER
from hf_video.processing import VideoClipProcessor
from hf_video.training import Distillation, TrainFrameSettings
from hf_video.training.frames import FramesTask
from hf_video.training.values import choose_values
from tests.testing.transformers_families import FAMILIES, save_family

from ..data.frame_videos import SEGMENTS, write_flashes, write_points

SIZES = {"hidden_size": 16, "num_hidden_layers": 1, "patch_size": 16, "tubelet_size": 1}
SCRATCH = [word for name, value in SIZES.items() for word in (f"--{name.replace('_', '-')}", str(value))]
OPTIONS = ("--task", "frame-classification", "--device", "cpu", "--report-to", "none", "--disable-tqdm")


@pytest.fixture(scope="module")
def times(tmp_path_factory):
    return write_flashes(tmp_path_factory.mktemp("times"), num_videos=3)


def run(times, folder, *words):
    words = (*OPTIONS, "--output-dir", folder, "--per-device-train-batch-size", "4", *words)
    return main(["train", str(times), *map(str, words)])


def measure(times, folder, capsys, *words):
    capsys.readouterr()
    assert main(["evaluate", str(times), *OPTIONS[:4], "--model", str(folder), "--json", *words]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_causal_model_learns_when_it_is_bright_and_is_loaded_again(times, tmp_path, capsys):
    words = ("--causal", "--num-frames", "16", "--image-size", "16", "--fps", "8", "--background", "rest", *SCRATCH)
    folder = tmp_path / "model"
    assert run(times, folder, "--epochs", "10", "--learning-rate", "0.01", *words) == 0
    out = capsys.readouterr().out
    assert "1 of 3 videos" in out and f"--model {folder}" in out
    assert "on 32 validation frames of 1 video (chance 37.5%" in out
    assert all((folder / "report" / f"{name}.png").is_file() for name in ("curves", "confusion_matrix", "worst_clips"))
    assert "| bright | 8 | 1 | 100.0% |" in (folder / "report" / "report.md").read_text()
    metrics = json.loads((folder / "report" / "metrics.json").read_text())
    assert metrics["training_frame_accuracy"] > 0.9 and metrics["interval"][0] < metrics["frame_accuracy"]
    assert metrics["num_frames"] == 32 and metrics["frame_accuracy"] > 0.9 and metrics["f1"][2] == 1
    model = AutoModelForTokenClassification.from_pretrained(folder)
    assert type(model).__name__ == "VideoMambaForFrameClassification" and not model.config.bidirectional
    assert [model.config.id2label[number] for number in range(3)] == ["bright", "dark", "rest"]
    assert model.config.background_label == "rest"
    assert AutoVideoProcessor.from_pretrained(folder).frame_interval == 1 / 8
    measured = measure(times, folder, capsys)
    assert (measured["split"], measured["part_of_training"]) == ("validation", "held out")
    assert measured["num_videos"] == 1 and measured["num_frames"] == 32 and measured["num_segments"] == 2
    assert measured["frame_accuracy"] > 0.9 and measured["f1"][2] == 1
    measured = measure(times, folder, capsys, "--split", "train")
    assert measured["part_of_training"] == "trained on" and measured["num_frames"] == 64
    assert measured["known_videos"] == {"train": 2, "validation": 0}
    other = times.with_name("other.csv")
    other.write_text(times.read_text().replace("bright,1,2", "bright,1,1.5"))
    measured = measure(other, folder, capsys)
    assert (measured["part_of_training"], measured["num_videos"]) == ("held out", 1)
    trained = sorted({Path(path).name for path, *_ in trained_rows(folder)["train"]})
    rows = [row for row in times.read_text().splitlines() if row.partition(",")[0] in ("path", "video", *trained)]
    # An unknown second in the middle of a video leaves two parts of it.
    other.write_text("\n".join([*rows, f"{trained[0]},to label,1.5,2"]))
    assert main(["evaluate", str(other), *OPTIONS[:4], "--model", str(folder)]) == 0
    assert "warning: trained on: 2 of these 2 videos" in capsys.readouterr().out


def test_a_broken_video_is_named_and_can_be_left_out(times, tmp_path, capsys):
    (tmp_path / "broken.mp4").write_text("no video")
    shutil.copytree(times.parent, tmp_path, dirs_exist_ok=True)
    with open(tmp_path / times.name, "a") as file:
        file.write("broken.mp4,bright,0,1\n")
    words = ("--epochs", "1", "--num-frames", "8", "--image-size", "16", "--background", "rest", *SCRATCH)
    assert run(tmp_path / times.name, tmp_path / "model", *words) == 2
    error = capsys.readouterr().err
    assert "broken.mp4" in error and "--on-error skip" in error
    assert run(tmp_path / times.name, tmp_path / "model", *words, "--on-error", "skip") == 0
    assert "broken.mp4" in (tmp_path / "model" / "report" / "report.md").read_text()
    measured = measure(tmp_path / times.name, tmp_path / "model", capsys)
    assert (measured["part_of_training"], measured["num_videos"]) == ("held out", 1)
    other = tmp_path / "other.csv"
    (not_trained,) = (Path(path).name for path in held_out(tmp_path / "model"))
    other.write_text("".join(line for line in (tmp_path / times.name).open() if not line.startswith(not_trained)))
    measured = measure(other, tmp_path / "model", capsys, "--on-error", "skip")
    assert measured["num_videos"] == 2 and measured["broken_videos"] == [str(tmp_path / "broken.mp4")]


def test_the_bundled_model_gives_its_encoder_unless_another_kind_is_asked_for(times, tmp_path, capsys):
    folder = tmp_path / "model"
    assert run(times, folder, "--background", "rest", "--max-steps", "1") == 0
    assert "Model: the bundled model" in capsys.readouterr().out
    model = AutoModelForTokenClassification.from_pretrained(folder)
    assert type(model).__name__ == "VideoViTForFrameClassification" and model.config.num_frames == 8
    begun = AutoModelForVideoClassification.from_pretrained(START_FOLDER, dtype=torch.float32)
    weight = "videovit.layers.0.mlp.fc1.weight"
    torch.testing.assert_close(model.state_dict()[weight], begun.state_dict()[weight], atol=0.01, rtol=0)
    options = json.loads((folder / "train_options.json").read_text())
    assert (options["model"], options["learning_rate"]) == ("start", 8e-4)
    assert run(times, tmp_path / "named", "--model", "start", "--background", "rest", "--max-steps", "1") == 0
    named = AutoModelForTokenClassification.from_pretrained(tmp_path / "named").state_dict()
    assert all(torch.equal(value, named[name]) for name, value in model.state_dict().items())
    for other in ({"causal": True}, {"family": "videovit"}, {"hidden_size": 24}):
        chosen = choose_values(TrainFrameSettings(data=str(times), output_dir="out", **other))
        choice = FramesTask().choose_model(other.keys(), chosen)
        assert choice.model is None and chosen.family in choice.sentence
        assert f"--{next(iter(other)).replace('_', '-')} is given" in choice.sentence


def test_labels_of_feral_are_learned_and_measured_by_its_average_precision(times, tmp_path, capsys):
    labels = {f"{number}.mp4": [0] * 10 + [1] * 10 + [2] * 15 + [0] * 5 for number in range(3)}
    splits = {"train": ["0.mp4", "1.mp4"], "val": ["2.mp4"], "test": [], "inference": []}
    content = {"class_names": {"0": "other", "1": "bright", "2": "dark"}, "is_multilabel": False}
    file = times.with_name("feral.json")
    file.write_text(json.dumps(content | {"labels": labels, "splits": splits}))
    words = ("--causal", "--num-frames", "16", "--image-size", "16", "--fps", "8", "--background", "other", *SCRATCH)
    assert run(file, tmp_path / "model", "--epochs", "10", "--learning-rate", "0.01", *words) == 0
    measured = measure(file, tmp_path / "model", capsys)
    assert measured["split"] == "validation" and measured["num_frames"] == 32
    assert {*measured["classes"]} == {"bright", "dark", "other"} and measured["mean_average_precision"] > 0.9


def test_a_clip_classifier_gives_its_encoder(times, tmp_path, caplog):
    config = VideoMambaConfig(image_size=32, num_frames=8, **SIZES, num_labels=2)
    source = tmp_path / "clips"
    clips = VideoMambaForVideoClassification(config)
    clips.save_pretrained(source)
    folder = tmp_path / "model"
    words = ("--model", source, "--smoothing-loss-weight", "0.15", "--delay", "2", "--frame-pooling", "last")
    assert run(times, folder, *words, "--learning-rate", "0", "--epochs", "1", "--validation-fraction", "0.4") == 0
    assert "gives its encoder: the head starts afresh, for 2 classes (bright, dark)" in caplog.text
    model = AutoModelForTokenClassification.from_pretrained(folder)
    expected, kept = clips.videomamba.state_dict(), model.videomamba.state_dict()
    assert all(torch.equal(kept[name], expected[name]) for name in kept)
    assert (model.config.smoothing_loss_weight, model.config.frame_delay) == (0.15, 2)
    assert model.config.frame_pooling == "last"


@pytest.mark.parametrize("words", [(), ("--background", "other")], ids=["that of the model", "another class"])
def test_further_training_keeps_background_and_delay(words, times, tmp_path, capsys):
    before = dict(enumerate(["bright", "dark", "rest"]))
    config = VideoMambaConfig(
        image_size=16, num_frames=8, **SIZES, id2label=before, background_label="rest", frame_delay=1
    )
    source = VideoMambaForFrameClassification(config)
    source.save_pretrained(tmp_path / "source")
    folder = tmp_path / "model"
    assert run(times, folder, "--model", tmp_path / "source", *words, "--learning-rate", "0", "--epochs", "1") == 0
    model = AutoModelForTokenClassification.from_pretrained(folder)
    background = words[-1] if words else "rest"
    assert [*model.config.id2label.values()] == ["bright", "dark", background]
    assert model.config.background_label == background
    assert model.config.frame_delay == 1
    assert torch.equal(model.classifier.weight, source.classifier.weight) == (not words)
    said = f"Frames outside of all segments are 'rest', as in {tmp_path / 'source'}."
    assert (said in capsys.readouterr().out) == (not words)
    # All 32 frames but the first of each of the four clips, of which the label would be late.
    assert json.loads((folder / "report" / "metrics.json").read_text())["num_frames"] == 28


@pytest.mark.parametrize("family", FAMILIES)
def test_an_encoder_of_transformers_learns_frames(family, times, tmp_path, capsys, caplog):
    """With a loss that falls; it is resumed, and all that a classifier of frames is for takes it."""
    source = save_family(family, tmp_path / "source", ["others", "of", "clips"])
    folder = tmp_path / "model"
    words = ("--model", source, "--background", "rest", "--fps", "8", "--epochs", "3", "--learning-rate", "0.003")
    words = (*words, "--logging-steps", "1", "--frame-pooling", "last", "--no-load-best-model-at-end")
    assert run(times, folder, *words) == 0
    assert "gives its encoder: the head starts afresh" in caplog.text
    model = AutoModelForTokenClassification.from_pretrained(folder)
    assert type(model).__name__ == "VideoEncoderForFrameClassification" and model.config.frame_pooling == "last"
    last = max(folder.glob("checkpoint-*"), key=lambda path: int(path.name[11:]))
    states = json.loads((last / "trainer_state.json").read_text())
    losses = [row["loss"] for row in states["log_history"] if "loss" in row]
    assert losses[-1] < 0.9 * losses[0]

    trained = model.state_dict()
    shutil.rmtree(last)
    assert run(times, folder, *words, "--resume") == 0
    resumed = AutoModelForTokenClassification.from_pretrained(folder).state_dict()
    torch.testing.assert_close(resumed, trained, rtol=0, atol=0)

    measured = measure(times, folder, capsys)
    assert measured["part_of_training"] == "held out"
    assert measured["num_frames"] == 32 // model.config.tubelet_size
    video = times.with_name("0.mp4")
    assert main(["timeline", str(video), "--model", str(folder), "--output", str(tmp_path / "timeline")]) == 0
    assert main(["extract", str(video), "--model", str(folder), "--output", str(tmp_path / "features")]) == 0

    assert run(times, tmp_path / "again", "--model", folder, "--learning-rate", "0", "--epochs", "1") == 0
    again = AutoModelForTokenClassification.from_pretrained(tmp_path / "again").state_dict()
    torch.testing.assert_close(again, trained, rtol=0, atol=0)


def test_a_vjepa2_takes_clips_of_any_length(times, tmp_path):
    source, folder = save_family("vjepa2", tmp_path / "source", ["a", "b"]), tmp_path / "model"
    words = ("--num-frames", "8", "--freeze-layers", "3")
    assert run(times, folder, "--model", source, "--epochs", "1", *words) == 0
    model = AutoModelForTokenClassification.from_pretrained(folder)
    assert model.config.num_frames == AutoVideoProcessor.from_pretrained(folder).num_frames == 8
    assert model(torch.zeros(1, 8, 3, 32, 32)).logits.shape == (1, 4, 2)
    kept, expected = model.video_encoder.encoder, VJEPA2Model.from_pretrained(source).encoder
    for name in ("embeddings", "layer"):
        torch.testing.assert_close(*(getattr(each, name).state_dict() for each in (kept, expected)), rtol=0, atol=0)


def test_the_end_of_a_single_video_is_held_out(tmp_path, capsys):
    times = write_flashes(tmp_path, num_videos=1)
    words = ("--num-frames", "8", "--image-size", "16", "--family", "videovit", "--num-attention-heads", "2", *SCRATCH)
    assert run(times, tmp_path / "model", *words, "--epochs", "1", "--background", "rest") == 0
    assert "Held out: the last 20 % of the seconds of each class of 0.mp4" in capsys.readouterr().out
    metrics = json.loads((tmp_path / "model" / "report" / "metrics.json").read_text())
    assert metrics["split"] == "validation" and metrics["num_frames"] == 4
    measured = measure(times, tmp_path / "model", capsys)
    assert (measured["part_of_training"], measured["num_frames"]) == ("held out", 4)
    assert measured["known_videos"] == {"train": 0, "validation": 1}


def test_a_training_says_that_classes_share_seconds(tmp_path, capsys):
    times = write_flashes(tmp_path, num_videos=1)
    label, start, end = SEGMENTS[0]
    other = next(name for name, *_ in SEGMENTS if name != label)
    times.write_text(f"{times.read_text()}0.mp4,{other},{start},{(start + end) / 2}\n")
    words = ("--num-frames", "8", "--image-size", "16", "--family", "videovit", "--num-attention-heads", "2", *SCRATCH)
    assert run(times, tmp_path / "model", *words, "--epochs", "1", "--background", "rest") == 0
    assert f"`hf-video inspect {times}` lists" in capsys.readouterr().out
    model = AutoModelForTokenClassification.from_pretrained(tmp_path / "model")
    assert model.config.problem_type == "multi_label_classification"


@pytest.mark.parametrize("kind", ["single_label_classification", "multi_label_classification"])
def test_a_student_learns_the_frames_of_its_teacher(kind):
    sizes = {"image_size": 16, "num_frames": 8, **SIZES, "num_labels": 3, "problem_type": kind}
    torch.manual_seed(0)
    teacher = VideoMambaForFrameClassification(VideoMambaConfig(**sizes)).eval()
    causal = {"bidirectional": False, "use_temporal_position_embeddings": False, "frame_delay": 2}
    student = VideoMambaForFrameClassification(VideoMambaConfig(**sizes, **causal)).eval()
    clips, mask = torch.randn(2, 6, 3, 16, 16), torch.tensor([[1] * 6, [1] * 4 + [0] * 2])
    logits = student(clips, attention_mask=mask).logits
    found = Distillation(teacher, student, temperature=2.0).loss(clips, logits, mask)
    known = teacher(clips, attention_mask=mask).logits
    # Frames 2 to 5 of the first clip answer for 0 to 3, frames 2 and 3 of the second for 0 and 1.
    learned = torch.cat([logits[0, 2:], logits[1, 2:4]]) / 2
    expected = torch.cat([known[0, :4], known[1, :2]]) / 2
    if kind == "single_label_classification":
        p, q = expected.softmax(-1), learned.softmax(-1)
        divergence = (p * (p / q).log()).sum(-1).mean()
    else:
        p, q = expected.sigmoid(), learned.sigmoid()
        divergence = (p * (p / q).log() + (1 - p) * ((1 - p) / (1 - q)).log()).mean()
    torch.testing.assert_close(found, 4 * divergence)


def test_a_causal_student_starts_from_the_forward_weights_of_its_teacher(times, tmp_path):
    names = {"id2label": {0: "bright", 1: "dark"}, "label2id": {"bright": 0, "dark": 1}}
    config = VideoMambaConfig(image_size=16, num_frames=8, **SIZES, **names, use_pool_norm=True)
    teacher, folder = VideoMambaForFrameClassification(config), tmp_path / "teacher"
    processor = VideoClipProcessor(num_frames=8, size={"height": 16, "width": 16}, do_center_crop=False)
    for part in (teacher, processor):
        part.save_pretrained(folder)
    words = ("--model", folder, "--causal", "--distillation-teacher", folder, "--delay", "1", "--background", "dark")
    assert run(times, tmp_path / "student", *words, "--learning-rate", "0", "--epochs", "1") == 0
    student = AutoModelForTokenClassification.from_pretrained(tmp_path / "student")
    expected, kept = teacher.state_dict(), student.state_dict()
    assert len(kept) < len(expected) and all(torch.equal(kept[name], expected[name]) for name in kept)


def test_other_models_and_settings_are_refused(times, tmp_path, capsys):
    words = ["train", str(times), "--output-dir", str(tmp_path / "model")]
    assert main([*words, "--fps", "8"]) == 2
    assert "--fps has no effect here, but with --task frames" in capsys.readouterr().err
    assert main([*words, *OPTIONS, "--causal", "--family", "videovit"]) == 2
    assert "--causal is for a VideoMamba" in capsys.readouterr().err
    source = save_family("vivit", tmp_path / "source", ["a", "b"])
    for word in ("--causal", "--drop-path-rate=0.1", "--image-size=48", "--num-frames=8"):
        assert main([*words, *OPTIONS, "--model", str(source), word]) == 2
        assert word[2:].partition("=")[0].replace("-", "_") in capsys.readouterr().err.replace("--", "")
    assert not (tmp_path / "model").exists()


@pytest.mark.slow
def test_instants_are_trained_found_and_measured(tmp_path, capsys):
    """What the timeline writes is read as annotations again."""
    points, folder, found = write_points(tmp_path, num_videos=3), tmp_path / "model", tmp_path / "found"
    words = ("--num-frames", "12", "--image-size", "16", "--fps", "10", *SCRATCH)
    assert run(points, folder, *words) == 2
    assert "blink, flash are instants" in capsys.readouterr().err and not folder.exists()
    words = (*words, "--background", "rest", "--epochs", "20", "--learning-rate", "0.02")
    assert run(points, folder, *words, "--choose", "point_width=0.4") == 0
    config = AutoModelForTokenClassification.from_pretrained(folder).config
    assert (config.point_labels, config.point_width, config.background_label) == (["blink", "flash"], 0.4, "rest")
    report = json.loads((folder / "report" / "metrics.json").read_text())
    assert report["points"]["num_points"] == 5 and report["point_map"] == report["points"]["average_map"]
    assert "5 instants" in (folder / "report" / "report.md").read_text()
    measured = measure(points, folder, capsys)["points"]
    assert measured["num_points"] == 5 and measured["average_map_fine"] > 0.9
    (video,) = held_out(folder)
    words = ["--onset", "0.2", "--output", str(found), "--format", "boris"]
    assert main(["timeline", video, "--model", str(folder), *words]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) >= 5 and all(len(line.split()) == 3 for line in printed)
    words = ["--task", "segments", "--ground-truth", str(points), "--json"]
    assert main(["evaluate", str(found / "segments.csv"), *words]) == 0
    figures = json.loads(capsys.readouterr().out)["points"]
    assert (figures["num_points"], figures["num_predictions"]) == (15, len(printed)) and figures["average_map"] > 0.2
    for name, words in (("segments.csv", ()), ("segments.boris", ("--choose", "by=all"))):
        assert measure(found / name, folder, capsys, *words)["points"]["f1"][0] > 0
        assert main(["inspect", str(found / name), *words]) == 0
        assert f"{len(printed)} labelled clips" in capsys.readouterr().out


def trained_rows(folder):
    return json.loads((folder / "trained_videos.json").read_text())["splits"]


def held_out(folder):
    return {path for path, *_ in trained_rows(folder)["validation"]}
