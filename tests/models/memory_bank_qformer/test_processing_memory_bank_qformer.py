"""MemoryBankQFormerProcessor: placeholders, prompts and answers, what the Q-Former reads, saving."""

import logging

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import AutoProcessor, pipeline

from hf_video import MemoryBankQFormerProcessor
from hf_video.processing import VideoClipProcessor
from tests.testing.answering import tiny_pair

from .memory_bank_qformer_testing import tiny_config
from .tokenizers_testing import word_tokenizer

NUM_QUERIES = 4
QUESTION, SHORT_QUESTION = "which digit came first", "which digit"
CHAT_TEMPLATE = "{% for message in messages %}<{{ message['role'] }}> {{ message['content'] }} {% endfor %}"


def make_processor(**options):
    sizes = {"size": {"shortest_edge": 16}, "crop_size": {"height": 16, "width": 16}}
    settings = {
        "tokenizer": word_tokenizer(),
        "qformer_tokenizer": word_tokenizer(bos=None),
        "num_query_tokens": NUM_QUERIES,
        **options,
    }
    return MemoryBankQFormerProcessor(VideoClipProcessor(num_frames=3, frame_sampling_rate=1, **sizes), **settings)


@pytest.fixture
def videos():
    return np.random.default_rng(0).integers(0, 256, (2, 5, 20, 24, 3), dtype=np.uint8)


def words_of(tokenizer, ids):
    return tokenizer.convert_ids_to_tokens([int(token) for token in ids])


def test_a_prompt_follows_the_placeholders_and_padding_comes_first(videos):
    processor = make_processor()
    inputs = processor(videos, [QUESTION, SHORT_QUESTION], return_tensors="pt")
    assert inputs["pixel_values"].shape == (2, 3, 3, 16, 16)
    placeholders = ["<video>"] * NUM_QUERIES
    first, second = (words_of(processor.tokenizer, ids) for ids in inputs["input_ids"])
    assert first == [*placeholders, "<s>", "which", "digit", "came", "first"]
    assert second == ["<pad>", "<pad>", *placeholders, "<s>", "which", "digit"]
    assert inputs["attention_mask"].tolist() == [[1] * 9, [0] * 2 + [1] * 7]
    read = [words_of(processor.qformer_tokenizer, ids) for ids in inputs["qformer_input_ids"]]
    assert read == [["which", "digit", "came", "first", "</s>"], ["which", "digit", "</s>", "<pad>", "<pad>"]]
    assert inputs["qformer_attention_mask"].tolist() == [[1] * 5, [1] * 3 + [0] * 2]
    assert set(inputs) == set(processor.model_input_names)


def test_only_the_answer_and_its_end_are_labels_and_padding_comes_last(videos):
    processor = make_processor()
    inputs = processor(videos, [QUESTION, SHORT_QUESTION], text_target=["one", "two three"], return_tensors="pt")
    sequences = [words_of(processor.tokenizer, ids) for ids in inputs["input_ids"]]
    assert sequences[0][NUM_QUERIES:] == ["<s>", "which", "digit", "came", "first", "one", "</s>"]
    assert sequences[1][NUM_QUERIES:] == ["<s>", "which", "digit", "two", "three", "</s>", "<pad>"]
    for ids, labels, answer in zip(inputs["input_ids"], inputs["labels"], (["one"], ["two", "three"]), strict=True):
        assert words_of(processor.tokenizer, labels[labels != -100]) == [*answer, "</s>"]
        assert (labels[labels != -100] == ids[labels != -100]).all()
    assert inputs["attention_mask"][1].tolist() == [1] * 10 + [0]
    cut = processor(videos, QUESTION, text_target="one two three", max_target_length=2)
    assert words_of(processor.tokenizer, cut["labels"][0][-2:]) == ["one", "two"]


def test_an_encoder_decoder_has_its_labels_apart(videos):
    processor = make_processor(tokenizer=word_tokenizer(bos=None), is_encoder_decoder=True)
    inputs = processor(videos, QUESTION, text_target=["one", "two three"], return_tensors="pt")
    words = words_of(processor.tokenizer, inputs["input_ids"][0])
    assert words == ["<video>"] * NUM_QUERIES + ["which", "digit", "came", "first", "</s>"]
    one, two, three, end = processor.tokenizer.convert_tokens_to_ids(["one", "two", "three", "</s>"])
    assert inputs["labels"].tolist() == [[one, end, -100], [two, three, end]]


def test_the_video_stands_where_its_token_does(videos):
    processor = make_processor()
    inputs = processor(videos[:1], "in <video> which digit", return_tensors="pt")
    words = words_of(processor.tokenizer, inputs["input_ids"][0])
    assert words == ["<s>", "in", *["<video>"] * NUM_QUERIES, "which", "digit"]
    assert words_of(processor.qformer_tokenizer, inputs["qformer_input_ids"][0]) == ["in", "which", "digit", "</s>"]


def test_long_texts_lose_their_beginning(videos):
    processor = make_processor()
    inputs = processor(videos[:1], QUESTION, max_length=3)
    assert words_of(processor.tokenizer, inputs["input_ids"][0][NUM_QUERIES:]) == ["<s>", "came", "first"]
    assert words_of(processor.qformer_tokenizer, inputs["qformer_input_ids"][0]) == ["came", "first", "</s>"]


def test_texts_alone_are_prepared_for_a_memory(videos):
    processor = make_processor()
    alone, together = processor(text=QUESTION), processor(videos[:1], QUESTION)
    assert "pixel_values" not in alone
    assert all(alone[name] == together[name] for name in alone)
    other = processor(text=QUESTION, qformer_text="zero")
    assert words_of(processor.qformer_tokenizer, other["qformer_input_ids"][0]) == ["zero", "</s>"]
    assert other["input_ids"] == alone["input_ids"]
    assert len(processor(qformer_text=["zero", "one two"])["qformer_input_ids"]) == 2


def test_without_tokenizers_there_is_less(videos):
    assert set(make_processor(qformer_tokenizer=None)(videos[:1], QUESTION)) == {
        "pixel_values",
        "input_ids",
        "attention_mask",
    }
    classifier = make_processor(tokenizer=None)(videos[:1], QUESTION)
    assert set(classifier) == {"pixel_values", "qformer_input_ids", "qformer_attention_mask"}


@pytest.mark.parametrize("missing", [(), ("qformer_tokenizer",), ("tokenizer",)])
def test_what_is_saved_is_loaded(missing, videos, tmp_path, caplog):
    processor = make_processor(**dict.fromkeys(missing))
    processor.save_pretrained(tmp_path)
    tiny_config(video_token_id=processor.video_token_id).save_pretrained(tmp_path)
    assert (tmp_path / "qformer_tokenizer").is_dir() is ("qformer_tokenizer" not in missing)
    with caplog.at_level(logging.WARNING):
        loaded = AutoProcessor.from_pretrained(tmp_path)
    assert not caplog.records
    assert type(loaded) is MemoryBankQFormerProcessor and loaded.num_query_tokens == NUM_QUERIES
    assert all(getattr(loaded, name) is None for name in missing)
    expected, found = (each(videos, [QUESTION, SHORT_QUESTION], return_tensors="pt") for each in (processor, loaded))
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[name], found[name]) for name in expected)


def test_the_chat_template_of_the_language_model_is_used(videos, tmp_path):
    tokenizer = word_tokenizer()
    tokenizer.chat_template = CHAT_TEMPLATE
    processor = make_processor(tokenizer=tokenizer)
    content = [{"type": "video", "video": videos[0]}, {"type": "text", "text": " which digit"}]
    conversation = [{"role": "user", "content": content}]
    assert processor.apply_chat_template(conversation) == "<user> <video> which digit "
    plain = [{"role": "user", "content": "which digit"}]
    assert processor.apply_chat_template(plain) == "<user> which digit "
    inputs = processor.apply_chat_template(conversation, tokenize=True, return_dict=True, return_tensors="pt")
    assert inputs["pixel_values"].shape == (1, 3, 3, 16, 16)
    assert (inputs["input_ids"] == processor.video_token_id).sum() == NUM_QUERIES
    processor.save_pretrained(tmp_path)
    assert MemoryBankQFormerProcessor.from_pretrained(tmp_path).apply_chat_template(plain) == "<user> which digit "


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "Pass `videos`, `text` or `qformer_text`"),
        ({"text": [QUESTION] * 3, "with_videos": True}, "`text` has 3 texts, but 2 are expected"),
        ({"text": ["one <video> two <video>"]}, "once, or not at all"),
        ({"text": "<video> which digit came first", "max_length": 3}, "must leave room"),
    ],
)
def test_wrong_inputs_are_named(arguments, message, videos):
    arguments = dict(arguments)
    given = videos if arguments.pop("with_videos", False) else None
    with pytest.raises(ValueError, match=message):
        make_processor()(given, **arguments)


def test_images_are_videos_of_one_frame(videos):
    processor = make_processor()
    images = list(videos[:, 0])
    expected = processor(videos[:, :1], QUESTION, num_frames=1, return_tensors="pt")
    for given in (images, [[image] for image in images], [Image.fromarray(image) for image in images]):
        inputs = processor(images=given, text=QUESTION, return_tensors="pt")
        assert inputs["pixel_values"].shape == (2, 1, 3, 16, 16)
        assert all(torch.equal(inputs[name], expected[name]) for name in expected)


def test_the_pipeline_of_images_and_texts_answers(videos):
    model, processor = tiny_pair()
    processor.tokenizer.chat_template = CHAT_TEMPLATE
    processor = MemoryBankQFormerProcessor(
        processor.video_processor, processor.tokenizer, processor.qformer_tokenizer, NUM_QUERIES
    )
    answering = pipeline("image-text-to-text", model=model, processor=processor)
    image = Image.fromarray(videos[0, 0])
    options = {"max_new_tokens": 3, "return_full_text": False}
    inputs = processor(images=image, text=SHORT_QUESTION, return_tensors="pt")
    ids = model.generate(**inputs, max_new_tokens=3)
    expected = processor.batch_decode(ids, skip_special_tokens=True)[0]
    assert expected and answering(image, SHORT_QUESTION, **options)[0]["generated_text"] == expected
    content = [{"type": "image", "image": image}, {"type": "text", "text": SHORT_QUESTION}]
    chat = answering(text=[{"role": "user", "content": content}], **options)
    assert isinstance(chat[0]["generated_text"], str)
