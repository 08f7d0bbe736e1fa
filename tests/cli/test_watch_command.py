"""`hf-video watch`: answers on time, a memory that survives Ctrl-C, and nothing overwritten."""

import json
import signal
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image

from hf_video import MemoryBank
from hf_video.cli.main import main
from hf_video.cli.watch import seconds

from ..models.memory_bank_qformer.watching_testing import tiny_pair
from ..video_files import cut_file, encode_video, make_frames

QUESTION = ["--question", "which digit came first", "--max-new-tokens", "4", "--device", "cpu"]


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    for each in tiny_pair(memory_bank_length=5, max_num_frames=200):
        each.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def video(tmp_path_factory):
    """Two seconds of 30 frames."""
    return encode_video(tmp_path_factory.mktemp("videos") / "video.mp4")


def watch(*words):
    return main(["watch", *map(str, words), *QUESTION])


def test_answers_come_with_their_times(model_folder, video, capsys):
    assert watch(video, "--model", model_folder, "--fps", 10, "--every", "0.5s", "--json") == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["frames"] for line in lines] == [6, 11, 16, 20]
    assert [line["seconds"] for line in lines] == pytest.approx([0.5, 1.0, 1.5, 1.9], abs=1e-3)
    assert {line["question"] for line in lines} == {QUESTION[1]}
    assert watch(video, "--model", model_folder, "--question", "what is shown") == 0
    questions = [line.split("  ", 1) for line in capsys.readouterr().out.splitlines()]
    assert [time for time, _ in questions] == ["0:00:01"] * 2
    assert questions[0][1].startswith("what is shown ") and questions[1][1].startswith("which digit came first ")


def test_a_memory_is_saved_and_gone_on_from(model_folder, video, tmp_path, capsys):
    whole, parts = tmp_path / "whole.memory", tmp_path / "parts.memory"
    assert watch(video, "--model", model_folder, "--fps", 30, "--memory", whole) == 0
    expected = capsys.readouterr().out
    short = encode_video(tmp_path / "short.mp4", make_frames()[:23], codec_options={"qp": "0"})
    whole_again = encode_video(tmp_path / "again.mp4", codec_options={"qp": "0"})
    assert watch(short, "--model", model_folder, "--fps", 30, "--memory", parts) == 0
    assert MemoryBank.load(parts).frames_seen.tolist() == [23]
    assert watch(whole_again, "--model", model_folder, "--fps", 30, "--memory", parts, "--resume") == 0
    assert MemoryBank.load(parts).frames_seen.tolist() == [60]
    capsys.readouterr()
    # Nothing is left to see: the answer comes from the memory alone.
    assert watch(video, "--model", model_folder, "--fps", 30, "--memory", whole, "--resume") == 0
    assert capsys.readouterr().out.split()[0] == expected.split()[0]


def test_ctrl_c_leaves_a_usable_memory(model_folder, tmp_path):
    frames, lossless = np.tile(make_frames(), (50, 1, 1, 1)), {"qp": "0"}
    video = encode_video(tmp_path / "long.mp4", frames, codec_options=lossless)
    memory = tmp_path / "interrupted.memory"
    words = ["watch", video, "--model", model_folder, "--fps", "30", "--every", "1s", "--memory", str(memory)]
    process = subprocess.Popen(
        [sys.executable, "-m", "hf_video.cli", *words, *QUESTION],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline().startswith("0:00:01  ")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    kept = MemoryBank.load(memory)
    seen = int(kept.frames_seen)
    assert 30 < seen < 3000 and kept.visual.counts.sum(1).eq(seen).all()
    assert f"{memory} holds the {seen} frames so far" in err and "Traceback" not in err
    assert out.splitlines()[-1].startswith("0:0")
    assert [path.name for path in tmp_path.glob("*memory*")] == ["interrupted.memory"]
    # Going on is as if nothing had happened.
    end = encode_video(tmp_path / "end.mp4", frames[: seen + 20], codec_options=lossless)
    assert watch(end, "--model", model_folder, "--fps", 30, "--memory", memory, "--resume") == 0
    assert watch(end, "--model", model_folder, "--fps", 30, "--memory", tmp_path / "whole.memory") == 0
    resumed, whole = (MemoryBank.load(path) for path in (memory, tmp_path / "whole.memory"))
    assert torch.equal(resumed.frames_seen, whole.frames_seen)
    assert torch.allclose(resumed.visual.states, whole.visual.states, atol=1e-3)
    assert torch.equal(resumed.visual.counts, whole.visual.counts)


def test_what_was_read_of_a_damaged_file_is_kept(model_folder, video, tmp_path, fails):
    memory = tmp_path / "damaged.memory"
    words = ["--model", model_folder, "--fps", 30, "--memory", memory, *QUESTION]
    assert "cut_video.mp4" in fails("watch", cut_file(video, 0.7), *words, "--chunk-size", 1)
    if memory.exists():
        assert 0 < int(MemoryBank.load(memory).frames_seen) < 60


def test_the_picture_shows_the_memory(model_folder, video, tmp_path):
    picture = tmp_path / "memory.png"
    assert watch(video, "--model", model_folder, "--fps", 30, "--picture", picture) == 0
    with Image.open(picture) as image:
        assert image.width > 800 and image.height > 300


def test_nothing_is_overwritten_and_mistakes_are_named_at_once(model_folder, video, tmp_path, fails):
    kept = tmp_path / "kept"
    kept.write_text("mine")
    words = ("watch", video, "--model", model_folder, *QUESTION)
    assert "exists already. Go on from it with --resume" in fails(*words, "--memory", kept)
    assert "exists already; choose another" in fails(*words, "--picture", kept)
    assert "say which with --memory" in fails(*words, "--resume")
    assert "There is no memory" in fails(*words, "--resume", "--memory", tmp_path / "none")
    assert "is no folder" in fails(*words, "--memory", tmp_path / "none" / "memory")
    assert "has no {} for the question" in fails(*words, "--prompt", "Question:")
    assert "does not exist" in fails("watch", tmp_path / "none.mp4", "--model", model_folder, *QUESTION)
    assert "expected a time such as" in fails(*words, "--every", "soon")
    assert kept.read_text() == "mine"


def test_a_memory_of_a_longer_video_is_refused(model_folder, video, tmp_path, fails):
    memory = tmp_path / "memory"
    assert watch(video, "--model", model_folder, "--fps", 30, "--memory", memory) == 0
    before = memory.read_bytes()
    words = ("watch", video, "--model", model_folder, *QUESTION, "--memory", memory, "--resume")
    assert "has seen 60 frames, but" in fails(*words, "--fps", 10)
    assert memory.read_bytes() == before


@pytest.mark.parametrize("command", ["watch", "train-answers"])
def test_the_command_explains_itself(command, capsys):
    assert main([command, "--help"]) == 0
    assert capsys.readouterr().out.startswith(f"usage: hf-video {command}")


@pytest.mark.parametrize(("word", "expected"), [("30s", 30), ("5m", 300), ("1.5h", 5400), ("7", 7)])
def test_times_have_units(word, expected):
    assert seconds(word) == expected
