import json
import shutil

import pytest
import torch
from PIL import Image
from transformers import AutoModelForVideoClassification

from hf_video.cli.main import main
from hf_video.data import VideoDataset
from hf_video.demo import MOTIONS
from hf_video.processing import VideoClipProcessor
from hf_video.training import train
from hf_video.training.output_folder import is_leftover, require_fresh
from tests.cli.flags import read

from .conftest import TINY_MODEL, TINY_RUN
from .ended_command import ending


def test_a_run_leaves_a_model_its_processor_and_a_report(trained):
    model = AutoModelForVideoClassification.from_pretrained(trained)
    assert [model.config.id2label[index] for index in range(8)] == sorted(MOTIONS)
    assert (model.config.num_frames, model.config.image_size) == (4, 32)
    processor = VideoClipProcessor.from_pretrained(trained)
    assert (processor.num_frames, processor.sampling_strategy) == (4, "uniform")
    metrics = json.loads((trained / "report" / "metrics.json").read_text())
    assert (metrics["split"], metrics["num_videos"], metrics["training_videos"]) == ("test", 8, 16)
    last = max(trained.glob("checkpoint-*"))
    state = json.loads((last / "trainer_state.json").read_text())
    best = next(each for each in state["log_history"] if each["step"] == state["best_global_step"])
    assert (metrics["kept_epoch"], metrics["kept_by"]) == (best["epoch"], "top1_accuracy")
    for name in ("confusion_matrix", "curves", "worst_clips"):
        assert Image.open(trained / "report" / f"{name}.png").width > 500
    assert json.loads((trained / "train_options.json").read_text())["hidden_size"] == 24


@pytest.mark.parametrize("words", [(), ("--disable-tqdm",)])
def test_a_log_has_a_line_for_each_epoch_and_neither_bars_nor_dictionaries(digits, tmp_path, capsys, words):
    given = [str(digits), "--output-dir", str(tmp_path / "model")]
    settings = read(["train", *given, *TINY_MODEL, *TINY_RUN, *words])
    train(settings)
    out, err = capsys.readouterr()
    lines = [line for line in out.splitlines() if line.startswith("epoch ")]
    assert [line.split()[1] for line in lines] == ["1/2", "2/2"] and all("validation loss" in line for line in lines)
    assert "{" not in out and "| 2/2 [" not in err


def test_an_interrupted_run_is_resumed_to_the_same_weights(digits, trained, tmp_path, capsys):
    output_dir = tmp_path / "model"
    command = ["train", str(digits), "--output-dir", str(output_dir)]

    # One epoch has one step.
    with ending("after the mark", "SIGINT"):
        assert main([*command, *TINY_MODEL, *TINY_RUN]) == 130
    kept = output_dir / "checkpoint-1"
    assert f"{kept} is kept; run the same command with --resume" in capsys.readouterr().err

    # A checkpoint whose writing was interrupted is passed over.
    (output_dir / "checkpoint-9").mkdir()
    assert main([*command, "--resume"]) == 0
    assert "Continues after epoch 1 of 2 (checkpoint-1).\n" in capsys.readouterr().out
    expected = AutoModelForVideoClassification.from_pretrained(trained).state_dict()
    resumed = AutoModelForVideoClassification.from_pretrained(output_dir).state_dict()
    torch.testing.assert_close(resumed, expected, rtol=0, atol=0)


def test_an_interruption_before_the_first_checkpoint_says_that_nothing_is_kept(digits, tmp_path, capsys):
    command = ["train", str(digits), "--output-dir", str(tmp_path / "model"), *TINY_MODEL, *TINY_RUN]
    with ending("a step ends", "SIGINT"):
        assert main(command) == 130
    assert "nothing of the training is kept" in capsys.readouterr().err
    require_fresh(tmp_path / "model", "", is_leftover=is_leftover)  # the same command may start again


def test_overwriting_renames_the_earlier_run(digits, tmp_path, capsys):
    output_dir = tmp_path / "model"
    output_dir.mkdir()
    (output_dir / "mine.txt").write_text("kept")
    (tmp_path / "model.backup-1").mkdir()
    command = ["train", str(digits), "--output-dir", str(output_dir), *TINY_MODEL, *TINY_RUN]
    assert main([*command, "--overwrite-output-dir", "--max-steps=1"]) == 0
    assert (tmp_path / "model.backup-2" / "mine.txt").read_text() == "kept"
    assert (output_dir / "model.safetensors").exists()
    assert f"{output_dir} was renamed to {tmp_path / 'model.backup-2'}." in capsys.readouterr().out


def test_a_trained_model_is_fine_tuned_with_its_classes_by_name(digits, trained, tmp_path, monkeypatch):
    reordered = tmp_path / "reordered"
    shutil.copytree(trained, reordered)
    config = json.loads((reordered / "config.json").read_text())
    names = list(reversed(sorted(MOTIONS)))
    config["id2label"] = {str(index): name for index, name in enumerate(names)}
    config["label2id"] = {name: index for index, name in enumerate(names)}
    (reordered / "config.json").write_text(json.dumps(config))

    command = ["train", str(digits), "--output-dir", str(tmp_path / "out"), "--model", str(reordered), *TINY_RUN[2:]]
    assert main([*command, "--num-frames", "8", "--max-steps=1", "--learning-rate=1e-9"]) == 0
    tuned = AutoModelForVideoClassification.from_pretrained(tmp_path / "out")
    assert [tuned.config.id2label[index] for index in range(8)] == names
    assert tuned.config.num_frames == VideoClipProcessor.from_pretrained(tmp_path / "out").num_frames == 8
    original = AutoModelForVideoClassification.from_pretrained(trained)
    torch.testing.assert_close(tuned.classifier.weight, original.classifier.weight, rtol=1e-3, atol=1e-6)


def test_other_classes_give_another_head_with_a_line(digits, trained, tmp_path, caplog):
    data = tmp_path / "data"
    shutil.copytree(digits / "train" / "left-up", data / "one")
    shutil.copytree(digits / "train" / "up-left", data / "two")
    command = ["train", str(data), "--output-dir", str(tmp_path / "out"), "--model", str(trained), *TINY_RUN[2:]]
    assert main([*command, "--max-steps=1"]) == 0
    assert AutoModelForVideoClassification.from_pretrained(tmp_path / "out").config.id2label == {0: "one", 1: "two"}
    assert "knows 8 other classes (down-left, down-right, left-down, ...)" in caplog.text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--no-weight-decay=nothing"], "has ['nothing'] in its name"),
        (["--base-learning-rate=1", "--learning-rate=1"], "learning_rate and base_learning_rate are both given"),
        (["--model", "/no/such/model"], "--model /no/such/model"),
        (["--model", "start", "--hidden-size", "8"], "--hidden-size is for a model from scratch"),
        (["--image-size", "8"], "8 pixels hold no patch"),
        (["--resume"], "There is nothing to resume:"),
        (["--focal-gamma=3"], "focal_gamma is 3.0, which has no effect without loss=focal"),
        (["--model=scratch", "--drop-path-rate=1"], "--drop-path-rate is 1; a number of at least 0 and below 1"),
        (["--model=scratch", "--metric-for-best-model=nope"], "metric_for_best_model is 'nope'"),
        (["--model=scratch", '--accelerator-config={"no_such_option": 1}'], "no_such_option"),
    ],
)
def test_wrong_options_are_named_before_a_video_is_read_or_anything_is_written(
    digits, tmp_path, fails, monkeypatch, words, message
):
    monkeypatch.setattr(VideoDataset, "__getitem__", lambda *args: pytest.fail("a video was read"))
    assert message in fails("train", digits, "--output-dir", tmp_path / "out", "--device", "cpu", *words)
    assert not list(tmp_path.iterdir())


def test_other_data_are_not_resumed_with(digits, trained, tmp_path, fails):
    output_dir = tmp_path / "out"
    shutil.copytree(trained, output_dir)
    data = shutil.copytree(digits, tmp_path / "fewer")
    for split in ("train", "test"):
        shutil.rmtree(data / split / "left-up")
    message = fails("train", data, "--output-dir", output_dir, "--resume")
    assert f"The data {data} (" in message and str(digits) in message


def test_a_run_is_resumed_where_it_and_its_data_were_moved(digits, trained, tmp_path):
    data, output_dir = shutil.copytree(digits, tmp_path / "data"), shutil.copytree(trained, tmp_path / "out")
    states = sorted(output_dir.glob("checkpoint-*/trainer_state.json"), key=lambda path: int(path.parent.name[11:]))
    text = states[-1].read_text()
    # The first of two checkpoints was the best one, in a folder that is gone. The file keeps its size, by which a
    # checkpoint is known as complete.
    gone = tmp_path / "gone" / states[0].parent.name
    state = json.loads(text) | {
        "best_model_checkpoint": str(gone),
        "best_metric": 1.0,
        "best_global_step": int(gone.name[11:]),
    }
    states[-1].write_text(json.dumps(state).ljust(len(text)))
    assert len(states) == 2 and main(["train", str(data), "--output-dir", str(output_dir), "--resume"]) == 0
    best, final = (AutoModelForVideoClassification.from_pretrained(path) for path in (states[0].parent, output_dir))
    torch.testing.assert_close(final.state_dict(), best.state_dict(), rtol=0, atol=0)


def test_evaluation_counts_the_views_of_a_video_in_its_batches(digits, trained, tmp_path):
    model = shutil.copytree(trained, tmp_path / "model")
    VideoClipProcessor.from_pretrained(model, num_clips=2, num_crops=3).save_pretrained(model)
    words = ["--model", str(model), *TINY_RUN[2:], "--max-steps=1"]
    trainer, _ = train(read(["train", str(digits), "--output-dir", str(tmp_path / "out"), *words]))
    assert trainer.args.per_device_eval_batch_size == 16 // 6
    assert trainer.get_eval_dataloader().batch_sampler.batch_size == 16 // 6


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has the device that the test takes for missing")
def test_a_device_that_does_not_exist(digits, tmp_path, fails):
    message = fails("train", digits, "--output-dir", tmp_path / "out", "--device", "cuda")
    assert "--device cuda cannot be used on this machine" in message and "Try --device cpu." in message
    assert not list(tmp_path.iterdir())


def test_the_data_are_never_renamed_away(digits, tmp_path, fails):
    shutil.copytree(digits, tmp_path / "out" / "data")
    message = fails("train", tmp_path / "out" / "data", "--output-dir", tmp_path / "out", "--overwrite-output-dir")
    assert "lies inside --output-dir" in message
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
