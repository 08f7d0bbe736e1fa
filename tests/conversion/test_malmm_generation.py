"""Conversion of MA-LMM with its language model, against the original's loss, gradients, answers and ranks."""

import json

import pytest
import torch
from transformers import (
    AutoModel,
    AutoModelForImageTextToText,
    AutoProcessor,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaTokenizer,
)

from conversion import malmm
from conversion.helpers.weight_rules import apply_rules
from hf_video import MemoryBankQFormerForConditionalGeneration, MemoryBankQFormerModel, MemoryBankQFormerProcessor
from tests.models.memory_bank_qformer.tokenizers_testing import word_tokenizer
from tests.testing.goldens import assert_float32_close, assert_gradients_close, load_golden

# Beside those of the golden's configuration, which has those of a tokenizer, too.
LLAMA_SIZES = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
LLAMA_FIELDS = (*LLAMA_SIZES, "max_position_embeddings", "rms_norm_eps", "bos_token_id", "eos_token_id")


@pytest.fixture(scope="module")
def golden():
    return load_golden("memory_bank_qformer", "full_model")


def write_llama(folder, golden, **changes):
    """The golden's language model as a folder of Transformers."""
    original = golden.config["llm_config"]
    settings = {name: original[name] for name in LLAMA_FIELDS} | {"pad_token_id": original["tokenizer_pad_id"]}
    llama = LlamaForCausalLM(LlamaConfig(**settings | changes))
    if not changes:
        weights = torch.load(golden.folder / "frozen_weights.pth", weights_only=True)["model"]
        prefix = "llm_model."
        llama.load_state_dict({k.removeprefix(prefix): v for k, v in weights.items() if k.startswith(prefix)})
    llama.save_pretrained(folder)
    return folder


def convert(golden, folder, *options):
    (folder / "original.json").write_text(json.dumps(golden.config))
    frozen = ("--frozen-weights", str(golden.folder / "frozen_weights.pth"))
    paths = (str(golden.folder / "checkpoint.pth"), str(folder / "model"))
    malmm.main([*paths, "--original-config", str(folder / "original.json"), *frozen, *options])
    return folder / "model"


@pytest.fixture(scope="module")
def converted(golden, tmp_path_factory):
    folder = tmp_path_factory.mktemp("malmm")
    return convert(golden, folder, "--llm", str(write_llama(folder / "llama", golden)))


@pytest.fixture(scope="module")
def model(converted):
    model = AutoModelForImageTextToText.from_pretrained(converted)
    assert type(model) is MemoryBankQFormerForConditionalGeneration
    return model


def with_places(model, text, mask, number):
    """The places of the video before a text of the original, which has none."""
    ones = torch.ones(len(text), number, dtype=torch.long)
    ids = torch.cat([ones * model.config.video_token_id, text], dim=1)
    return {"input_ids": ids, "attention_mask": torch.cat([ones, mask], dim=1)}


def read_inputs(golden, prefix=""):
    """Frames and the Q-Former's text."""
    names = ("qformer_input_ids", "qformer_attention_mask")
    pixel_values = golden.inputs["pixel_values"].transpose(1, 2)
    return {"pixel_values": pixel_values, **{name: golden.inputs[prefix + name] for name in names}}


def test_loss_and_gradients_equal_the_original(golden, model):
    expected = golden.expected
    num_queries = model.config.num_query_tokens
    mask = expected["llm_attention_mask"]
    text = with_places(model, expected["llm_input_ids"], mask[:, num_queries:], num_queries)
    outputs = model(**read_inputs(golden), **text, labels=expected["llm_labels"])
    is_token = mask.bool()
    assert_float32_close(outputs.video_embeds, expected["inputs_llm"])
    assert_float32_close(outputs.logits[is_token], expected["train_logits"][is_token])
    assert_float32_close(outputs.loss, expected["loss"])
    model.zero_grad()
    outputs.loss.backward()
    base = model.memory_bank_qformer
    gradients = {name: parameter.grad for name, parameter in base.named_parameters() if parameter.grad is not None}
    of_original = apply_rules(golden.expected_under("lm_grad."), malmm.RULES)
    assert_gradients_close({name: gradients[name] for name in of_original}, of_original)


@pytest.mark.parametrize(("case", "penalty"), [("greedy", 1.0), ("greedy_rp", 1.5)])
def test_answers_equal_the_original(golden, model, case, penalty):
    answers = model.generate(
        **read_inputs(golden, "gen_"),
        **with_places(
            model, golden.inputs["gen_prompt_ids"], golden.inputs["gen_prompt_mask"], model.config.num_query_tokens
        ),
        num_beams=1,
        repetition_penalty=penalty,
        # The original counts a first token that is no part of the answer.
        max_new_tokens=golden.expected[f"{case}.ids"].shape[1] - 1 if case == "greedy" else 11,
    )
    end = golden.config["llm_config"]["eos_token_id"]
    # What follows the end is padding, for which the original writes the end again.
    has_ended = (answers == end).cumsum(1) > 0
    assert torch.equal(answers.masked_fill(has_ended, end), golden.expected[f"{case}.ids"][:, 1:])


def candidates(golden):
    lists = golden.config["candidates"]
    ids = torch.zeros(len(lists), max(map(len, lists)), dtype=torch.long)
    mask = torch.zeros_like(ids)
    for i, tokens in enumerate(lists):
        ids[i, : len(tokens)], mask[i, : len(tokens)] = torch.tensor(tokens), 1
    return ids, mask


@pytest.mark.parametrize("candidates_per_pass", [16, 3])
@pytest.mark.parametrize("frames", ["pixel_values", "vision_embeds"])
def test_candidate_losses_and_ranks_equal_the_original(golden, model, frames, candidates_per_pass):
    ids, mask = candidates(golden)
    inputs = read_inputs(golden)
    # This protocol reads the queries of all frames.
    num_places = model.config.num_query_tokens * inputs["pixel_values"].shape[1]
    text = with_places(model, golden.inputs["llm_prompt_ids"], golden.inputs["llm_prompt_mask"], num_places)
    if frames == "vision_embeds":
        with torch.no_grad():
            inputs[frames] = model.memory_bank_qformer.get_vision_embeds(inputs.pop("pixel_values"))
    outputs = model.rank_candidates(
        ids,
        mask,
        **text,
        candidates_per_pass=candidates_per_pass,
        original_protocol=True,
        **inputs,
    )
    assert_float32_close(outputs.losses, golden.expected["predict_class.losses"])
    assert torch.equal(outputs.ranks, golden.expected["predict_class.ranks"])


def test_the_folder_is_complete(converted):
    model = MemoryBankQFormerForConditionalGeneration.from_pretrained(converted)
    settings = model.generation_config
    assert (settings.num_beams, settings.repetition_penalty, settings.eos_token_id) == (5, 1.5, 2)
    assert str(converted.parent) not in (converted / "config.json").read_text()
    # The part before the language model is a model, too.
    base = AutoModel.from_pretrained(converted)
    assert type(base) is MemoryBankQFormerModel
    for name, tensor in base.state_dict().items():
        assert torch.equal(tensor, model.memory_bank_qformer.state_dict()[name])


def test_another_language_model_begins_the_projection_anew(golden, converted, tmp_path):
    llama = write_llama(tmp_path / "llama", golden, hidden_size=32)
    with pytest.warns(UserWarning, match="its projection begins anew"):
        folder = convert(golden, tmp_path, "--llm", str(llama))
    model, original = (AutoModelForImageTextToText.from_pretrained(each) for each in (folder, converted))
    projection = model.memory_bank_qformer.language_projection
    trained = original.memory_bank_qformer.language_projection
    assert projection.out_features == model.config.text_config.hidden_size == model.config.projection_dim
    assert not torch.equal(projection.weight[:24], trained.weight) and not projection.bias.any()
    assert 0.01 < projection.weight.std() < 0.03
    assert torch.equal(model.memory_bank_qformer.query_tokens, original.memory_bank_qformer.query_tokens)


def test_texts_are_prepared_as_by_the_original(golden, tmp_path):
    """After the video, prompts begin with the end-of-text token; padding has an id of its own, and an embedding."""
    llama = write_llama(tmp_path / "llama", golden)
    words = ["a", "b", "c"]
    pieces = ["<unk>", "<s>", "</s>", "▁", *words, *(f"▁{word}" for word in words)]
    vocabulary = {piece: i for i, piece in enumerate([*pieces, *(f"<{i}>" for i in range(len(pieces), 67))])}
    merges = [("▁", word) for word in words]
    LlamaTokenizer(vocab=vocabulary, merges=merges, add_bos_token=True).save_pretrained(llama)
    word_tokenizer(None, "[SEP]", words).save_pretrained(tmp_path / "bert")
    folder = convert(golden, tmp_path, "--llm", str(llama), "--qformer-tokenizer", str(tmp_path / "bert"))
    processor = AutoProcessor.from_pretrained(folder)
    model = AutoModelForImageTextToText.from_pretrained(folder)
    assert type(processor) is MemoryBankQFormerProcessor and processor.video_token_id == 68
    video = torch.randint(0, 256, (9, 3, 30, 30), dtype=torch.uint8)
    inputs = processor([video, video], ["a b c", "b"], return_tensors="pt")
    places = [68] * model.config.num_query_tokens
    assert inputs["input_ids"].tolist() == [[*places, 2, 7, 8, 9], [67, 67, *places, 2, 8]]
    assert inputs["attention_mask"][1].tolist() == [0, 0, *[1] * (len(places) + 2)]
    assert inputs["pixel_values"].shape == (2, 7, 3, 21, 21)
    assert model.get_input_embeddings().num_embeddings == 68 == model.config.text_config.vocab_size
    assert model.generation_config.pad_token_id == 67
    assert model.generate(**inputs, max_new_tokens=3).shape[0] == 2


def test_what_does_not_fit_is_refused(golden, tmp_path, capsys):
    for options, message in (
        (("--qformer-tokenizer", "a"), "pass `--llm`"),
        (("--llm", str(tmp_path)), "Should have a `model_type` key in its config.json"),
    ):
        with pytest.raises(SystemExit):
            convert(golden, tmp_path, *options)
        assert message in capsys.readouterr().err
        assert not (tmp_path / "model").exists()
