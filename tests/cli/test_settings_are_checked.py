"""A value that no bound refuses is named before the first video is read and anything is written."""

import json
import re

import pytest

from hf_video.data import VideoDataset
from tests.testing.answering import tiny_pair
from tests.testing.videos import encode_video, make_frames


@pytest.fixture
def refuses(tmp_path, monkeypatch, fails):
    """Runs a command that must name a setting before it reads a video, and leave no file."""

    def unread(*args):
        pytest.fail("a video was read")

    monkeypatch.setattr(VideoDataset, "__getitem__", unread)

    def run(*words, row):
        message = fails(*words, f"--output-dir={tmp_path / 'out'}", "--device=cpu", row)
        flag, _, value = row.partition("=")
        names = (flag, flag[2:].replace("-", "_"), repr(value), *re.findall("no_such_option", value))
        assert any(name in message for name in names), message
        assert list(tmp_path.iterdir()) == []

    return run


@pytest.mark.parametrize(
    "row",
    [
        "--drop-path-rate=1",
        "--metric-for-best-model=nope",
        '--accelerator-config={"no_such_option": 1}',
    ],
)
def test_train(digits, refuses, row):
    refuses("train", digits, "--model=scratch", row=row)


def test_train_answers(tmp_path_factory, refuses):
    folder = tmp_path_factory.mktemp("answers")
    encode_video(folder / "0.mp4", make_frames(8))
    (folder / "train.json").write_text(json.dumps([{"video": "0.mp4", "question": "which", "answer": "one"}]))
    for each in tiny_pair():
        each.save_pretrained(folder / "model")
    refuses("train-answers", folder, f"--model={folder / 'model'}", row="--num-return-sequences=9")
