"""`hf-video explain`: pictures that show what the heat map says, numbers that agree, and nothing overwritten."""

import json

import av
import numpy as np
import pytest
import torch
from PIL import Image
from transformers import InstructBlipVisionConfig

from hf_video import (
    MemoryBankQFormerForVideoClassification,
    VideoClipProcessor,
    VideoViTForVideoClassification,
    VideoWatcher,
)
from hf_video.cli.main import main
from hf_video.inference import explain, frame_shares, read_clip
from hf_video.reading import read_video
from tests.testing.answering import tiny_pair
from tests.testing.videos import damage_frame, encode_video

from ..models.memory_bank_qformer.memory_bank_qformer_testing import tiny_model
from .test_timeline_command import save_model

NAMES = ["pouring water", "投げる $x$", "tossing coin"]
FILES = ["explanation.json", "heat_maps.mp4", "heat_maps.png", "top_frames"]


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("model"), NAMES)


@pytest.fixture(scope="module")
def video(tmp_path_factory):
    """Two seconds of grey frames of 64 x 96, with a brighter square that moves a little."""
    frames = np.full((60, 64, 96, 3), 90, np.uint8)
    for number, frame in enumerate(frames):
        frame[20:50, 10 + number : 40 + number] = 130
    return encode_video(tmp_path_factory.mktemp("videos") / "square.mp4", frames)


def run(model_folder, video, *words):
    return main(["explain", str(video), "--model", str(model_folder), "--device", "cpu", *map(str, words)])


def heat_map_of(model_folder, video, target):
    model = VideoViTForVideoClassification.from_pretrained(model_folder)
    clip = read_clip(VideoClipProcessor.from_pretrained(model_folder), video)
    return clip, explain(model, clip.pixel_values, target)[0].numpy()


def test_the_files_show_what_the_heat_map_says(model_folder, video, tmp_path, capsys):
    folder = tmp_path / "new" / "why"
    assert run(model_folder, video, "--class", "tossing coin", "--output", folder) == 0
    printed = capsys.readouterr()
    assert sorted(path.name for path in folder.iterdir()) == FILES and ", ".join(FILES) in printed.err
    clip, heat_map = heat_map_of(model_folder, video, 2)
    found = json.loads((folder / "explanation.json").read_text())
    assert (found["video"], found["label"], found["class_id"]) == ("square", "tossing coin", 2)
    shares = frame_shares(heat_map)
    np.testing.assert_allclose([frame["share"] for frame in found["frames"]], shares, atol=1e-5)
    np.testing.assert_allclose([frame["seconds"] for frame in found["frames"]], clip.times, atol=1e-3)
    assert (found["image_size"], found["video_size"]) == ([32, 32], [64, 96])
    # The clip is 64 x 96 pixels squeezed into 32 x 32.
    row, column = np.unravel_index(heat_map[0].argmax(), (32, 32))
    assert found["frames"][0]["highest"] == pytest.approx([column * 3 + 1, row * 2 + 0.5], abs=0.1)

    with av.open(str(folder / "heat_maps.mp4")) as container:
        decoded = [frame.to_ndarray(format="rgb24").astype(int) for frame in container.decode(video=0)]
    # The video is grey: what is not grey is heat. Yellow is much brighter than blue.
    colour = np.stack([np.ptp(frame[4::8, 4::8], axis=-1) for frame in decoded])
    assert colour.shape == heat_map.shape
    assert np.corrcoef(colour.ravel(), heat_map.ravel())[0, 1] > 0.9
    assert heat_map[np.unravel_index(colour.argmax(), colour.shape)] > 0.9

    best = int(shares.argmax())
    picture = np.asarray(Image.open(folder / "top_frames" / f"1_at_{clip.times[best]:.2f}s.png")).astype(int)
    assert picture.shape == (256, 256, 3) and np.abs(picture - decoded[best]).mean() < 6
    assert Image.open(folder / "heat_maps.png").width > 1000
    lines = printed.out.splitlines()
    assert lines[4] == f"what spoke most for tossing coin ({found['score']:.1%}):"
    assert lines[5].split() == [f"{shares[best]:.1%}", f"0:00:{clip.times[best]:05.2f}"]


def test_the_predicted_class_is_explained_unless_another_is_named(model_folder, video, capsys):
    assert run(model_folder, video, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    scores = [prediction["score"] for prediction in found["predictions"]]
    assert scores == sorted(scores, reverse=True) and sum(scores) == pytest.approx(1, abs=1e-4)
    assert found["predictions"][0] == {"label": found["label"], "score": found["score"]}
    other = (found["class_id"] + 1) % 3
    by_number, by_name = (
        (run(model_folder, video, "--json", "--top-k", 1, "--class", word), json.loads(capsys.readouterr().out))
        for word in (other, NAMES[other])
    )
    assert by_number == by_name and by_name[1]["label"] == NAMES[other] and len(by_name[1]["predictions"]) == 1
    assert by_name[1]["frames"] != found["frames"]
    _, heat_map = heat_map_of(model_folder, video, other)
    np.testing.assert_allclose([each["share"] for each in by_name[1]["frames"]], frame_shares(heat_map), atol=1e-5)


def test_a_class_without_a_font_and_one_without_evidence_are_drawn(model_folder, video, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(
        "hf_video.inference.explanation.explain", lambda model, clips, target: torch.zeros(1, 8, 32, 32)
    )
    assert run(model_folder, video, "--class", NAMES[1], "--output", tmp_path / "out") == 0
    assert f"nothing in the clip speaks for {NAMES[1]}" in capsys.readouterr().out
    assert not list((tmp_path / "out" / "top_frames").iterdir())
    assert json.loads((tmp_path / "out" / "explanation.json").read_text())["frames"][0]["highest"] is None


@pytest.mark.parametrize(("highest", "said"), [(1.1, "speak about evenly"), (1.5, "what spoke most")])
def test_no_frame_is_named_where_all_speak_about_evenly(highest, said, model_folder, video, monkeypatch, capsys):
    heat_map = torch.ones(1, 8, 32, 32)
    heat_map[:, 3] = highest
    monkeypatch.setattr("hf_video.inference.explanation.explain", lambda model, clips, target: heat_map)
    assert run(model_folder, video) == 0
    printed = capsys.readouterr().out
    assert said in printed and "--output" in printed.splitlines()[-1]


def test_what_cannot_be_explained_is_one_sentence_and_leaves_nothing(model_folder, video, tmp_path, fails):
    broken = damage_frame(video, 29)
    for file, words, named in (
        (video, ["--class", "poring watr"], "Did you mean pouring water?"),
        (video, ["--class", "3"], "They are 'pouring water', "),
        (video, ["--question", "why?"], "gives classes"),
        (video, ["--start", "7"], "start=7.0"),
        (broken, [], broken),
    ):
        assert named in fails("explain", file, "--model", model_folder, "--output", tmp_path / "out", *words)
    assert not list(tmp_path.iterdir())
    (tmp_path / "mine.txt").write_text("mine")
    message = fails("explain", video, "--model", model_folder, "--output", tmp_path)
    assert "is not empty (mine.txt)" in message and "never overwritten" in message


def test_the_start_is_explained(video, says):
    # A square that moves steadily: no frame stands out.
    assert "speak about evenly for " in says("explain", video, "--model", "start", "--device", "cpu")


@pytest.mark.parametrize("length", [3, 0])
def test_what_a_classifier_remembered_is_told(length, video, tmp_path, capsys):
    sizes = {"image_size": 14, "patch_size": 7, "hidden_size": 40, "intermediate_size": 48}
    vision = InstructBlipVisionConfig(num_hidden_layers=1, num_attention_heads=4, **sizes)
    model = tiny_model(MemoryBankQFormerForVideoClassification, vision_config=vision, memory_bank_length=length)
    size = {"height": 14, "width": 14}
    processor = VideoClipProcessor(num_frames=6, frame_sampling_rate=6, size=size, crop_size=size)
    for part in (model, processor):
        part.save_pretrained(tmp_path / "model")
    assert run(tmp_path / "model", video, "--json", "--output", tmp_path / "out") == 0
    found = json.loads(capsys.readouterr().out)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["explanation.json"]
    # Six frames in three entries, which are runs in time.
    seconds = [frame["seconds"] for frame in found["frames"]]
    assert len(seconds) == 6 and len(found["memory"]) == length
    assert all(first <= last for first, last in found["memory"])
    assert not length or [found["memory"][0][0], found["memory"][-1][1]] == [seconds[0], seconds[-1]]


def test_an_answer_in_words_is_explained_by_the_memory(video, tmp_path, capsys, fails):
    model, processor = tiny_pair(memory_bank_length=3, max_num_frames=200)
    # To resize a frame twice would make another one of it.
    processor.video_processor.size = {"shortest_edge": 20}
    for part in (model, processor):
        part.save_pretrained(tmp_path / "model")
    question = "which digit came first"
    assert run(tmp_path / "model", video, "--question", question, "--output", tmp_path / "out") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["explanation.json"]
    found = json.loads((tmp_path / "out" / "explanation.json").read_text())
    assert len(found["frames"]) == 4 and len(found["memory"]) == 3 and len(lines) == 3 + 3

    # The same as watching the frames of the clip.
    inputs = processor.video_processor(video, return_metadata=True)
    watcher = VideoWatcher(model, processor, question)
    watcher.update(read_video(video, lambda metadata: inputs["video_metadata"][0].frames_indices)[0])
    assert lines[:2] == [video, f"  {watcher.answer(do_sample=False)}"]
    for words in ([], ["--question", "why", "--class", "0"]):
        assert "give a --question, and no --class" in fails("explain", video, "--model", tmp_path / "model", *words)
