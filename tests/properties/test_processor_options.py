"""Wrong options of a processor are errors of its construction that name them; right ones give finite views."""

import math
import tempfile
from collections import Counter

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers.image_utils import PILImageResampling

from hf_video import VideoClipProcessor
from hf_video.processing import SAMPLING_STRATEGIES

from ..video_files import make_frames

VIDEO = make_frames(30)
METADATA = [{"total_num_frames": 30, "fps": 30, "width": 64, "height": 48, "duration": 1.0}]
QUICK = settings(max_examples=12, derandomize=True, deadline=None, database=None, suppress_health_check=[*HealthCheck])
THOROUGH = settings(QUICK, max_examples=1000, derandomize=False)

COUNTS = (0, -1, 1.5, math.nan, True, "x", [1], {"a": 1})
RATES = (0, -1.0, math.nan, math.inf, True, "x", [1])
SWITCHES = (2, -1, 0.5, math.nan, "x", "", [True], {"a": 1})
SIZES = (
    0,
    -1,
    1.5,
    math.nan,
    True,
    "x",
    [],
    [8],
    [8, 0],
    [8, 8, 8],
    [None],
    {"a": 1},
    {"height": 8},
    {"height": 0, "width": 8},
)
STATISTICS = (math.nan, "x", [], [0.5] * 2 + [math.nan], [None] * 3, [0.5] * 2, True)
WRONG = {
    "num_frames": COUNTS,
    "num_clips": COUNTS,
    "num_crops": COUNTS,
    "frame_sampling_rate": RATES,
    "fps": RATES,
    "rescale_factor": RATES,
    "sampling_strategy": ("x", "", None, 1, ["dense"], {"a": 1}),
    "size": SIZES,
    "crop_size": SIZES,
    "image_mean": STATISTICS,
    "image_std": (*STATISTICS, 0.0, -1.0, [0.5, 0.5, 0.0]),
    "resample": (99, -1, "x", True, [2], PILImageResampling.LANCZOS),
    "data_format": ("x", 1, ["channels_first"]),
    "input_data_format": ("x", 1, ["channels_first"]),
    **dict.fromkeys(
        ("default_to_square", "do_convert_rgb", "do_resize", "do_center_crop", "do_rescale", "do_normalize", "do_pad")
        + ("do_sample_frames", "repeat_last_frame", "antialias", "return_metadata", "round_resized"),
        SWITCHES,
    ),
}
# What a call is given, not the construction.
OF_A_CALL = {"device", "video_metadata", "return_tensors"}


def test_every_option_is_tried():
    assert {*WRONG} | OF_A_CALL == {*VideoClipProcessor.valid_kwargs.__annotations__}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_options_are_named(name):
    for value in WRONG[name]:
        with pytest.raises(ValueError) as error:
            VideoClipProcessor(**{name: value})
        assert name in str(error.value), f"{name}={value!r}: {error.value}"


@st.composite
def right_options(draw):
    options = {
        "num_frames": draw(st.none() | st.integers(1, 6)),
        "num_clips": draw(st.integers(1, 3)),
        "num_crops": draw(st.integers(1, 3)),
        "sampling_strategy": draw(st.sampled_from(sorted(SAMPLING_STRATEGIES))),
        "size": draw(
            st.integers(24, 40) | st.fixed_dictionaries({"height": st.integers(24, 40), "width": st.just(30)})
        ),
        "crop_size": draw(st.integers(1, 24) | st.lists(st.integers(1, 24), min_size=2, max_size=2)),
        "resample": draw(st.sampled_from([2, 3])),
        "antialias": draw(st.booleans()),
        "round_resized": draw(st.booleans()),
        "rescale_factor": draw(st.floats(1e-4, 1)),
        "image_mean": draw(st.floats(0, 1) | st.lists(st.floats(-1, 1), min_size=3, max_size=3)),
        "image_std": draw(st.floats(0.1, 2) | st.lists(st.floats(0.1, 2), min_size=3, max_size=3)),
        **{name: draw(st.booleans()) for name in ("do_resize", "do_rescale", "do_normalize")},
    }
    if options["sampling_strategy"] in ("dense", "strided"):
        options[draw(st.sampled_from(["fps", "frame_sampling_rate"]))] = draw(st.floats(0.5, 20))
    return options


def check(options):
    processor = VideoClipProcessor(**options)
    views = processor(VIDEO, return_tensors="pt", video_metadata=METADATA)["pixel_values"]
    crop = processor.crop_size
    assert views.shape[-3:] == (3, crop["height"], crop["width"])
    num_views = options["num_clips"] * options["num_crops"]
    assert views.shape[0] == 1 and (views.ndim == 5 if num_views == 1 else views.shape[1] == num_views)
    assert options["num_frames"] in (None, views.shape[-4])
    assert views.float().isfinite().all()
    with tempfile.TemporaryDirectory() as folder:
        processor.save_pretrained(folder)
        loaded = VideoClipProcessor.from_pretrained(folder)
    assert loaded.to_dict() == processor.to_dict()
    again = loaded(VIDEO, return_tensors="pt", video_metadata=METADATA)["pixel_values"]
    assert torch.equal(again, views)


def test_right_options_give_finite_views_and_are_saved():
    QUICK(given(right_options())(check))()


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_thousand_processors(capsys):
    counts = Counter()

    def counted(options):
        check(options)
        counts["processors"] += 1

    THOROUGH(given(right_options())(counted))()
    with capsys.disabled():
        print(f"\n{counts['processors']} processors")
    assert counts["processors"] >= THOROUGH.max_examples
