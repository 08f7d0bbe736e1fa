import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from transformers import VideoMAEConfig, VideoMAEForVideoClassification, pipeline
from transformers.video_utils import VideoMetadata

from hf_video.processing import VideoClipProcessor
from hf_video.reading import probe_video, read_video
from tests.testing.goldens import FIXTURES
from tests.testing.videos import encode_video, make_frames

MEAN = torch.tensor([0.485, 0.456, 0.406]).reshape(3, 1, 1)
STD = torch.tensor([0.229, 0.224, 0.225]).reshape(3, 1, 1)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return encode_video(tmp_path_factory.mktemp("videos") / "video.mp4")


def small(**options):
    """Clips of 4 consecutive frames of 32 x 32 pixels."""
    return VideoClipProcessor(**{"num_frames": 4, "frame_sampling_rate": 1, "size": 32, "crop_size": 32} | options)


def pixels(processor, videos, **options):
    return processor(videos, return_tensors="pt", **options)["pixel_values"]


def grey_levels(views):
    return ((views * STD + MEAN) * 255).round()


def test_matches_the_original_preprocessing():
    golden = load_file(FIXTURES / "clip_preprocessing.safetensors")
    processor = small(num_frames=8, sampling_strategy="sparse", num_clips=4, num_crops=3)
    views = pixels(processor, golden["portrait"]).reshape(4, 3, 8, 3, 32, 32)
    expected = golden["test.portrait.segment3.crop2"].transpose(0, 1)
    torch.testing.assert_close(views[3, 2], expected, atol=1e-5, rtol=0)


def test_several_views_have_an_axis_of_their_own_clips_first():
    videos = [make_frames(30, 32, 64), make_frames(40, 64, 32)]
    processor = small(sampling_strategy="uniform", num_clips=2, num_crops=3)
    views = pixels(processor, videos)
    assert views.shape == (2, 6, 4, 3, 32, 32) and views.dtype == torch.float32
    views = grey_levels(views).reshape(2, 2, 3, 4, 3, 32, 32)
    for clip, indices in enumerate([[0, 7, 15, 22], [3, 11, 18, 26]]):
        for crop, offset in enumerate([0, 16, 32]):
            expected = videos[0][indices][:, :, offset : offset + 32]
            assert np.array_equal(views[0, clip, crop].permute(0, 2, 3, 1), expected)
    assert np.array_equal(views[1, 1, 2].permute(0, 2, 3, 1), videos[1][[5, 15, 25, 35], 32:])


def test_every_kind_of_input_gives_the_same(path, tmp_path):
    frames, _ = read_video(path)
    for i, frame in enumerate(frames):
        Image.fromarray(frame).save(tmp_path / f"{i}.png")
    processor = small(num_clips=2)
    expected = pixels(processor, frames)
    inputs = {
        "string": path,
        "path": tmp_path.__class__(path),
        "folder": tmp_path,
        "channels first": frames.transpose(0, 3, 1, 2),
        "tensor": torch.from_numpy(frames),
        "float": frames.astype(np.float64),
        "images": [Image.fromarray(frame) for frame in frames],
        "list of arrays": list(frames),
        "list of tensors": list(torch.from_numpy(frames).permute(0, 3, 1, 2)),
        "nested": [[path]],
        "five dimensions": frames[None],
    }
    for name, video in inputs.items():
        tolerance = 0.02 if name == "float" else 0
        torch.testing.assert_close(pixels(processor, video), expected, atol=tolerance, rtol=0, msg=name)
    mixed = pixels(processor, [path, tmp_path, frames, [Image.fromarray(frame) for frame in frames]])
    assert torch.equal(mixed, expected.repeat(4, 1, 1, 1, 1, 1))


def test_grey_and_transparent_frames_become_rgb():
    grey = make_frames(4, 32, 32)[..., :1]
    assert torch.equal(pixels(small(), grey), pixels(small(), grey.repeat(3, axis=-1)))
    as_images = [Image.fromarray(frame[..., 0]) for frame in grey]
    assert torch.equal(pixels(small(), as_images), pixels(small(), grey))
    opaque = np.concatenate([make_frames(4, 32, 32), np.full((4, 32, 32, 1), 255, dtype=np.uint8)], axis=-1)
    assert torch.equal(pixels(small(), opaque), pixels(small(), opaque[..., :3]))


def test_without_sampling_arrays_and_files_are_taken_whole(path):
    processor = small(num_clips=3)
    assert pixels(processor, make_frames(7), do_sample_frames=False).shape[:2] == (1, 7)
    assert pixels(processor, path, do_sample_frames=False).shape[:2] == (1, 60)
    backwards = pixels(processor, make_frames(7)[::-1], do_sample_frames=False)
    assert torch.equal(backwards, pixels(processor, make_frames(7), do_sample_frames=False).flip(1))


def test_metadata_tell_what_was_sampled(path):
    array = make_frames(20)
    inputs = small(num_clips=2)([path, array], return_metadata=True)
    from_file, from_array = inputs["video_metadata"]
    assert from_file.total_num_frames == 60 and from_file.fps == pytest.approx(30)
    assert from_file.frames_indices == [0, 1, 2, 3, 56, 57, 58, 59]
    assert from_array.frames_indices == [0, 1, 2, 3, 16, 17, 18, 19]


def test_fps_replaces_the_sampling_rate(path):
    by_rate = pixels(small(frame_sampling_rate=3), path)
    assert torch.equal(pixels(small(fps=10, frame_sampling_rate=None), path), by_rate)
    assert torch.equal(pixels(small(), path, fps=10), by_rate)
    assert torch.equal(
        pixels(small(fps=10, frame_sampling_rate=None), path, frame_sampling_rate=1), pixels(small(), path)
    )
    metadata = VideoMetadata(total_num_frames=60, fps=30)
    assert torch.equal(pixels(small(), read_video(path)[0], fps=10, video_metadata=[metadata]), by_rate)
    assert metadata.frames_indices is None


def test_options_survive_saving(tmp_path):
    options = {
        "num_frames": 8,
        "frame_sampling_rate": 2.5,
        "sampling_strategy": "strided",
        "num_clips": 5,
        "num_crops": 3,
        "repeat_last_frame": False,
        "antialias": True,
        "size": {"shortest_edge": 40},
        "crop_size": {"height": 32, "width": 36},
    }
    processor = VideoClipProcessor(**options)
    processor.save_pretrained(tmp_path)
    loaded = VideoClipProcessor.from_pretrained(tmp_path)
    assert loaded.to_dict() == processor.to_dict()
    assert {name: loaded.to_dict()[name] for name in options} == options
    assert pixels(loaded, make_frames(40, 48, 64)).shape == (1, 15, 8, 3, 32, 36)
    with_rate = VideoClipProcessor.from_pretrained(tmp_path, fps=8)
    assert (with_rate.fps, with_rate.frame_sampling_rate) == (8, None)
    with_rate.save_pretrained(tmp_path)
    assert VideoClipProcessor.from_pretrained(tmp_path).to_dict() == with_rate.to_dict()


def test_serves_the_pipeline_of_transformers(path):
    config = VideoMAEConfig(
        image_size=32, num_frames=4, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
    )
    model = VideoMAEForVideoClassification(config).eval()
    processor = small(num_frames=16)
    classify = pipeline("video-classification", model=model, video_processor=processor)
    with torch.no_grad():
        logits = model(pixels(processor, path, num_frames=4)).logits[0]
    scores = {prediction["label"]: prediction["score"] for prediction in classify(path)}
    for label, score in enumerate(logits.softmax(-1).tolist()):
        assert scores[f"LABEL_{label}"] == pytest.approx(score, abs=1e-5)


@pytest.mark.parametrize(
    "video, message",
    [
        ([], "empty list"),
        (np.zeros((4, 32, 32), dtype=np.uint8), "3 dimensions"),
        (np.zeros((4, 32, 32, 5), dtype=np.uint8), r"1, 3 or 4 channels.*\(4, 32, 32, 5\)"),
        (np.zeros((4, 32, 32, 3), dtype=np.int64), "uint8 or float, got torch.int64"),
        (np.full((4, 32, 32, 3), 256.0), r"lies in \[0, 255\], got values from 256.0 to 256.0"),
        (np.full((4, 32, 32, 3), np.nan), "got values from nan"),
        (np.full((4, 32, 32, 3), 0.5), "do_rescale=False"),
        (Image.new("RGB", (32, 32)), "single image.*list"),
        ([Image.new("RGB", (32, 32)), Image.new("RGB", (32, 33))], "one size"),
    ],
)
def test_wrong_videos_are_refused(video, message):
    with pytest.raises(ValueError, match=message):
        small()(video)


@pytest.mark.parametrize(
    ("videos", "options", "message"),
    [
        (
            [make_frames(4), make_frames(5)],
            {"do_sample_frames": False},
            r"\(4, 3, 32, 32\), \(5, 3, 32, 32\).*one batch",
        ),
        (make_frames(4), {"video_metadata": [VideoMetadata(9)]}, "total_num_frames=9, but the array has 4"),
        (make_frames(4), {"crop_size": 64, "num_crops": 3}, "does not fit 3 times into frames of 32 x 42"),
        (make_frames(3), {"repeat_last_frame": False}, "only 3.*repeat_last_frame=True"),
        (make_frames(4), {"fps": 3}, "fps=3 needs the frame rate"),
    ],
)
def test_videos_that_do_not_fit_together_are_refused(videos, options, message):
    with pytest.raises(ValueError, match=message):
        pixels(small(), videos, **options)


def test_frames_of_few_pixels_and_floats_are_taken():
    for height, width in ((1, 9), (9, 1), (1, 1), (4, 9)):
        frames = np.random.default_rng(0).integers(0, 256, (4, height, width, 3), dtype=np.uint8)
        for video in (frames, frames.transpose(0, 3, 1, 2), [Image.fromarray(frame) for frame in frames]):
            views = pixels(small(), video, do_resize=False, do_center_crop=False)
            assert torch.equal(grey_levels(views)[0], torch.from_numpy(frames).permute(0, 3, 1, 2).float())
    frames = make_frames(4, 32, 32)
    rescaled = frames.astype(np.float32) / 255
    torch.testing.assert_close(pixels(small(), rescaled, do_rescale=False), pixels(small(), frames))
    assert pixels(small(), np.zeros((4, 32, 32, 3))).shape == (1, 4, 3, 32, 32)


def test_the_distance_of_the_training_is_saved_and_is_no_option_of_a_call(tmp_path):
    VideoClipProcessor().save_pretrained(tmp_path)
    assert VideoClipProcessor.from_pretrained(tmp_path).frame_interval is None
    VideoClipProcessor(frame_interval=0.12).save_pretrained(tmp_path)
    loaded = VideoClipProcessor.from_pretrained(tmp_path, num_frames=3, sampling_strategy="uniform")
    assert loaded.frame_interval == 0.12
    with pytest.raises(TypeError, match="frame_interval"):
        loaded(np.zeros((9, 8, 8, 3), np.uint8), frame_interval=0.2)


def test_fps_of_a_video_of_changing_rate_takes_the_frames_nearest_to_the_times(tmp_path):
    ticks = np.concatenate([np.arange(60), 60 + 20 * np.arange(30)])
    path = encode_video(tmp_path / "changing.mp4", make_frames(90), fps=30, times=ticks.tolist())
    times = ticks / 30
    for sampling_strategy in ("dense", "strided"):
        for generator in (None, np.random.default_rng(0)):
            processor = VideoClipProcessor(num_frames=8, fps=1.5, sampling_strategy=sampling_strategy, num_clips=3)
            for clip in processor.sample_frames(probe_video(path), generator=generator):
                wanted = times[clip[0]] + np.arange(8) / 1.5
                assert np.abs(times[clip] - wanted).max() < 0.67
    # Every second, from the start to the end.
    everything = VideoClipProcessor(num_frames=None, fps=1).sample_frames(probe_video(path))[0]
    assert everything.tolist() == [np.abs(times - second).argmin() for second in range(len(everything))]
    assert len(everything) == int(probe_video(path).duration)
