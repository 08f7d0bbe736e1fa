"""VideoTextDualEncoderProcessor: cleaned texts, tokens, frames, and use without a tokenizer."""

import pytest
import torch
from transformers import AutoProcessor, BertTokenizer

from hf_video import VideoClipProcessor, VideoTextDualEncoderConfig, VideoTextDualEncoderProcessor
from hf_video.models.video_text import clean_caption
from tests.testing.goldens import load_golden

GOLDEN = load_golden("video_text", "text_frames_preprocess")


def make_processor(size=16, tokenizer=None):
    sizes = {"size": {"height": size, "width": size}, "do_center_crop": False}
    frames = {"sampling_strategy": "middle", "resample": 3, "round_resized": True, "num_frames": 3}
    return VideoTextDualEncoderProcessor(VideoClipProcessor(**frames, **sizes), tokenizer)


def make_tokenizer():
    return BertTokenizer({word: number for number, word in enumerate(GOLDEN.config["tokenizer"]["vocab"])})


def test_texts_are_cleaned_as_by_the_original():
    for row in GOLDEN.config["pre_text"]:
        assert clean_caption(row["raw"]) == row["out"]


def test_tokens_are_those_of_the_original():
    texts = [row["raw"] for row in GOLDEN.config["pre_text"]]
    inputs = make_processor(tokenizer=make_tokenizer())(
        text=texts, max_length=10, padding="max_length", return_tensors="pt"
    )
    assert sorted(inputs) == ["attention_mask", "input_ids"]
    assert torch.equal(inputs["input_ids"], GOLDEN.expected["input_ids"])
    assert torch.equal(inputs["attention_mask"], GOLDEN.expected["attention_mask"])


@pytest.mark.parametrize("number", range(3))
def test_frames_are_those_of_the_original(number):
    resolution = GOLDEN.config["transforms"][number]["resolution"]
    frames = GOLDEN.inputs[f"frames.{number}"]
    inputs = make_processor(resolution)(frames, do_sample_frames=False, return_tensors="pt")
    torch.testing.assert_close(inputs["pixel_values"][0], GOLDEN.expected[f"pixel_values.{number}"], atol=1e-5, rtol=0)


def test_videos_and_texts_together_and_lists_without_tensors():
    processor = make_processor(tokenizer=make_tokenizer())
    videos = torch.zeros(2, 5, 3, 20, 24, dtype=torch.uint8)
    inputs = processor(videos, ["A dog.", "a cat", "a man is running"], return_tensors="pt")
    assert list(inputs) == processor.model_input_names == ["pixel_values", "input_ids", "attention_mask"]
    assert inputs["pixel_values"].shape == (2, 3, 3, 16, 16)
    assert inputs["input_ids"].shape == inputs["attention_mask"].shape == (3, 6)
    assert processor(text="A dog.", max_length=3)["input_ids"] == [inputs["input_ids"][0, :2].tolist() + [3]]


@pytest.mark.parametrize("with_tokenizer", [True, False])
def test_it_is_saved_and_found(tmp_path, with_tokenizer):
    VideoTextDualEncoderConfig().save_pretrained(tmp_path)
    processor = make_processor(20, make_tokenizer() if with_tokenizer else None)
    processor.max_length = 7
    processor.save_pretrained(tmp_path)
    loaded = AutoProcessor.from_pretrained(tmp_path)
    assert type(loaded) is VideoTextDualEncoderProcessor
    assert loaded.max_length == 7
    assert loaded.video_processor.to_dict() == processor.video_processor.to_dict()
    video = GOLDEN.inputs["frames.2"]
    assert torch.equal(*(each(video, return_tensors="pt")["pixel_values"] for each in (loaded, processor)))
    if with_tokenizer:
        assert loaded(text="a dog")["input_ids"] == processor(text="A dog!")["input_ids"]
    else:
        with pytest.raises(ValueError, match="--tokenizer DIR_OR_ID"):
            loaded(text="a dog")


def test_a_call_needs_something():
    with pytest.raises(ValueError, match="`videos`, `text` or both"):
        make_processor()()
