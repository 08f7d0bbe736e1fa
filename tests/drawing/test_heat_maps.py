"""Heat maps on frames, as a picture and as a video: colours, times and places."""

import av
import numpy as np
import pytest

from hf_video.drawing import draw_heat_maps, overlay_heat_maps, write_heat_map_video
from hf_video.drawing.timeline_picture import save_figure

from .test_timeline_picture import texts_of


def grey(num_frames=4, height=64, width=64):
    return np.full((num_frames, height, width, 3), 100, np.uint8)


def one_hot_place(num_frames=4, height=64, width=64, frame=1, place=(slice(16, 32), slice(40, 56))):
    heat_maps = np.zeros((num_frames, height, width), np.float32)
    heat_maps[frame][place] = 1
    return heat_maps


def test_colour_lies_where_the_evidence_is_and_grows_with_it():
    heat_maps = one_hot_place()
    heat_maps[1, 40:48, 0:8] = 0.5
    drawn = overlay_heat_maps(grey(), heat_maps)
    change = np.abs(drawn.astype(int) - 100).sum(axis=-1)
    assert drawn.dtype == np.uint8 and not change[heat_maps == 0].any()
    assert change[heat_maps == 1].min() > change[heat_maps == 0.5].max() > 30
    # The highest evidence is yellow.
    red, green, blue = drawn[1, 20, 45]
    assert red > 180 and green > 180 and blue < 80


def test_what_is_no_heat_map_of_the_frames_is_refused():
    for heat_maps, named in ((np.full((4, 64, 64), np.nan), "nan"), (np.zeros((4, 32, 64)), r"\(4, 32, 64\)")):
        with pytest.raises(ValueError, match=named):
            overlay_heat_maps(grey(), heat_maps)


@pytest.mark.parametrize("size", [(64, 64), (75, 121)])
def test_the_video_holds_each_frame_until_the_next_and_is_hot_at_the_hot_place(size, tmp_path):
    place = slice(size[0] // 4, size[0] // 2), slice(size[1] // 2, 3 * size[1] // 4)
    heat_maps, times = one_hot_place(4, *size, place=place), [2.0, 2.5, 2.6, 4.0]
    write_heat_map_video(tmp_path / "a.mp4", grey(4, *size), heat_maps, times, end=5.5)
    with av.open(str(tmp_path / "a.mp4")) as container:
        stream = container.streams.video[0]
        assert stream.codec_context.name == "h264" and stream.pix_fmt == "yuv420p"
        frames = list(container.decode(video=0))
        assert [frame.time for frame in frames] == pytest.approx([0, 0.5, 0.6, 2.0])
        assert float(stream.duration * stream.time_base) == pytest.approx(3.5)
    decoded = np.stack([frame.to_ndarray(format="rgb24") for frame in frames]).astype(int)
    factor = -(-240 // size[0])
    assert decoded.shape[1] in (factor * size[0], factor * size[0] + 1)
    warmth = decoded[:, : factor * size[0], : factor * size[1]]
    warmth = (warmth[..., 0] - warmth[..., 2])[:, factor // 2 :: factor, factor // 2 :: factor]
    assert warmth[1][heat_maps[1] == 1].mean() > 100
    for number in (0, 2, 3):
        assert abs(warmth[number]).max() < 10
    # A browser needs the index before the frames to begin at once.
    content = (tmp_path / "a.mp4").read_bytes()
    assert 0 < content.index(b"moov") < content.index(b"mdat")


@pytest.mark.parametrize("size", [(4, 64, 64), (9, 96, 54)])
def test_the_picture_shows_every_frame_with_its_share(size, tmp_path):
    num_frames = size[0]
    heat_maps = one_hot_place(*size, frame=2, place=(slice(0, 16), slice(0, 16)))
    heat_maps[3, :8, :16] = 1
    figure = draw_heat_maps(grey(*size), heat_maps, np.arange(num_frames) / 2, "a $ video\n投げる of class_1$")
    texts = texts_of(figure)
    assert {"0:00:00.00", f"0:00:{(num_frames - 1) / 2:05.2f}", "66.7%", "33.3%"} <= set(texts)
    assert texts.count("0.0%") == num_frames - 2 and "a $ video\n投げる of class_1$" in texts
    save_figure(figure, tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size > 5000
