"""Scores of every frame: those of the whole video with a state, of the middles of clips without; live, with gaps."""

import gc
import logging
import threading
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch

from hf_video import VideoClipProcessor, VideoMambaConfig, VideoViTConfig, VideoViTForFrameClassification
from hf_video.inference import score_frames
from hf_video.models.videomamba.modeling_videomamba_dense import VideoMambaForFrameClassification
from hf_video.reading.frame_streaming import StreamedFrame
from hf_video.reading.live_queue import LiveQueue
from hf_video.reading.sources import VideoReadError
from tests.testing.videos import encode_video
from tests.testing.videos import make_frames as make_images

SIZE = {"height": 16, "width": 16}
PROCESSOR = VideoClipProcessor(num_frames=8, size=SIZE, crop_size=SIZE, frame_interval=0.125)
SIZES = {"image_size": 16, "patch_size": 8, "num_frames": 8, "hidden_size": 16, "num_hidden_layers": 2}
LABELS = {"num_labels": 3, "tubelet_size": 2}


@pytest.fixture(scope="module")
def causal():
    torch.manual_seed(0)
    order = {"bidirectional": False, "use_temporal_position_embeddings": False}
    return VideoMambaForFrameClassification(VideoMambaConfig(**SIZES, **LABELS, **order)).eval()


@pytest.fixture(scope="module")
def vit():
    torch.manual_seed(0)
    heads = {"num_attention_heads": 2, "intermediate_size": 32}
    return VideoViTForFrameClassification(VideoViTConfig(**SIZES, **LABELS, **heads)).eval()


def make_frames(times):
    generator = np.random.default_rng(0)
    for number, seconds in enumerate(times):
        yield StreamedFrame(number, seconds, generator.integers(0, 256, (16, 16, 3), dtype=np.uint8), 0.125)


def regular(num_frames, start=0.0):
    return [start + number / 8 for number in range(num_frames)]


def find(model, times, **options):
    return list(score_frames(model, PROCESSOR, make_frames(times), **options))


def clip_of(times):
    """The frames as a model takes them, with the last one twice if their number is odd."""
    images = np.stack([frame.image for frame in make_frames(times)])
    images = np.concatenate([images, images[len(images) - len(images) % 2 :]])
    return PROCESSOR(images, do_sample_frames=False, num_crops=1, return_tensors="pt")["pixel_values"]


@torch.no_grad()
def scores_of_clip(model, pixel_values):
    return model(pixel_values).logits.softmax(-1)[0].numpy()


def scores_of(windows):
    return np.stack([window.scores for window in windows])


@pytest.mark.parametrize("batch_size", [1, 3])
def test_a_causal_model_gives_what_it_gives_on_the_whole_video(causal, batch_size):
    times = regular(21)
    windows = find(causal, times, batch_size=batch_size)
    np.testing.assert_allclose(scores_of(windows), scores_of_clip(causal, clip_of(times)), atol=1e-5)
    # A token frame is two samples of an eighth of a second; the last one has only one.
    expected = [(number / 4, min((number + 1) / 4, 21 / 8)) for number in range(11)]
    np.testing.assert_allclose([(window.start, window.end) for window in windows], expected)
    assert [window.begins_anew for window in windows] == [True] + [False] * 10


def test_late_answers_are_given_to_their_frames(causal, monkeypatch):
    """The last frames of a run have the last answer."""
    times = [*regular(12), *regular(8, start=9), *regular(1, start=20)]
    expected = find(causal, times, longest_gap=1)
    monkeypatch.setattr(causal.config, "frame_delay", 2)
    late = find(causal, times, longest_gap=1)
    assert [window[:2] for window in late] == [window[:2] for window in expected]
    assert [window.begins_anew for window in late] == [number in (0, 6, 10) for number in range(11)]
    answers = [2, 3, 4, 5, 5, 5, 8, 9, 9, 9, 10]
    np.testing.assert_array_equal(scores_of(late), scores_of(expected)[answers])


def test_other_models_keep_the_middles_of_clips(vit):
    times = regular(25)
    windows = find(vit, times, batch_size=4)
    clip = clip_of(times)
    # Clips of 4 token frames begin at every second one; the last ends with the video.
    parts = {start: scores_of_clip(vit, clip[:, 2 * start : 2 * start + 8]) for start in (0, 2, 4, 6, 8, 9)}
    expected = [*parts[0][:3], *parts[2][1:3], *parts[4][1:3], *parts[6][1:3], *parts[8][1:3], *parts[9][2:]]
    np.testing.assert_allclose(scores_of(windows), expected, atol=1e-5)
    assert len(windows) == 13 and windows[-1].end == 25 / 8
    assert [window.begins_anew for window in windows] == [True] + [False] * 12


@pytest.mark.parametrize("family", ["causal", "vit"])
def test_a_video_shorter_than_a_clip(family, request):
    model = request.getfixturevalue(family)
    windows = find(model, regular(5))
    np.testing.assert_allclose(scores_of(windows), scores_of_clip(model, clip_of(regular(5))), atol=1e-5)


@pytest.mark.parametrize("family", ["causal", "vit"])
def test_a_model_begins_anew_after_a_gap(family, request):
    model = request.getfixturevalue(family)
    times = regular(9) + regular(10, start=6.0)
    windows = find(model, times, longest_gap=2.0)
    assert [window.start for window in windows if window.begins_anew] == [0.0, 6.0]
    second = [window.scores for window in windows if window.start >= 6]
    expected = list(score_frames(model, PROCESSOR, list(make_frames(times))[9:]))
    np.testing.assert_allclose(second, scores_of(expected), atol=1e-5)
    assert len(windows) == 10
    # Without a limit the last frame goes on.
    assert len(find(model, times)) == 29


def test_where_timestamps_fall_back_a_model_begins_anew(causal, tmp_path):
    """A file of two recordings, one behind the other."""
    parts = [encode_video(tmp_path / f"{number}.ts", make_images(16), fps=8) for number in range(2)]
    joined = tmp_path / "joined.ts"
    joined.write_bytes(b"".join(Path(part).read_bytes() for part in parts))
    windows = list(score_frames(causal, PROCESSOR, str(joined)))
    again = [window.start for window in windows if window.begins_anew]
    # The first frame behind the border is in doubt.
    assert len(again) == 2 and again[1] == pytest.approx(17 / 8, abs=0.1)
    assert len(windows) == pytest.approx(17, abs=1)


def test_frames_are_taken_at_the_rate_of_training_and_another_is_said(causal, caplog):
    times = [number / 24 for number in range(58)]
    expected = scores_of_clip(causal, clip_of(times)[:, ::3])
    np.testing.assert_allclose(scores_of(find(causal, times)), expected, atol=1e-5)
    logging.Logger.warning_once.cache_clear()
    for fps, is_far in ((10, False), (3, True)):
        find(causal, regular(40), fps=fps)
        assert ("0.33 s apart" in caplog.text) == is_far


@pytest.mark.parametrize("family", ["causal", "vit"])
@pytest.mark.parametrize("queue_size", [None, 100])
def test_frames_before_damage_are_given(family, queue_size, request):
    def damaged():
        yield from make_frames(regular(13))
        raise VideoReadError("the video is damaged")

    queue, found = queue_size and LiveQueue(queue_size), []
    windows = score_frames(request.getfixturevalue(family), PROCESSOR, damaged(), batch_size=4, queue=queue)
    with pytest.raises(VideoReadError, match="damaged"):
        for window in windows:
            found.append(window)  # noqa: PERF402 (what comes before the error is kept)
    assert len(found) == 6


def test_a_camera_that_is_faster_than_the_model_loses_its_oldest_frames(causal):
    waits, was_filled, queue = threading.Event(), threading.Event(), LiveQueue(4)

    def camera():
        yield from make_frames(regular(200))
        was_filled.set()
        waits.wait(10)
        yield from list(make_frames(regular(202)))[200:]

    windows = score_frames(causal, PROCESSOR, camera(), queue=queue)
    first = next(windows)
    assert was_filled.wait(10)
    waits.set()
    found = [first, *windows]
    assert queue.num_items == 101 and queue.num_dropped >= 90 and len(found) == 101 - queue.num_dropped
    starts = [window.start for window in found]
    # What is left has its own times; the newest are never dropped.
    assert starts == sorted(starts) and starts[-4:] == pytest.approx([24.25, 24.5, 24.75, 25.0])


def test_memory_does_not_grow_with_a_live_video(causal):
    def camera():
        image = np.zeros((16, 16, 3), np.uint8)
        for number in range(800):
            yield StreamedFrame(number, number / 8, image.copy(), 0.125)
            taken.acquire(timeout=5)

    taken, sizes, queue = threading.Semaphore(100), [], LiveQueue(20)
    tracemalloc.start()
    for number, _ in enumerate(score_frames(causal, PROCESSOR, camera(), batch_size=20, queue=queue)):
        taken.release(2)
        if number % 80 == 40:
            gc.collect()
            sizes.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    # The images of a model's input would be 2 MB.
    assert len(sizes) == 5 and max(sizes[1:]) < sizes[0] + 100_000


def test_closing_does_not_wait_for_a_silent_camera(causal):
    goes_on = threading.Event()

    def camera():
        yield from make_frames(regular(6))
        goes_on.wait(20)

    windows = score_frames(causal, PROCESSOR, camera(), queue=LiveQueue(4))
    next(windows)
    begin = time.monotonic()
    windows.close()
    assert time.monotonic() - begin < 5
    goes_on.set()
