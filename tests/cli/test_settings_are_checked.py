"""Every setting with a value without meaning is named before the first batch is read and anything is written."""

import dataclasses
import json
import typing

import pytest
from transformers.utils import ExplicitEnum

from hf_video.cli.main import main
from hf_video.data import ClipAugmentation, ClipDataset, ClipMixing
from hf_video.data.video_texts import VideoTextDataset
from hf_video.training import VideoTrainingArguments
from hf_video.training.answering import AnswerTrainingArguments

from ..models.memory_bank_qformer.watching_testing import tiny_pair
from ..video_files import encode_video, make_frames

# Of these every number means something: a rank that the launcher gives.
FREE = {"local_rank"}
# Where not -2 is without meaning, or a word of no set.
OWN_VALUES = {
    "length_penalty": ["nan", "inf"],
    "ema_decay": ["0", "1", "-2", "nan"],
    "max_steps": ["0", "-2"],
    "num_train_epochs": ["0", "nan", "inf"],
    "save_steps": ["0", "-2"],
    "learning_rate": ["-1", "nan", "inf"],
    "seed": ["-1", str(2**32)],
    "adam_beta1": ["1", "-0.1"],
    "repetition_penalty": ["0", "nan"],
    "num_beams": ["0"],
    "lr_scheduler_type": ["nonsense", 'linear lr_scheduler_kwargs={"no_such_option":1}'],
    "optim": ["nonsense", "lomo"],
    "metric_for_best_model": [],
}


def rows_of(kinds, reserved=()):
    """A word for each wrong value of each setting that is a number or one of a set."""
    for kind in kinds:
        hints = typing.get_type_hints(kind)
        for field in dataclasses.fields(kind):
            if not field.init or field.name in {*FREE, *reserved}:
                continue
            parts = {hints[field.name], *typing.get_args(hints[field.name])}
            is_set = any(isinstance(part, type) and issubclass(part, ExplicitEnum) for part in parts)
            is_set |= typing.get_origin(hints[field.name]) is typing.Literal
            default = ["-2"] if parts & {int, float} else ["nonsense"] if is_set else []
            for value in OWN_VALUES.get(field.name, default):
                yield f"{field.name}={value}"


TRAIN_ROWS = [
    *rows_of([VideoTrainingArguments, ClipAugmentation, ClipMixing]),
    *(
        "--epochs=0",
        "--batch-size=0",
        "--num-workers=-1",
        "--validation-fraction=1",
        "--num-frames=0",
        "--image-size=0",
    ),
    *("--frame-sampling-rate=0", "--sampling-strategy=random", "--drop-path-rate=1", "--classifier-dropout=nan"),
    *("--patch-size=0", "--tubelet-size=0", "--hidden-size=-8", "--num-hidden-layers=0", "--num-attention-heads=0"),
    *("--num-clips=0", "--num-crops=0", "--on-error=ignore", "--device=tpu", "--classifier-init-scale=inf"),
    *("--metric-for-best-model=nope", "--report-to=nothing", "--dataloader-persistent-workers"),
    *("--log-level=loud", "--train-sampling-strategy=any"),
]
ANSWER_ROWS = [
    *rows_of([AnswerTrainingArguments, ClipAugmentation], {"num_augmentations"}),
    *(
        "--epochs=0",
        "--batch-size=0",
        "--num-workers=-1",
        "--memory-bank-length=-1",
        "--num-frames=0",
        "--num-frames=-1",
    ),
    *(
        "--sampling-strategy=random",
        "--min-new-tokens=99",
        "--num-return-sequences=9",
        "--first-words=maybe",
        "--device=tpu",
        "--report-to=nothing",
    ),
]


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    folder = tmp_path_factory.mktemp("answers")
    encode_video(folder / "0.mp4", make_frames(8))
    (folder / "train.json").write_text(json.dumps([{"video": "0.mp4", "question": "which", "answer": "one"}]))
    for each in tiny_pair():
        each.save_pretrained(folder / "model")
    return folder


@pytest.fixture
def refuses(tmp_path, monkeypatch, capsys):
    """Runs a command that must name a setting before it reads an item, and leave no file."""

    def unread(*args):
        pytest.fail("an item was read")

    for dataset in (ClipDataset, VideoTextDataset):
        monkeypatch.setattr(dataset, "__getitem__", unread)

    def run(*words, row):
        given = row.split(" ")
        try:
            code = main([*map(str, words), *given])
        except SystemExit as exit_request:
            code = exit_request.code
        message = capsys.readouterr().err
        assert code == 2, message
        flags = [word.partition("=")[0] for word in given]
        names = {name for flag in flags for name in (flag, flag.removeprefix("--").replace("-", "_"))}
        assert any(name in message for name in {*names, repr(given[0].partition("=")[2])}), message
        assert list(tmp_path.iterdir()) == []

    return run


@pytest.mark.parametrize("row", TRAIN_ROWS)
def test_train(digits, tmp_path, refuses, row):
    device = [] if row.startswith("--device") else ["--device", "cpu"]
    refuses("train", digits, "--output-dir", tmp_path / "out", *device, row=row)


def test_a_mapping_with_an_unknown_name(tmp_path, fails):
    row = '--accelerator-config={"no_such_option": 1}'
    words = ["--output-dir", tmp_path / "out", "--model", "scratch", "--device", "cpu"]
    message = fails("train", tmp_path, *words, row)
    assert "AcceleratorConfig" in message and "'no_such_option'" in message
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("row", ANSWER_ROWS)
def test_train_answers(answers, tmp_path, refuses, row):
    device = [] if row.startswith("--device") else ["--device=cpu"]
    words = ("train-answers", answers, f"--model={answers / 'model'}", f"--output-dir={tmp_path / 'out'}")
    refuses(*words, *device, row=row)
