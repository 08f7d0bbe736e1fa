"""Questions and captions of videos: files, cleaning, clips with texts, batches."""

import json

import pytest
import torch
from transformers.image_utils import PILImageResampling

from conversion.helpers.memory_bank_qformer import make_video_processor
from hf_video.data import ClipAugmentation, TextTask, VideoDataset
from hf_video.data.video_texts import (
    clean_answer,
    clean_question,
    load_video_texts,
)
from tests.testing.answering import tiny_pair
from tests.testing.videos import cut_file, encode_video, make_frames


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("texts")
    for name in ("a", "b"):
        encode_video(folder / f"{name}.mp4", make_frames(30))
    rows = [
        {"video": "a.mp4", "question": "Which digit came first?", "answer": "One."},
        {"video": "b.mp4", "question": "Which digit?", "answer": "two; three", "start": 0.2, "end": 0.8},
    ]
    (folder / "train.json").write_text(json.dumps(rows))
    (folder / "val.jsonl").write_text("\n".join(json.dumps(row) for row in rows[:1]))
    (folder / "test.csv").write_text("video,caption,start,end\na.mp4,One is shown,,\nb.mp4,two,0.1,0.5\n")
    return folder


@pytest.fixture(scope="module")
def processor():
    return tiny_pair()[1]


def test_every_format_is_read(folder):
    data = load_video_texts(folder)
    assert {split: len(rows) for split, rows in data.items()} == {"train": 2, "validation": 1, "test": 2}
    assert data["train"][1] == {
        "video": str(folder / "b.mp4"),
        "question": "Which digit?",
        "answer": "two; three",
        "start": 0.2,
        "end": 0.8,
    }
    assert data["test"][0] == {
        "video": str(folder / "a.mp4"),
        "question": "",
        "answer": "One is shown",
        "start": None,
        "end": None,
    }
    assert load_video_texts(folder / "train.json")["train"][:] == data["train"][:]


@pytest.mark.parametrize(
    ("name", "content", "error", "message"),
    [
        ("rows.json", '[{"video": "a.mp4"}]', ValueError, "'answer' or 'caption' is missing"),
        ("rows.json", '[{"video": "rows.json", "caption": [""]}]', ValueError, "entry 1"),
        ("rows.json", '[{"video": "rows.json", "answer": "one", "question": 1e999}]', ValueError, "question is inf"),
        ("rows.txt", "a.mp4 one", ValueError, "rows.txt"),
        ("rows.csv", "video,answer\nnone.mp4,one\n", FileNotFoundError, "none.mp4"),
        ("rows.json", '[{"video": "rows.json", "answer": ["one", "two"]}]', ValueError, "entry 1: answer"),
    ],
)
def test_wrong_files_are_named(name, content, error, message, tmp_path):
    (tmp_path / name).write_text(content)
    with pytest.raises(error, match=message):
        load_video_texts(tmp_path / name)


def test_answers_of_any_word_and_videos_of_any_address(tmp_path):
    (tmp_path / "rows.csv").write_text(
        "Video;Question;Answer\nhttps://example.com/a.mp4;who;None\ns3://b/c.mp4;;null\n"
    )
    rows = load_video_texts(tmp_path / "rows.csv")["train"]
    assert rows["video"][:] == ["https://example.com/a.mp4", "s3://b/c.mp4"]
    assert rows["answer"][:] == ["None", "null"] and rows["question"][:] == ["who", ""]


def test_texts_are_cleaned_as_the_original_does():
    text = 'A man (left): "Hi!"; #2 ~ * done.  '
    assert clean_question(text) == "a man left hi 2 done"
    assert clean_answer("one.two  THREE!") == "one two three"
    assert clean_question("one.two") == "onetwo"
    assert clean_answer(" ".join(["word"] * 60)).split() == ["word"] * 50


def test_items_are_clips_with_prompt_and_answer(folder, processor):
    data = load_video_texts(folder)
    dataset = VideoDataset(data["train"], TextTask(processor, prompt="in the video {}"), training=False)
    assert dataset[0]["text"] == "in the video which digit came first?"
    assert [item["text_target"] for item in (dataset[0], dataset[1])] == ["one", "two three"]
    captions = VideoDataset(data["test"], TextTask(processor, prompt="what is shown"), training=True, seed=3)
    assert captions[0]["text"] == "what is shown"
    assert captions[0]["pixel_values"].shape == (1, 4, 3, 14, 14)


def test_batches_are_those_of_the_processor(folder, processor):
    dataset = VideoDataset(load_video_texts(folder)["train"], TextTask(processor, prompt="{}"), training=False)
    items = [dataset[0], None, dataset[1]]
    batch = TextTask(processor, prompt="{}", max_length=4, max_target_length=2).collate(items)
    texts = [item["text"] for item in (items[0], items[2])]
    expected = processor(
        text=texts, text_target=["one", "two three"], max_length=4, max_target_length=2, return_tensors="pt"
    )
    assert batch["pixel_values"].shape == (2, 4, 3, 14, 14)
    assert set(batch) == {"pixel_values", *expected}
    assert all(torch.equal(batch[name], expected[name]) for name in expected)
    assert "labels" not in dataset.task.collate(items, with_targets=False)


def test_another_video_comes_with_its_own_text(folder, processor, tmp_path):
    broken = cut_file(folder / "a.mp4", 0.3)
    rows = [{"video": broken, "answer": "zero"}, {"video": str(folder / "b.mp4"), "answer": "nine"}]
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    data = load_video_texts(tmp_path / "rows.json")["train"]
    replacing = VideoDataset(data, TextTask(processor, prompt="what is shown"), training=True, on_error="replace")
    assert replacing[0]["text_target"] == "nine"
    assert VideoDataset(data, TextTask(processor, prompt="what is shown"), training=False, on_error="skip")[0] is None


def test_prompts_and_questions_must_fit(folder, processor):
    data = load_video_texts(folder)
    with pytest.raises(ValueError, match="has no place {} for them"):
        VideoDataset(data["train"], TextTask(processor, prompt="what is shown"), training=False)
    with pytest.raises(ValueError, match="place for questions"):
        VideoDataset(data["test"], TextTask(processor, prompt="{}"), training=False)


def test_training_crops_of_a_processor_that_squeezes_are_bicubic(folder):
    """The processor of a converted MA-LMM has no centre crop, and a bicubic filter."""
    model, processor = tiny_pair()
    video = processor.video_processor = make_video_processor(14, 4)
    data = load_video_texts(folder / "train.json")["train"]
    augmentation = ClipAugmentation(crop_min_area=0.5)
    items = {}
    for resample in (PILImageResampling.BICUBIC, PILImageResampling.BILINEAR):
        video.resample = resample
        items[resample] = VideoDataset(
            data, TextTask(processor, prompt="{}", augmentation=augmentation), training=True
        )[0]
        assert items[resample]["pixel_values"].shape[-2:] == (14, 14)
    first, second = (item["pixel_values"] for item in items.values())
    assert not torch.equal(first, second) and torch.allclose(first, second, atol=1.0)
