"""The clip that a model sees, with times and places, and the shares of its frames."""

import numpy as np
import pytest
from PIL import Image

from hf_video import VideoClipProcessor
from hf_video.inference import frame_shares, read_clip, top_frames
from hf_video.reading import VideoReadError
from tests.testing.videos import encode_video, make_frames


def test_shares_sum_to_one_and_nothing_has_none():
    heat_maps = np.stack([np.full((8, 8), value) for value in (0.0, 0.25, 0.5, 0.25)])
    np.testing.assert_allclose(frame_shares(heat_maps), [0, 0.25, 0.5, 0.25])
    assert top_frames(frame_shares(heat_maps)) == [2, 1, 3] and top_frames(frame_shares(heat_maps), 1) == [2]
    # Less than an even share is not what counted most.
    assert top_frames(np.array([0.1, 0.5, 0.2, 0.2])) == [1]
    # Frames of a tubelet have one value.
    assert top_frames(np.array([0.05, 0.05, 0.3, 0.3, 0.15, 0.15])) == [2] and top_frames(np.full(7, 1 / 7)) == [0]
    nothing = frame_shares(np.zeros((3, 8, 8)))
    assert nothing.tolist() == [0, 0, 0] and top_frames(nothing) == []


def test_a_clip_has_the_images_that_the_model_sees_and_their_times(tmp_path):
    size = {"height": 24, "width": 24}
    processor = VideoClipProcessor(num_frames=6, frame_sampling_rate=2, size={"shortest_edge": 32}, crop_size=size)
    processor.num_clips, processor.num_crops = 4, 3
    # A frame is left out, so the rate varies.
    times = [number for number in range(31) if number != 10]
    video = encode_video(tmp_path / "a.mp4", make_frames(30, 48, 96), times=times)
    clip = read_clip(processor, video)
    expected = processor(video, num_clips=1, num_crops=1, return_tensors="pt")["pixel_values"]
    assert clip.pixel_values.equal(expected) and clip.images.shape == (6, 24, 24, 3)
    seen = (expected[0].movedim(1, -1).numpy() * processor.image_std + processor.image_mean) * 255
    np.testing.assert_allclose(clip.images, seen, atol=1e-3)
    np.testing.assert_allclose(clip.times, np.array([9, 12, 14, 16, 18, 20]) / 30, atol=1e-4)
    assert clip.end == pytest.approx((20 + 11 / 5) / 30, abs=1e-4) and clip.video_size == (48, 96)
    # 48 x 96 becomes 32 x 64; the crop begins at row 4 and column 20, and a pixel stands for 1.5 of the video.
    np.testing.assert_allclose(clip.places[0, 0], [20.5 * 1.5 - 0.5, 4.5 * 1.5 - 0.5], atol=0.01)
    np.testing.assert_allclose(clip.places[23, 23], [43.5 * 1.5 - 0.5, 27.5 * 1.5 - 0.5], atol=0.01)


def test_a_part_of_a_video_keeps_the_times_of_the_video(tmp_path):
    processor = VideoClipProcessor(num_frames=4, sampling_strategy="linspace", crop_size={"height": 24, "width": 24})
    video = encode_video(tmp_path / "a.mp4")
    clip = read_clip(processor, video, start=1.0, end=1.5)
    np.testing.assert_allclose(clip.times, np.array([30, 35, 39, 44]) / 30, atol=1e-4)
    assert clip.end == pytest.approx(1.5, abs=1e-4)
    with pytest.raises(VideoReadError, match="start=7"):
        read_clip(processor, video, start=7.0)


def test_a_folder_of_frames_needs_a_rate(tmp_path):
    for number, frame in enumerate(make_frames(5)):
        Image.fromarray(frame).save(tmp_path / f"{number}.png")
    processor = VideoClipProcessor(num_frames=8, frame_sampling_rate=1, crop_size={"height": 24, "width": 24})
    with pytest.raises(ValueError, match="no times.*source_fps"):
        read_clip(processor, tmp_path)
    clip = read_clip(processor, tmp_path, source_fps=10)
    np.testing.assert_allclose(clip.times, [0, 0.1, 0.2, 0.3, 0.4, 0.4, 0.4, 0.4])
    assert clip.end == pytest.approx(0.4 + 0.4 / 7)
