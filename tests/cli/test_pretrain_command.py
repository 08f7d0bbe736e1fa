"""`hf-video pretrain`: what it writes, how it is resumed, and what it refuses."""

import json
import shutil

import pytest
import torch
from transformers import (
    AutoModelForPreTraining,
    AutoModelForVideoClassification,
    CLIPVisionConfig,
    CLIPVisionModel,
    VideoMAEConfig,
    VideoMAEForPreTraining,
)

from hf_video.cli.main import main
from hf_video.models.videomamba import VideoMambaForPreTraining
from hf_video.models.videovit import VideoViTForPreTraining
from hf_video.processing import VideoClipProcessor
from hf_video.training import train
from tests.cli.flags import read

from .conftest import TINY_RUN
from .ended_command import ending
from .test_launching import FORKED, launch

TINY = ["--num-frames", "4", "--image-size", "32", "--patch-size", "8", "--hidden-size", "24", "--device", "cpu"]
TINY += ["--num-hidden-layers", "1", "--mask-ratio", "0.5"]
VIDEOVIT = [*TINY, "--num-attention-heads", "2", "--decoder-num-hidden-layers", "1"]
RUN = "--batch-size 8 --logging-steps=1 --save-strategy=steps --save-steps=1 --lr-scheduler-type=constant".split()


@pytest.fixture(scope="module")
def videos(digits, tmp_path_factory):
    """Eight videos in a folder and one below it."""
    folder = tmp_path_factory.mktemp("videos") / "videos"
    (folder / "deeper").mkdir(parents=True)
    for number, video in enumerate(sorted((digits / "train").rglob("*.mp4"))[:8]):
        shutil.copy(video, (folder / "deeper" if number == 0 else folder) / f"{number}.mp4")
    return folder


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    folder = tmp_path_factory.mktemp("teacher")
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    torch.manual_seed(0)
    CLIPVisionModel(CLIPVisionConfig(image_size=16, patch_size=4, **sizes)).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def commands(videos, teacher):
    """A run of each family, two epochs of one step."""
    common = ["pretrain", str(videos), *RUN, "--epochs", "3", "--learning-rate", "0.01"]
    videomamba = ["--family=videomamba", "--teacher", str(teacher), "--tubelet-size=1", "--drop-path-rate=0.1"]
    return {
        "videovit": [*common, *VIDEOVIT, "--multi-scale-crop", "--num-augmentations=2", "--decoder-mask-ratio=0.5"],
        "videomamba": [*common, *TINY, *videomamba],
    }


@pytest.fixture(scope="module")
def pretrained(commands, tmp_path_factory):
    """The output folder of each family's undisturbed run."""
    folder = tmp_path_factory.mktemp("pretrained")
    for family, words in commands.items():
        assert main([*words, "--output-dir", str(folder / family)]) == 0
    return folder


@pytest.mark.parametrize(
    ("family", "model_class"), [("videovit", VideoViTForPreTraining), ("videomamba", VideoMambaForPreTraining)]
)
def test_a_run_leaves_a_model_that_learned_its_processor_and_a_report(pretrained, family, model_class):
    model = AutoModelForPreTraining.from_pretrained(pretrained / family)
    assert isinstance(model, model_class) and model.config.mask_ratio == 0.5
    processor = VideoClipProcessor.from_pretrained(pretrained / family)
    assert (processor.num_frames, processor.sampling_strategy, processor.frame_sampling_rate) == (4, "dense", 4)
    losses = json.loads((pretrained / family / "report" / "metrics.json").read_text())
    assert len(losses["steps"]) == 3 and losses["num_videos"] == 8
    assert losses["last"] == losses["steps"][-1]["loss"] < losses["first"] == losses["steps"][0]["loss"]
    assert "- loss " in (pretrained / family / "report" / "report.md").read_text()
    assert (pretrained / family / "report" / "curves.png").exists()
    assert (pretrained / family / "report" / "reconstruction.png").exists() is (family == "videovit")


@pytest.mark.parametrize("family", ["videovit", "videomamba"])
def test_the_result_is_fine_tuned_by_train(pretrained, digits, tmp_path, says, family):
    words = ["train", str(digits), "--model", str(pretrained / family), "--output-dir", str(tmp_path / "out")]
    says(*words, *TINY_RUN[2:], "--max-steps=1", "--learning-rate=1e-9", "--sampling-strategy", "uniform")
    tuned = AutoModelForVideoClassification.from_pretrained(tmp_path / "out")
    before = AutoModelForPreTraining.from_pretrained(pretrained / family)
    expected = {name: value for name, value in before.base_model.state_dict().items() if "norm_f" not in name}
    found = tuned.base_model.state_dict()
    for name, value in found.items():
        if name in expected:
            torch.testing.assert_close(value, expected[name], rtol=0, atol=1e-6, msg=name)
    assert len(found.keys() & expected.keys()) > 8


@pytest.mark.parametrize("family", ["videovit", pytest.param("videomamba", marks=pytest.mark.slow)])
def test_an_interrupted_run_is_resumed_to_the_same_weights(pretrained, commands, tmp_path, capsys, family):
    words = [*commands[family], "--output-dir", str(tmp_path / "out")]
    with ending("after the mark", "SIGINT", 2):
        assert main(words) == 130
    assert "checkpoint-2 is kept; run the same command with --resume" in capsys.readouterr().err
    assert main(["pretrain", words[1], "--output-dir", str(tmp_path / "out"), "--resume"]) == 0
    resumed = AutoModelForPreTraining.from_pretrained(tmp_path / "out").state_dict()
    expected = AutoModelForPreTraining.from_pretrained(pretrained / family).state_dict()
    torch.testing.assert_close(resumed, expected, rtol=0, atol=0)


def test_a_run_goes_on_from_a_model_and_from_a_classifier(pretrained, trained, videos, tmp_path):
    words = ["pretrain", str(videos), "--max-steps=1", "--batch-size", "2", "--device=cpu", "--learning-rate=1e-9"]
    first = ["--model", str(pretrained / "videovit"), "--mask-ratio", "0.75", f"--output-dir={tmp_path / 'one'}"]
    trainer, _ = train(read([*words, *first]))
    assert trainer.model.config.mask_ratio == 0.75
    before = AutoModelForPreTraining.from_pretrained(pretrained / "videovit").state_dict()
    torch.testing.assert_close(trainer.model.state_dict(), before, rtol=0, atol=1e-6)
    trainer, _ = train(read([*words, "--model", str(trained), f"--output-dir={tmp_path / 'two'}", "--mask-ratio=0.5"]))
    weight = AutoModelForVideoClassification.from_pretrained(trained).state_dict()["videovit.layers.0.mlp.fc1.weight"]
    torch.testing.assert_close(
        trainer.model.state_dict()["videovit.layers.0.mlp.fc1.weight"], weight, rtol=0, atol=1e-6
    )


@pytest.mark.slow
def test_two_processes_train_as_one_on_the_same_masks(commands, tmp_path):
    """Without dual masking, where clips may have different numbers of patches to predict."""
    losses = []
    for launcher, batch_size in (((), "8"), (FORKED, "4")):
        words = [word for word in commands["videovit"] if word != "--decoder-mask-ratio=0.5"]
        words[words.index("--batch-size") + 1] = batch_size
        folder = tmp_path / batch_size
        finished = launch(launcher, *words, "--output-dir", folder)
        assert finished.returncode == 0, finished.stderr[-5000:]
        assert finished.stdout.count("try it   hf-video train") == 1
        losses.append([step["loss"] for step in json.loads((folder / "report" / "metrics.json").read_text())["steps"]])
    assert len(set(losses[0])) == 3 and losses[0] == pytest.approx(losses[1], abs=1e-5)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--mask-ratio", "0.01"], "`mask_ratio`=0.01 hides 0 of 16 patches of a frame"),
        (["--image-size", "24", "--decoder-mask-ratio=0.5"], "Squares of 2 x 2 patches need an even grid, got 3 x 3"),
        (["--teacher", "TEACHER"], "A VideoViT learns from pixels, without a teacher: leave out --teacher."),
        (["--model", "VIDEOMAE"], "of the type 'videomae', not pre-trained by masks here"),
        (["--eval-strategy=epoch"], "eval_strategy has no effect here: leave it out"),
        (["--multi-scale-crop", "--crop-min-area=0.1"], "multi_scale_crop and crop_min_area are two ways to crop"),
    ],
)
def test_wrong_options_are_named_and_nothing_is_written(videos, teacher, tmp_path, fails, words, message):
    places = {"TEACHER": teacher, "VIDEOMAE": tmp_path / "videomae"}
    base = VIDEOVIT
    if "--model" in words:
        sizes = {"image_size": 16, "num_frames": 2, "hidden_size": 24, "num_hidden_layers": 1}
        sizes |= {"num_attention_heads": 2, "intermediate_size": 32, "decoder_hidden_size": 12}
        sizes |= {"decoder_num_hidden_layers": 1, "decoder_num_attention_heads": 2, "decoder_intermediate_size": 16}
        VideoMAEForPreTraining(VideoMAEConfig(**sizes)).save_pretrained(places["VIDEOMAE"])
        base = ["--device", "cpu"]
    words = [str(places.get(word, word)) for word in words]
    assert message in fails("pretrain", videos, "--output-dir", tmp_path / "out", *base, *words)
    assert not (tmp_path / "out").exists()


def test_what_a_videomamba_and_its_teacher_lack_is_named(pretrained, videos, teacher, tmp_path, fails):
    words = ["pretrain", videos, "--output-dir", tmp_path / "out", *TINY, "--family=videomamba"]
    assert "A VideoMamba learns from a teacher, an image model such as CLIP: name one" in fails(*words)
    message = fails(*words, "--teacher", teacher, "--decoder-mask-ratio=0.5")
    assert "decoder_mask_ratio is 0.5, and a VideoMamba has no decoder." in message
    assert "--teacher nowhere/at/all: there is no such folder" in fails(*words, "--teacher", "nowhere/at/all")
    sizes = {"num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16, "hidden_size": 8}
    CLIPVisionModel(CLIPVisionConfig(image_size=16, patch_size=4, **sizes)).save_pretrained(tmp_path / "other")
    words = [*words[:4], "--model", pretrained / "videomamba", "--device=cpu"]
    message = fails(*words, "--teacher", tmp_path / "other")
    assert "The teacher's features have 8 channels, `config.projection_dim` is 16" in message
    assert not (tmp_path / "out").exists()
