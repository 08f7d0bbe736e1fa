import logging

import numpy as np
import pytest
import torch
from transformers import VideoMAEConfig, VideoMAEForVideoClassification

from hf_video import (
    MemoryBankQFormerForVideoClassification,
    VideoClipProcessor,
    VideoMambaConfig,
    VideoMambaForVideoClassification,
)
from hf_video.data import ClipTask, VideoDataset, load_video_dataset
from hf_video.inference import extract_window_features, window_batches
from hf_video.inference.windows import choose_windows
from hf_video.reading import read_video, timed_samples
from hf_video.training import VideoTrainer
from tests.models.memory_bank_qformer.memory_bank_qformer_testing import tiny_model
from tests.testing.trainers import make_arguments, make_model
from tests.testing.videos import encode_video, make_frames

SIZE = {"height": 16, "width": 16}


def make_videomamba():
    torch.manual_seed(0)
    sizes = {"image_size": 16, "patch_size": 8, "hidden_size": 24, "num_hidden_layers": 2, "num_labels": 2}
    return VideoMambaForVideoClassification(VideoMambaConfig(num_frames=4, **sizes))


def make_videomae(kind=VideoMAEForVideoClassification):
    torch.manual_seed(0)
    sizes = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    return kind(VideoMAEConfig(image_size=16, patch_size=8, num_frames=4, **sizes))


MODELS = {
    "videovit": lambda: make_model(num_frames=4, num_hidden_layers=2),
    "videomamba": make_videomamba,
    "videomae": make_videomae,
}


@pytest.fixture(scope="module")
def processor():
    return VideoClipProcessor(num_frames=4, frame_sampling_rate=1, size={"shortest_edge": 16}, crop_size=SIZE)


@pytest.fixture(scope="module")
def video(tmp_path_factory):
    return encode_video(tmp_path_factory.mktemp("video") / "video.mp4", make_frames(23))


def windows_of(video, starts, num_frames=4):
    """The frames of windows that are read one by one; the last frame fills a short one."""
    total = len(read_video(video)[0])
    return [
        read_video(video, lambda metadata, start=start: np.arange(start, start + num_frames).clip(max=total - 1))[0]
        for start in starts
    ]


def process(processor, frames):
    return processor(frames, do_sample_frames=False, return_tensors="pt")["pixel_values"]


@pytest.mark.parametrize(("stride", "batch_size"), [(2, 3), (7, 2)])
def test_batches_are_the_windows_one_by_one(processor, video, stride, batch_size):
    batches = list(window_batches(processor, video, num_frames=4, stride=stride, batch_size=batch_size, last="drop"))
    starts = range(0, 23 - 3, stride)
    assert [start for batch in batches for start in batch.starts] == pytest.approx([start / 30 for start in starts])
    assert [end for batch in batches for end in batch.ends] == pytest.approx([(start + 4) / 30 for start in starts])
    assert [len(batch.starts) for batch in batches[:-1]] == [batch_size] * (len(batches) - 1)
    expected = torch.cat([process(processor, frames) for frames in windows_of(video, starts)])
    torch.testing.assert_close(torch.cat([batch.pixel_values for batch in batches]), expected, rtol=0, atol=1e-5)


def test_each_frame_is_processed_once(processor, video, monkeypatch):
    sizes = []
    original = VideoClipProcessor.preprocess
    monkeypatch.setattr(
        VideoClipProcessor,
        "preprocess",
        lambda self, videos, **kwargs: sizes.append(len(videos)) or original(self, videos, **kwargs),
    )
    assert len(list(window_batches(processor, video, num_frames=4, stride=1))) == 20
    assert sum(sizes) == 23
    sizes.clear()
    assert len(list(window_batches(processor, video, num_frames=4, stride=8))) == 3
    assert sum(sizes) == 4 + 4 + 4


@pytest.mark.parametrize("name", MODELS)
def test_features_are_those_of_windows_one_by_one(processor, video, name):
    model = MODELS[name]().eval()
    found = extract_window_features(model, processor, video, num_frames=4, stride=2, batch_size=3)
    seen = []
    hook = model.classifier.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    with torch.no_grad():
        states = [
            model(process(processor, frames), output_hidden_states=True).hidden_states
            for frames in windows_of(video, range(0, 21, 2))
        ]
    hook.remove()
    assert found.features.dtype == np.float32 and found.num_real == [4] * 10 + [3]
    np.testing.assert_allclose(found.features, torch.cat(seen).numpy(), rtol=0, atol=1e-5)
    for layer in (0, 1, -1):
        tokens = torch.cat([state[layer] for state in states])
        for pooling, expected in {"mean": tokens.mean(1), "cls": tokens[:, 0], "none": tokens}.items():
            options = {"num_frames": 4, "stride": 2, "layer": layer, "pooling": pooling}
            features = extract_window_features(model, processor, video, **options).features
            np.testing.assert_allclose(features, expected.numpy(), rtol=0, atol=1e-5)


def test_windows_are_as_the_processor_takes_clips():
    of_sizes = {"num_frames": 6, "stride": 3, "fps": None, "frame_sampling_rate": 4}
    assert choose_windows(VideoClipProcessor(num_frames=6)) == of_sizes
    assert choose_windows(VideoClipProcessor(num_frames=6, fps=5)) == of_sizes | {"fps": 5, "frame_sampling_rate": 1}
    uniform = VideoClipProcessor(num_frames=6, sampling_strategy="uniform")
    assert choose_windows(uniform) == of_sizes | {"frame_sampling_rate": 1}
    given = {"num_frames": 4, "stride": 1, "fps": None, "frame_sampling_rate": 2}
    assert choose_windows(VideoClipProcessor(num_frames=6, fps=5), **given) == given
    for options in ({"fps": 5}, {"sampling_strategy": "uniform"}, {"frame_sampling_rate": 2}):
        learned = VideoClipProcessor(num_frames=6, frame_interval=0.125, **options)
        assert choose_windows(learned) == of_sizes | {"fps": 8, "frame_sampling_rate": 1}
        assert choose_windows(learned, **given) == given


@pytest.fixture
def said(caplog):
    """The lines of the log, which says each sentence once in a process."""
    logging.Logger.warning_once.cache_clear()
    return caplog


def uniform(frame_interval=None):
    return VideoClipProcessor(
        num_frames=8,
        sampling_strategy="uniform",
        frame_interval=frame_interval,
        size={"shortest_edge": 16},
        crop_size=SIZE,
    )


def test_windows_take_frames_at_the_distance_of_training(tmp_path, said):
    """A video that consists of training videos: each window shows what the clip of its training video shows."""
    distance, fps, parts = 3, 25, np.split(make_frames(5 * 8 * 3), 5)
    for number, frames in enumerate(parts):
        folder = tmp_path / "data" / "ab"[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        encode_video(folder / f"{number}.mp4", frames, fps=fps)
    processor = uniform()
    clips = VideoDataset(load_video_dataset(tmp_path / "data")["train"], ClipTask(processor), training=True)
    options = {"max_steps": 1, "eval_strategy": "no", "save_strategy": "no", "load_best_model_at_end": False}
    arguments = make_arguments(tmp_path / "out", **options)
    VideoTrainer(make_model(num_frames=8), arguments, train_dataset=clips, processing_class=processor).train()
    assert processor.frame_interval == pytest.approx(distance / fps, abs=1e-6)

    # The same scene at the rate of training, and with every frame twice.
    for factor in (1, 2):
        joined = encode_video(tmp_path / f"{factor}.mp4", np.concatenate(parts).repeat(factor, 0), fps=fps * factor)
        rate = {name: choose_windows(processor)[name] for name in ("fps", "frame_sampling_rate")}
        taken = [sample.value.number for sample in timed_samples(joined, **rate)]
        assert taken == list(range(0, 5 * 8 * distance * factor, distance * factor))
    assert not said.records


def test_a_flag_wins_and_a_distance_that_is_far_from_training_is_said(video, said):
    for options, distance in (({"frame_sampling_rate": 1}, "0.033"), ({"fps": 3}, "0.33")):
        for _ in range(2):
            list(window_batches(uniform(0.12), video, num_frames=3, **options))
        (record,) = said.records
        assert f"{distance} s apart" in record.message and "0.12 s" in record.message
        said.clear()
    for options in ({}, {"frame_sampling_rate": 3}, {"fps": 10}):
        list(window_batches(uniform(0.12), video, num_frames=3, **options))
    list(window_batches(uniform(0.12), video, num_frames=1, fps=3))
    assert not said.records


def test_an_unknown_distance_is_said_with_what_is_taken_instead(video, said):
    taken = {
        uniform(): "every frame",
        VideoClipProcessor(num_frames=8, frame_sampling_rate=2): "one frame of 2, as its clips do",
    }
    for processor, what in taken.items():
        choose_windows(processor)
        assert what in said.text
        said.clear()
    choose_windows(VideoClipProcessor(num_frames=8, fps=5))
    choose_windows(uniform(), fps=5)
    choose_windows(uniform(), frame_sampling_rate=1)
    assert not said.records


def test_a_memory_begins_anew_with_every_window(video):
    sizes = {"size": {"shortest_edge": 14}, "crop_size": {"height": 14, "width": 14}}
    processor = VideoClipProcessor(num_frames=4, frame_sampling_rate=1, **sizes)
    vision = {"hidden_size": 40, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4}
    vision |= {"model_type": "instructblip_vision_model", "image_size": 14, "patch_size": 7}
    model = tiny_model(
        MemoryBankQFormerForVideoClassification, use_qformer_text_input=False, vision_config=vision
    ).eval()
    found = extract_window_features(model, processor, video, num_frames=4, stride=2, batch_size=3).features
    with torch.no_grad():
        clips = torch.cat([process(processor, frames) for frames in windows_of(video, range(0, 21, 2))])
        expected = torch.cat([model.memory_bank_qformer(clip[None]).last_hidden_state.mean(1) for clip in clips])
    np.testing.assert_allclose(found, expected.numpy(), rtol=0, atol=1e-5)


def test_a_window_that_the_model_does_not_take(processor, video):
    with pytest.raises(ValueError, match="VideoMAEForVideoClassification cannot encode windows of .6, 3, 16, 16."):
        extract_window_features(make_videomae(), processor, video, num_frames=6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layer": 3}, "layer=3 is out of range: VideoViTModel has 3 hidden states"),
        ({"layer": 0, "pooling": "head"}, "no pooling 'head' of layer 0: choose from mean, cls, none"),
        ({"pooling": "max"}, "no pooling 'max' of VideoViT.*: choose from head, mean, cls, none"),
        ({"stride": 0}, "stride=0 must be"),
        ({"batch_size": 0}, "batch_size=0 must be"),
    ],
)
def test_options_that_the_model_does_not_take(processor, video, options, message):
    with pytest.raises(ValueError, match=message):
        extract_window_features(MODELS["videovit"](), processor, video, **{"num_frames": 4} | options)
