"""`hf-video watch`: answers on time, a memory that survives Ctrl-C, and nothing overwritten."""

import json
import signal
from contextlib import suppress

import pytest
import torch
from PIL import Image

from hf_video import MemoryBank, VideoWatcher
from hf_video.cli.main import main
from hf_video.reading import VideoReadError, frame_streaming
from tests.testing.answering import tiny_pair
from tests.testing.videos import damage_frame, encode_video, make_frames

from ..reading.rtsp_server import rtsp_camera

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


def frames_before_damage(path):
    with suppress(VideoReadError):
        yield from frame_streaming.stream_frames(path, 30)


def answers(out):
    """Those of the printed lines, without their times."""
    return [line.split("  ", 1)[1] for line in out.splitlines()]


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


def test_a_memory_is_gone_on_from_and_another_question_leaves_it_to_the_first(model_folder, tmp_path, capsys, says):
    growing, memory = tmp_path / "growing.mp4", tmp_path / "memory"
    words = ("--model", model_folder, "--fps", 30, "--memory", memory)
    other = ("--question", "what is shown", "--max-new-tokens", "4", "--device", "cpu")
    short = encode_video(growing, make_frames()[:23], codec_options={"qp": "0"})
    assert watch(short, *words) == 0
    before = memory.read_bytes()
    capsys.readouterr()
    # Nothing is left to see: the answer comes from the memory alone.
    assert len(answers(says("watch", short, *words, "--resume", *other))) == 1 and memory.read_bytes() == before
    # With more to see the memory goes on as the first question would have it.
    whole = encode_video(growing, codec_options={"qp": "0"})
    assert main(["watch", whole, *map(str, words), "--resume", *other]) == 0
    capsys.readouterr()
    at_once = (whole, "--model", model_folder, "--fps", 30, "--memory", tmp_path / "at_once")
    assert watch(*at_once) == 0
    expected = capsys.readouterr().out
    assert watch(*at_once, "--resume") == 0 and capsys.readouterr().out == expected
    resumed, at_once = (MemoryBank.load(path) for path in (memory, tmp_path / "at_once"))
    assert resumed.origin == at_once.origin and resumed.frames_seen.tolist() == [60]
    assert torch.allclose(resumed.last_queries, at_once.last_queries, atol=1e-3)


def test_what_was_read_of_a_damaged_file_is_kept(model_folder, video, tmp_path, fails):
    """The damage comes in the middle of a chunk."""
    memory, damaged = tmp_path / "damaged.memory", damage_frame(video, 50)
    words = ("--model", model_folder, "--fps", 30, "--memory", memory, "--chunk-size", 5)
    assert "damaged_video.mp4 is damaged" in fails("watch", damaged, *words, *QUESTION)
    kept = MemoryBank.load(memory)
    seen = len(list(frames_before_damage(damaged)))
    assert kept.frames_seen.tolist() == [seen] and seen % 5
    assert kept.visual.counts.sum(1).eq(seen).all()
    assert watch(video, *words, "--resume") == 0
    assert MemoryBank.load(memory).frames_seen.tolist() == [60]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_stops_behind_the_frame(model_folder, video, tmp_path, monkeypatch, capsys, number, code):
    stream_frames = frame_streaming.stream_frames

    def signalled(*args):
        for i, frame in enumerate(stream_frames(*args)):
            # The first frame of the third chunk is the one at hand when the model hears of it.
            if i == 20:
                signal.raise_signal(number)
            yield frame

    monkeypatch.setattr(frame_streaming, "stream_frames", signalled)
    previous = signal.signal(number, signal.default_int_handler)
    try:
        memory = tmp_path / "memory"
        assert watch(video, "--model", model_folder, "--fps", 30, "--memory", memory) == code
        assert signal.getsignal(number) is signal.default_int_handler
    finally:
        signal.signal(number, previous)
    printed = capsys.readouterr()
    assert len(answers(printed.out)) == 1 and "holds 17 frames so far" in printed.err
    assert MemoryBank.load(memory).frames_seen.tolist() == [17]


def test_a_memory_of_a_longer_video_is_refused(model_folder, video, tmp_path, fails):
    memory = tmp_path / "memory"
    assert watch(video, "--model", model_folder, "--fps", 30, "--memory", memory) == 0
    before = memory.read_bytes()
    words = ("watch", video, "--model", model_folder, *QUESTION, "--memory", memory, "--resume")
    assert "bytes at --fps 30: continue with it" in fails(*words, "--fps", 10)
    other = encode_video(tmp_path / "other.mp4", make_frames()[:20])
    words = ("watch", other, *words[2:], "--fps", 30)
    assert "was started with video.mp4 of" in fails(*words)
    assert memory.read_bytes() == before
    # Where the memory does not tell, the number of frames does.
    kept = MemoryBank.load(memory)
    kept.origin = {}
    kept.save(memory)
    assert "has seen 60 frames, but" in fails(*words)


def test_a_full_disk_costs_no_answer_and_an_answer_that_fails_no_memory(
    model_folder, video, tmp_path, monkeypatch, capsys, fails
):
    def fail(*args, **kwargs):
        raise OSError(28, "No space left on device")

    words = (video, "--model", model_folder, "--fps", 10, "--memory", tmp_path / "memory")
    with monkeypatch.context() as patched:
        patched.setattr(MemoryBank, "save", fail)
        assert watch(*words, "--every", "0.5s") == 2
    printed = capsys.readouterr()
    assert len(answers(printed.out)) == 4 and "No space left on device" in printed.err
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr(VideoWatcher, "answer", fail)
    assert "No space left on device" in fails("watch", *words, *QUESTION)
    assert MemoryBank.load(tmp_path / "memory").frames_seen.tolist() == [20]


def test_nothing_is_overwritten_and_mistakes_are_named_at_once(model_folder, video, tmp_path, fails):
    kept, memory, long = tmp_path / "kept", tmp_path / "memory", " ".join(["digit"] * 25)
    kept.write_text("mine")
    words = ("watch", video, "--model", model_folder, *QUESTION)
    assert "--resume" in fails(*words, "--memory", kept)
    assert "--memory FILE" in fails(*words, "--resume")
    assert "--memory FILE" in fails(*words, "--resume", "--memory", memory)
    assert f"{memory}" in fails(*words, "--memory", memory / "memory")
    assert "'Question:'" in fails(*words, "--prompt", "Question:")
    assert "26 tokens" in fails(*words, "--memory", memory, "--question", long)
    assert "'soon'" in fails(*words, "--every", "soon")
    assert f"{kept} is not a file that" in fails(*words, "--memory", kept, "--resume")
    assert kept.read_text() == "mine" and not memory.exists()


def test_a_folder_of_frames_and_a_stream_are_watched_and_do_not_come_again(model_folder, tmp_path, capsys, fails):
    (tmp_path / "frames").mkdir()
    for number, frame in enumerate(make_frames(4)):
        Image.fromarray(frame).save(tmp_path / "frames" / f"{number}.png")
    memory, model = tmp_path / "memory", ("--model", model_folder)
    words = (tmp_path / "frames", *model, "--memory", memory)
    assert "source_fps" in fails("watch", *words, *QUESTION)
    assert watch(*words, "--source-fps", 10, "--fps", 5, "--json") == 0
    assert json.loads(capsys.readouterr().out)["frames"] == 2
    assert "do not come again" in fails("watch", *words, "--source-fps", 10, "--resume", *QUESTION)
    file = encode_video(tmp_path / "video.mp4")
    message = fails("watch", file, *model, "--fps", 5, "--memory", memory, "--resume", *QUESTION)
    assert "was started with" in message
    with rtsp_camera(make_frames(4), 10) as address:
        live = address.replace("/live", "/live?key=secret")
        assert watch(live, *model, "--fps", 5, "--memory", tmp_path / "live", "--json") == 0
    assert json.loads(capsys.readouterr().out)["frames"] == 2
    assert MemoryBank.load(tmp_path / "live").origin["video"] == f"{address}?..."
