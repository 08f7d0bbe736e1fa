"""Training on captions: the losses, the recall of an evaluation, and the command."""

import json

import numpy as np
import pytest
import torch
from datasets import concatenate_datasets
from transformers import AutoModel, AutoProcessor, EvalPrediction

from hf_video.cli.main import main
from hf_video.data import TextTask, VideoDataset, hold_out
from hf_video.data.video_texts import load_captions
from hf_video.training import RetrievalTrainer, RetrievalTrainingArguments
from hf_video.training.retrieval import compute_retrieval_metrics
from tests.testing.trainers import LAST_WEIGHTS, make_model, weights_of

from .captions_testing import make_video_text_pair, write_captions


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_captions(tmp_path_factory.mktemp("captions"))


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory):
    saved = tmp_path_factory.mktemp("model")
    for part in make_video_text_pair():
        part.save_pretrained(saved)
    return saved


def make_arguments(folder, **options):
    return RetrievalTrainingArguments(str(folder), use_cpu=True, disable_tqdm=True, **LAST_WEIGHTS, **options)


def test_three_videos_are_learned(folder, tmp_path):
    model, processor = make_video_text_pair(loss_weights={"vtc": 1.0, "vtm": 1.0})
    options = {"max_steps": 120, "per_device_train_batch_size": 4, "learning_rate": 1e-2, "logging_steps": 1}
    arguments = make_arguments(tmp_path, **options, reading_threads=0)
    rows = load_captions(folder)["train"]
    sets = [VideoDataset(rows, TextTask(processor), training=training) for training in (True, False)]
    trainer = RetrievalTrainer(model, arguments, None, *sets, processing_class=processor)
    trainer.train()
    logs = [entry for entry in trainer.state.log_history if "loss" in entry]
    for entry in (logs[0], logs[-1]):
        assert entry["loss"] == pytest.approx(entry["loss_vtc"] + entry["loss_vtm"], abs=1e-3)
        assert "loss_mlm" not in entry
    assert logs[-1]["loss_vtc"] < logs[0]["loss_vtc"] - 0.3
    measured = trainer.evaluate()
    assert measured["eval_text_to_video_r1"] == 100 and measured["eval_video_to_text_r1"] == 100
    assert measured["eval_loss"] < 1


def test_captions_of_one_video_are_found_together():
    axes = np.eye(4, dtype=np.float32)
    # The first video has two captions, and its frames look like one and the other.
    videos = np.stack([axes[[0, 1]], axes[[2, 2]], axes[[3, 3]]]) * 5
    texts = np.full((3, 2, 4), -100, np.float32)
    texts[0], texts[1, 0], texts[2, 0] = axes[:2], axes[2], axes[0] + 0.9 * axes[3]
    found = compute_retrieval_metrics(EvalPrediction((videos, texts), np.array([2, 1, 1])), temperature=0.5)
    assert found["text_to_video_r1"] == 100.0 and found["video_to_text_r1"] == 100.0
    similarity = torch.tensor([[0.5, 0.5, 0, 0.5 / 1.81**0.5], [0, 0, 1, 0], [0, 0, 0, 0.9 / 1.81**0.5]]) / 0.5
    of_texts = torch.nn.functional.cross_entropy(similarity.T, torch.tensor([0, 0, 1, 2]))
    shares = similarity.softmax(1)
    of_videos = -torch.stack([shares[0, :2].sum(), shares[1, 2], shares[2, 3]]).log().mean()
    assert found["loss"] == pytest.approx(((of_texts + of_videos) / 2).item(), rel=1e-5)


def test_an_evaluation_reads_a_video_once_and_its_loss_does_not_grow_with_captions(folder, tmp_path, monkeypatch):
    model, processor = make_video_text_pair()
    arguments = make_arguments(tmp_path, per_device_eval_batch_size=2)
    trainer = RetrievalTrainer(model, arguments, processing_class=processor)
    rows, reads = load_captions(folder)["train"], []
    make_clip = TextTask.make_clip
    monkeypatch.setattr(TextTask, "make_clip", lambda self, row, *more: reads.append(1) or make_clip(self, row, *more))
    once, often = (
        trainer.evaluate(VideoDataset(each, TextTask(processor), training=False))
        for each in (rows, concatenate_datasets([rows] * 3))
    )
    assert len(reads) == 2 * 3
    assert often["eval_loss"] == pytest.approx(once["eval_loss"], abs=1e-5)


def words(data, model, out, *more):
    options = ("--task", "retrieval", "--model", model, "--output-dir", out, "--device", "cpu")
    return ["train", *map(str, (data, *options, *more))]


def test_the_command_trains_and_measures(folder, model_folder, tmp_path, capsys):
    out = tmp_path / "out"
    options = ["--epochs", "2", "--batch-size", "4", "--crop-min-area", "0.5", "--max-length", "8"]
    options += ["--learning-rate", "0.01", "--warmup-steps", "0"]
    assert main(words(folder, model_folder, out, *options)) == 0
    assert "on 4 validation captions of 3 videos (chance 33.3%" in capsys.readouterr().out
    metrics = json.loads((out / "report/metrics.json").read_text())
    assert metrics["split"] == "validation" and metrics["num_captions"] == 4
    assert 0 <= metrics["text_to_video_r1"] <= 100
    assert not any("runtime" in name or "per_second" in name for name in metrics.keys() - {"clips_per_second"})
    model, processor = AutoModel.from_pretrained(out), AutoProcessor.from_pretrained(out)
    assert model.config.loss_weights == {"vtc": 1.0, "vtm": 1.0, "mlm": 0.0}
    before = weights_of(AutoModel.from_pretrained(model_folder))
    assert any(not torch.equal(before[name], weight) for name, weight in weights_of(model).items())
    assert processor(text="a picture", return_tensors="pt")["input_ids"].shape == (1, 3)
    # A run of the same command with more epochs goes on.
    assert main(words(folder, model_folder, out, *options, "--epochs", "3", "--resume")) == 0


def test_whole_videos_are_held_out_with_all_their_captions(folder, model_folder, tmp_path, capsys):
    # `b` has two captions.
    rows = load_captions(folder / "train.json")["train"]
    seed = next(each for each in range(9) if rows["video"][1] in hold_out(rows, 0.2, each)[1]["video"])
    options = ["--epochs", "1", "--batch-size", "4", "--validation-fraction", "0.2", "--seed", str(seed)]
    assert main(words(folder / "train.json", model_folder, tmp_path / "out", *options)) == 0
    assert "Held out: 1 of 3 videos (" in capsys.readouterr().out
    metrics = json.loads((tmp_path / "out/report/metrics.json").read_text())
    assert metrics["split"] == "validation" and metrics["num_captions"] == 2
    train, held_out = hold_out(rows, 0.2, seed)
    assert set(held_out["video"]) == {rows["video"][1]} and set(train["video"]) == {rows["video"][0], rows["video"][3]}
    measured = ["evaluate", str(folder / "train.json"), "--task", "retrieval", "--model", str(tmp_path / "out")]
    assert main([*measured, "--device", "cpu", "--json"]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (found["split"], found["part_of_training"], found["num_videos"]) == ("validation", "held out", 1)
    assert found["num_texts"] == 2 and found["known_videos"]["train"] == 0


def test_what_cannot_be_is_refused(folder, model_folder, tmp_path, capsys):
    classifier, out = tmp_path / "classifier", tmp_path / "out"
    make_model().save_pretrained(classifier)
    for model, more, sentence in (
        (model_folder, ["--num-clips", "2"], "--num-clips has no effect here, but with --task classification"),
        (model_folder, ["--vtc-weight", "-1"], "--vtc-weight is -1"),
        (classifier, [], "trains a video_text_dual_encoder"),
    ):
        assert main(words(folder, model, out, *more)) == 2
        assert sentence in capsys.readouterr().err
        assert not out.exists()
