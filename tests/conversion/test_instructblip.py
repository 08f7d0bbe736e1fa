"""Conversion of InstructBLIP, InstructBlipVideo and BLIP-2, against the originals on one image."""

from typing import NamedTuple

import pytest
import torch
from transformers import (
    AutoModelForImageTextToText,
    AutoProcessor,
    AutoVideoProcessor,
    Blip2Config,
    Blip2ForConditionalGeneration,
    BlipImageProcessor,
    InstructBlipConfig,
    InstructBlipForConditionalGeneration,
    InstructBlipVideoConfig,
    InstructBlipVideoForConditionalGeneration,
    LlamaConfig,
    LlamaForCausalLM,
)

from conversion import instructblip
from hf_video import MemoryBankQFormerForConditionalGeneration, MemoryBankQFormerProcessor
from tests.models.memory_bank_qformer.tokenizers_testing import word_tokenizer

ORIGINALS = {
    "instructblip": (InstructBlipConfig, InstructBlipForConditionalGeneration, "image_token_index"),
    "instructblipvideo": (
        InstructBlipVideoConfig,
        InstructBlipVideoForConditionalGeneration,
        "video_token_index",
    ),
    "blip-2": (Blip2Config, Blip2ForConditionalGeneration, "image_token_index"),
}
SIZES = {"num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 48}
VISION = {**SIZES, "hidden_size": 40, "image_size": 14, "patch_size": 7}
QFORMER = {**SIZES, "vocab_size": 61, "hidden_size": 32, "max_position_embeddings": 24}
TOKENS = {"vocab_size": 70, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
LANGUAGE_MODELS = {
    "llama": {**SIZES, **TOKENS, "hidden_size": 24, "max_position_embeddings": 64},
    "opt": {
        **TOKENS,
        "hidden_size": 24,
        "word_embed_proj_dim": 24,
        "ffn_dim": 48,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "max_position_embeddings": 64,
    },
    "t5": {
        **TOKENS,
        "bos_token_id": None,
        "decoder_start_token_id": 0,
        "d_model": 24,
        "d_kv": 6,
        "d_ff": 48,
        "num_layers": 3,
        "num_heads": 4,
    },
}
PLACE, NUM_QUERIES = 69, 4


def make_original(kind, language_model):
    """With weights larger than initial ones, so that all of them show in the output."""
    config_class, model_class, token_field = ORIGINALS[kind]
    torch.manual_seed(0)
    config = config_class(
        vision_config=dict(VISION),
        qformer_config=dict(QFORMER),
        text_config={"model_type": language_model, **LANGUAGE_MODELS[language_model]},
        num_query_tokens=NUM_QUERIES,
        **{token_field: PLACE},
    )
    model = model_class(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.3 + (1 if "norm" in name.lower() else 0))
    return model


class Converted(NamedTuple):
    """An original and what it was converted to, with inputs that both take beside frames."""

    original: torch.nn.Module
    model: MemoryBankQFormerForConditionalGeneration
    inputs: dict
    labels: torch.Tensor


@pytest.fixture(
    scope="module",
    params=[("instructblip", "t5"), ("instructblipvideo", "llama"), ("blip-2", "opt")],
    ids=lambda param: "-".join(param),
)
def converted(request, tmp_path_factory):
    kind, language_model = request.param
    folder = tmp_path_factory.mktemp("instructblip")
    original = make_original(kind, language_model)
    # Tensors of one part lie in several files.
    original.save_pretrained(folder / "original", max_shard_size="40KB")
    instructblip.main([str(folder / "original"), str(folder / "model"), "--set", "memory_bank_length=3"])
    model = AutoModelForImageTextToText.from_pretrained(folder / "model")
    ids = torch.randint(3, 60, (2, 11), generator=torch.Generator().manual_seed(1))
    mask = (torch.arange(11) >= torch.tensor([[0], [2]])).long()
    # Padding, the place of the image, the prompt.
    first = NUM_QUERIES - mask.sum(1, keepdim=True) + 11
    ids = ids.masked_fill((torch.arange(11) < first) & mask.bool(), PLACE) * mask
    inputs = {"input_ids": ids, "attention_mask": mask}
    if kind != "blip-2":
        inputs["qformer_input_ids"] = torch.arange(1, 11).view(2, 5)
        inputs["qformer_attention_mask"] = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
    labels = ids.masked_fill(torch.arange(11) < 8, -100)
    return Converted(original, model, inputs, labels[:, -4:].contiguous() if language_model == "t5" else labels)


def frames_and_image(converted):
    image = torch.randn(2, 3, 14, 14, generator=torch.Generator().manual_seed(2))
    is_video = type(converted.original) is InstructBlipVideoForConditionalGeneration
    return image[:, None], image[:, None] if is_video else image


@torch.no_grad()
def test_one_frame_gives_the_logits_and_the_loss_of_the_original(converted):
    assert type(converted.model) is MemoryBankQFormerForConditionalGeneration
    frames, image = frames_and_image(converted)
    expected = converted.original(image, labels=converted.labels, **converted.inputs)
    outputs = converted.model(frames, labels=converted.labels, **converted.inputs)
    is_token = converted.inputs["attention_mask"].bool()
    if outputs.logits.shape[1] != is_token.shape[1]:
        is_token = torch.ones(outputs.logits.shape[:2], dtype=torch.bool)
    assert expected.logits.std() > 0.1
    torch.testing.assert_close(outputs.logits[is_token], expected.logits[is_token], atol=1e-5, rtol=0)
    torch.testing.assert_close(outputs.loss, expected.loss, atol=1e-5, rtol=0)


def test_one_frame_gives_the_answer_of_the_original(converted):
    frames, image = frames_and_image(converted)
    expected = converted.original.generate(image, max_new_tokens=8, do_sample=False, **converted.inputs)
    if not converted.original.language_model.config.is_encoder_decoder:
        # Transformers repeats the prompt.
        expected = expected[:, converted.inputs["input_ids"].shape[1] :]
    answers = converted.model.generate(frames, max_new_tokens=8, do_sample=False, **converted.inputs)
    assert torch.equal(answers, expected)


def test_images_are_prepared_as_by_the_original(tmp_path):
    folder = tmp_path / "original"
    original = make_original("instructblip", "llama")
    original.save_pretrained(folder)
    mean = [0.1, 0.2, 0.3]
    BlipImageProcessor(size={"height": 14, "width": 14}, image_mean=mean).save_pretrained(folder)
    tokenizer = word_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": [f"<{i}>" for i in range(len(tokenizer), PLACE)]})
    tokenizer.add_special_tokens({"extra_special_tokens": ["<image>"]}, replace_extra_special_tokens=False)
    tokenizer.save_pretrained(folder)
    word_tokenizer(None, "[SEP]").save_pretrained(folder / "qformer_tokenizer")
    instructblip.main([str(folder), str(tmp_path / "model"), "--num-frames", "5"])
    processor = AutoProcessor.from_pretrained(tmp_path / "model")
    assert type(processor) is MemoryBankQFormerProcessor
    assert processor.video_token_id == PLACE and processor.video_token == "<image>"
    video = torch.randint(0, 256, (9, 3, 30, 30), dtype=torch.uint8)
    inputs = processor(video, "which digit came first", return_tensors="pt")
    assert inputs["pixel_values"].shape == (1, 5, 3, 14, 14)
    assert inputs["input_ids"][0].tolist().count(PLACE) == NUM_QUERIES
    assert list(processor.video_processor.image_mean) == mean
    model = AutoModelForImageTextToText.from_pretrained(tmp_path / "model")
    assert model.config.memory_bank_length == 20 and model.config.video_token_id == PLACE
    assert model.generate(**inputs, min_new_tokens=3, max_new_tokens=3).shape == (1, 3)


def test_another_language_model_begins_the_projection_anew(tmp_path):
    original = make_original("blip-2", "opt")
    original.save_pretrained(tmp_path / "original")
    llama = LlamaForCausalLM(LlamaConfig(**LANGUAGE_MODELS["llama"]))
    llama.save_pretrained(tmp_path / "llama")
    with pytest.warns(UserWarning, match="its projection begins anew"):
        instructblip.main([str(tmp_path / "original"), str(tmp_path / "model"), "--llm", str(tmp_path / "llama")])
    model = AutoModelForImageTextToText.from_pretrained(tmp_path / "model")
    assert not torch.equal(model.memory_bank_qformer.language_projection.weight, original.language_projection.weight)
    assert model.config.video_token_id == LANGUAGE_MODELS["llama"]["vocab_size"]
    for name, tensor in llama.state_dict().items():
        assert torch.equal(tensor, model.language_model.state_dict()[name])
    assert AutoVideoProcessor.from_pretrained(tmp_path / "model").num_frames == 20


def with_tokenizer(folder, number):
    """A folder of InstructBLIP whose language model has a tokenizer of so many tokens."""
    make_original("instructblip", "opt").save_pretrained(folder)
    tokenizer = word_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": [f"<{i}>" for i in range(len(tokenizer), number)]})
    tokenizer.save_pretrained(folder)


def test_a_question_that_nobody_reads_is_warned_of(tmp_path):
    with_tokenizer(tmp_path / "original", PLACE + 1)
    with pytest.warns(UserWarning, match="will read videos alone"):
        instructblip.main([str(tmp_path / "original"), str(tmp_path / "model")])
    assert AutoProcessor.from_pretrained(tmp_path / "model").qformer_tokenizer is None


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (lambda folder: LlamaConfig().save_pretrained(folder), "got 'llama'"),
        (lambda folder: write_without_a_weight(folder), "lacks weights of MemoryBankQFormerModel (query_tokens)"),
    ],
)
def test_what_does_not_fit_is_refused_and_nothing_written(tmp_path, refused, prepare, message):
    (tmp_path / "original").mkdir()
    prepare(tmp_path / "original")
    assert message in refused(instructblip.main, tmp_path / "original")


def write_without_a_weight(folder):
    model = make_original("instructblip", "llama")
    state = {name: tensor for name, tensor in model.state_dict().items() if name != "query_tokens"}
    model.save_pretrained(folder, state_dict=state)
