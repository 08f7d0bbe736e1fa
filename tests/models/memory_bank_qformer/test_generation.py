"""MemoryBankQFormerForConditionalGeneration: what the language model reads of a video, loss, answers and ranks."""

import pytest
import torch
from torch.testing import assert_close
from transformers import (
    AutoModelForImageTextToText,
    AutoModelForMultimodalLM,
    GenerationConfig,
)

from hf_video import MemoryBank, MemoryBankQFormerConfig, MemoryBankQFormerForConditionalGeneration

from .memory_bank_qformer_testing import random_frames, random_text, tiny_config, tiny_model

VOCAB_SIZE, PLACE = 70, 69
TOKENS = {"vocab_size": VOCAB_SIZE, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
LLAMA = {
    **TOKENS,
    "model_type": "llama",
    "hidden_size": 24,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}
T5 = {
    **TOKENS,
    "model_type": "t5",
    "bos_token_id": None,
    "decoder_start_token_id": 0,
    "d_model": 24,
    "d_kv": 6,
    "d_ff": 48,
    "num_layers": 2,
    "num_heads": 4,
}
KINDS = {
    "decoder": {"text_config": LLAMA, "video_token_id": PLACE},
    "encoder-decoder": {"text_config": T5, "video_token_id": PLACE},
}
NUM_QUERIES = 4


def make_model(kind="decoder", **settings):
    return tiny_model(MemoryBankQFormerForConditionalGeneration, **KINDS[kind], **settings)


def prompts(lengths=(5, 3), side="left", places=NUM_QUERIES):
    """Random prompts of the given lengths after the places of the video."""
    generator = torch.Generator().manual_seed(3)
    total = places + max(lengths)
    ids, mask = torch.zeros(len(lengths), total, dtype=torch.long), torch.zeros(len(lengths), total, dtype=torch.long)
    for row, length in enumerate(lengths):
        words = torch.randint(3, 60, (length,), generator=generator)
        sequence = torch.cat([torch.full((places,), PLACE), words])
        span = slice(total - len(sequence), None) if side == "left" else slice(len(sequence))
        ids[row, span], mask[row, span] = sequence, 1
    return {"input_ids": ids, "attention_mask": mask}


def video_inputs(**settings):
    return {"vision_embeds": random_frames(**settings), **random_text(settings.get("batch_size", 2))}


@pytest.fixture(scope="module", params=KINDS)
def model(request):
    return make_model(request.param)


@torch.no_grad()
def test_the_language_model_reads_the_queries_and_the_text(model):
    """Compared with the language model itself, which gets its inputs by hand."""
    text = prompts((5, 5))
    labels = torch.randint(3, 60, (2, 6))
    is_decoder = not model.config.text_config.is_encoder_decoder
    labels = text["input_ids"].masked_fill(text["input_ids"] == PLACE, -100) if is_decoder else labels
    outputs = model(**video_inputs(), **text, labels=labels)
    features = model.get_video_features(**video_inputs())
    assert_close(outputs.video_embeds, features.pooler_output)
    words = model.get_input_embeddings()(text["input_ids"][:, -5:])
    given = torch.cat([features.pooler_output, words], dim=1)
    if is_decoder:
        places = labels.new_full((2, NUM_QUERIES), -100)
        labels = torch.cat([places, text["input_ids"][:, -5:]], dim=1)
    expected = model.language_model(inputs_embeds=given, labels=labels)
    assert_close(outputs.logits, expected.logits)
    assert_close(outputs.loss, expected.loss)
    assert outputs.memory.frames_seen.tolist() == [9, 9]


def test_padding_changes_nothing(model):
    """Before the video, between video and text, and after the text."""
    alone = prompts((3,))
    video = {name: tensor[1:] for name, tensor in video_inputs().items()}
    with torch.no_grad():
        for side in ("left", "right"):
            both = prompts((5, 3), side)
            is_word = both["attention_mask"][1].bool()
            alone["input_ids"] = both["input_ids"][1:, is_word]
            labels = {"labels": torch.full((1, 2), 7)} if model.config.text_config.is_encoder_decoder else {}
            pair = {name: tensor.repeat(2, 1) for name, tensor in labels.items()}
            together, single = (
                model(**video_inputs(), **both, **pair).logits[1],
                model(**video, **alone, **labels).logits,
            )
            if not labels:
                together = together[is_word]
            assert_close(together, single[0], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    "options",
    [{"do_sample": False}, {"num_beams": 4, "num_return_sequences": 2, "do_sample": False}],
    ids=["greedy", "beams"],
)
def test_a_batch_of_ragged_videos_is_answered_as_one_by_one(model, options):
    text = prompts()
    inputs = video_inputs()
    has_frame = torch.tensor([[True] * 4 + [False] * 5, [False] * 2 + [True] * 7])
    together = model.generate(**inputs, **text, frame_attention_mask=has_frame, max_new_tokens=6, **options)
    per_video = together.unflatten(0, (2, -1))
    for row in range(2):
        is_word = text["attention_mask"][row].bool()
        alone = model.generate(
            vision_embeds=inputs["vision_embeds"][row : row + 1, has_frame[row]],
            qformer_input_ids=inputs["qformer_input_ids"][row : row + 1],
            qformer_attention_mask=inputs["qformer_attention_mask"][row : row + 1],
            input_ids=text["input_ids"][row : row + 1, is_word],
            max_new_tokens=6,
            **options,
        )
        length = alone.shape[1]
        assert torch.equal(per_video[row, :, :length], alone)
        assert not per_video[row, :, length:].any()


SETTINGS = {
    "penalty": {"repetition_penalty": 1.5},
    "original": {"repetition_penalty": 1.5, "num_beams": 5, "length_penalty": -1.0, "min_new_tokens": 8},
    "pairs": {"no_repeat_ngram_size": 2},
    "min_length": {"min_length": 10},
    "max_length": {"max_length": 9},
    "lengths of beams": {"max_length": 9, "min_length": 5, "num_beams": 3, "early_stopping": "never"},
    "forced end": {"max_length": 6, "forced_eos_token_id": 2},
    "encoder": {"encoder_repetition_penalty": 1.4, "encoder_no_repeat_ngram_size": 2, "repetition_penalty": 1.5},
    "stop": {"repetition_penalty": 1.5, "stopping_criteria": [lambda ids, scores: ids[:, -1] % 5 == 0]},
    "configuration": {"generation_config": GenerationConfig(repetition_penalty=1.5, min_length=3, max_length=7)},
}


@pytest.mark.filterwarnings("ignore:Passing")
@pytest.mark.parametrize(
    ("kind", "name"),
    [
        *(("decoder", name) for name in SETTINGS),
        *(("encoder-decoder", name) for name in ("original", "lengths of beams")),
    ],
)
def test_a_row_of_a_batch_gets_the_tokens_it_gets_alone(kind, name):
    """A setting that counts tokens counts neither padding nor the tokens of other rows."""
    model, settings = make_model(kind), SETTINGS[name]
    text = prompts((2, 9, 1, 5))
    options = {**settings}
    if not {"max_length", "generation_config"} & options.keys():
        options["max_new_tokens"] = 12
    video_embeds = torch.randn(4, NUM_QUERIES, 24, generator=torch.Generator().manual_seed(5))
    together = model.generate(video_embeds=video_embeds, **text, do_sample=False, **options).unflatten(0, (4, -1))
    for row in range(4):
        is_word = text["attention_mask"][row].bool()
        one = {"video_embeds": video_embeds[row : row + 1], "input_ids": text["input_ids"][row : row + 1, is_word]}
        alone = model.generate(**one, do_sample=False, **options)
        assert torch.equal(together[row, :, : alone.shape[1]], alone)
        # Beam search fills up with the end of sequence where the padding is the token 0.
        assert torch.isin(together[row, :, alone.shape[1] :], torch.tensor([0, 2])).all()


def test_a_penalty_is_for_every_generated_token_and_for_no_token_of_the_prompt():
    """Compared with the formula, on the scores of the greedy choice."""
    model, penalty = make_model(), 1.7
    text = prompts((8, 1))
    video = {"video_embeds": torch.randn(2, NUM_QUERIES, 24, generator=torch.Generator().manual_seed(5))}
    options = {"do_sample": False, "max_new_tokens": 6, "min_new_tokens": 6, "return_dict_in_generate": True}
    found = model.generate(
        **video, **text, **options, repetition_penalty=penalty, output_scores=True, output_logits=True
    )
    for step, (scores, logits) in enumerate(zip(found.scores, found.logits, strict=True)):
        for row in range(2):
            expected = logits[row].double()
            for token in set(found.sequences[row, :step].tolist()):
                expected[token] = expected[token] * penalty if expected[token] < 0 else expected[token] / penalty
            expected[2] = -torch.inf
            assert_close(scores[row].double(), expected)


def test_lengths_are_of_generated_tokens_alone():
    """As in MA-LMM, whose language model gets no ids of the prompt."""
    model = make_model()
    for lengths in ((3, 3), (9, 1)):
        for name, least in (("max_length", {"min_new_tokens": 7}), ("max_new_tokens", {"min_length": 7})):
            answers = model.generate(video_embeds=EMBEDS, **prompts(lengths), **{name: 7}, **least)
            assert answers.shape == (2, 7)


def test_samples_follow_the_seed():
    model = make_model()
    inputs, text = video_inputs(), prompts()
    options = {"do_sample": True, "max_new_tokens": 8}
    answers = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        answers.append(model.generate(**inputs, **text, **options))
    assert torch.equal(answers[0], answers[1])
    assert answers[0].shape != answers[2].shape or not torch.equal(answers[0], answers[2])
    greedy = model.generate(**inputs, **text, max_new_tokens=8, do_sample=False)
    assert torch.equal(model.generate(**inputs, **text, **options, top_k=1), greedy)


def test_the_video_is_read_once_for_all_beams_and_questions(model, monkeypatch):
    calls = []
    forward = type(model.memory_bank_qformer.qformer).forward

    def counted(self, query_embeds, *args, **kwargs):
        calls.append(len(query_embeds))
        return forward(self, query_embeds, *args, **kwargs)

    monkeypatch.setattr(type(model.memory_bank_qformer.qformer), "forward", counted)
    inputs, text = video_inputs(), prompts()
    options = {"num_beams": 3, "num_return_sequences": 3, "max_new_tokens": 4, "do_sample": False}
    answers = model.generate(**inputs, **text, **options)
    assert calls == [2] * 9
    video_embeds = model.get_video_features(**inputs).pooler_output
    calls.clear()
    assert torch.equal(model.generate(video_embeds=video_embeds, **text, **options), answers)
    with torch.no_grad():
        again = model(video_embeds=video_embeds, **text, labels=text["input_ids"])
    assert again.memory is None and again.video_embeds is video_embeds
    assert not calls


def test_a_memory_grows_while_questions_are_asked(model):
    """Frames in two calls give the answer of one call, and the memory is the caller's."""
    inputs, text = video_inputs(), prompts()
    frames = inputs.pop("vision_embeds")
    options = {"max_new_tokens": 6, "do_sample": False}
    expected = model.generate(vision_embeds=frames, **inputs, **text, **options)
    memory = MemoryBank(model.config.memory_bank_length)
    early = model.generate(vision_embeds=frames[:, :5], memory=memory, **inputs, **text, **options)
    assert memory.frames_seen.tolist() == [5, 5]
    answers = model.generate(vision_embeds=frames[:, 5:], memory=memory, **inputs, **text, **options)
    assert memory.frames_seen.tolist() == [9, 9]
    assert torch.equal(answers, expected)
    assert torch.equal(early, model.generate(vision_embeds=frames[:, :5], **inputs, **text, **options))


def test_a_memory_is_refused_after_a_call_that_failed_with_its_frames(model):
    """A call that is repeated would count them twice."""
    frames, text = random_frames(), prompts()
    candidates = torch.ones(1, 2, dtype=torch.long)
    other_text = {name: tensor[:1] for name, tensor in text.items()}

    def rank(**kwargs):
        return model.rank_candidates(candidates, **kwargs)

    for call, changes, error in (
        (model.generate, {"max_new_token": 3}, "max_new_token"),
        (model, other_text, r"have \[4\] times"),
        (model.generate, other_text, r"have \[4\] times"),
        (rank, other_text, r"have \[4\] times"),
    ):
        memory = MemoryBank(model.config.memory_bank_length)
        inputs = {"memory": memory, **random_text(), **text}
        model.generate(vision_embeds=frames[:, :4], **inputs, max_new_tokens=1)
        with pytest.raises(ValueError, match=error):
            call(**{"vision_embeds": frames[:, 4:], **inputs, **changes})
        with pytest.raises(ValueError, match="A call stopped after a frame had entered"):
            model.generate(vision_embeds=frames[:, 4:], **inputs)


WINDOW = {**LLAMA, "model_type": "mistral", "num_key_value_heads": 2, "sliding_window": 6}
OPT = {**TOKENS, "model_type": "opt", "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 16}
OPT |= {"hidden_size": 32, "ffn_dim": 48, "word_embed_proj_dim": 24}
BART = {**TOKENS, "model_type": "bart", "d_model": 24, "encoder_layers": 1, "decoder_layers": 1}
BART |= {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48}
BART |= {"decoder_start_token_id": 2, "max_position_embeddings": 24, "is_encoder_decoder": True}
MAMBA = {**TOKENS, "model_type": "mamba", "hidden_size": 24, "state_size": 4, "num_hidden_layers": 2}


@pytest.mark.parametrize(
    ("text_config", "side"),
    [(WINDOW, "left"), (OPT, "right"), (MAMBA, "left"), (T5, "right"), (BART, "left")],
    ids=["window", "counted", "recurrent", "relative", "absolute"],
)
def test_padding_of_prompts_does_not_change_answers(text_config, side):
    """Also if the language model attends to a fixed number of tokens, or counts positions."""
    model = tiny_model(MemoryBankQFormerForConditionalGeneration, text_config=text_config, video_token_id=PLACE)
    texts, video_embeds = prompts((9, 2), side), torch.randn(2, NUM_QUERIES, 24)
    options = {"max_new_tokens": 4, "do_sample": False, "output_logits": True, "return_dict_in_generate": True}
    candidates = torch.tensor([[5, 6], [7, 8]])
    together = model.generate(video_embeds=video_embeds, **texts, **options)
    losses = model.rank_candidates(candidates, video_embeds=video_embeds, **texts).losses
    for row in range(2):
        one = {
            "video_embeds": video_embeds[row : row + 1],
            "input_ids": texts["input_ids"][row : row + 1, texts["attention_mask"][row].bool()],
        }
        alone = model.generate(**one, **options)
        assert_close(together.logits[0][row], alone.logits[0][0], atol=1e-5, rtol=1e-4)
        assert_close(losses[row], model.rank_candidates(candidates, **one).losses[0], atol=1e-4, rtol=1e-4)


def test_embeddings_may_be_narrower_than_the_language_model(tmp_path):
    model = tiny_model(MemoryBankQFormerForConditionalGeneration, text_config=OPT, video_token_id=PLACE)
    assert model.config.projection_dim == model.memory_bank_qformer.language_projection.out_features == 24
    text = prompts((5, 5))
    outputs = model(**video_inputs(), **text)
    words = model.get_input_embeddings()(text["input_ids"][:, NUM_QUERIES:])
    given = torch.cat([outputs.video_embeds, words], dim=1)
    assert_close(outputs.logits, model.language_model(inputs_embeds=given).logits)


def test_padding_is_that_of_the_language_model():
    """`Seq2SeqTrainer` asks the configuration for it, to pad answers without a tokenizer."""
    config = MemoryBankQFormerConfig(text_config={**LLAMA, "pad_token_id": 3})
    assert config.pad_token_id == 3 and "pad_token_id" not in config.to_dict()
    config.pad_token_id = 5
    assert config.text_config.pad_token_id == 5
    assert MemoryBankQFormerConfig().pad_token_id is None


def test_the_protocol_of_the_original_ranks_on_all_frames():
    """It equals a model without visual memory that reads all frames, one video after the other."""
    model, other = make_model(), make_model(visual_memory=False)
    other.load_state_dict(model.state_dict(), strict=False)
    candidates, text = torch.tensor([[5, 6], [7, 8], [9, 2]]), prompts((5, 5), places=5 * NUM_QUERIES)
    text["input_ids"][1, : 2 * NUM_QUERIES] = text["attention_mask"][1, : 2 * NUM_QUERIES] = 0
    inputs = video_inputs(num_frames=5)
    has_frame = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    found = model.rank_candidates(candidates, **inputs, **text, frame_attention_mask=has_frame, original_protocol=True)
    for row in range(2):
        one = {name: tensor[row : row + 1] for name, tensor in {**inputs, **text}.items()}
        one["vision_embeds"] = one["vision_embeds"][:, has_frame[row]]
        one["input_ids"] = one["input_ids"][:, one.pop("attention_mask")[0].bool()]
        read = {name: one.pop(name) for name in inputs}
        with torch.no_grad():
            frames = other.memory_bank_qformer(**read, output_frame_hidden_states=True).frame_hidden_states
            video_embeds = other.memory_bank_qformer.language_projection(frames).flatten(1, 2)
        expected = other.rank_candidates(candidates, video_embeds=video_embeds, **one).losses
        # The longest sequence has 5 frames, prompt and candidate.
        assert_close(found.losses[row] * (5 * NUM_QUERIES + 5 + 2 - 1), expected[0], atol=1e-4, rtol=1e-4)
    assert model.memory_bank_qformer.frame_position_embeddings is not None and model.config.visual_memory


def test_without_a_text_a_text_is_begun(model):
    answers = model.generate(**video_inputs(), max_new_tokens=5, do_sample=False)
    first = [model.config.text_config.bos_token_id] if not model.config.text_config.is_encoder_decoder else []
    start = torch.tensor([[PLACE] * NUM_QUERIES + first] * 2)
    assert torch.equal(answers, model.generate(**video_inputs(), input_ids=start, max_new_tokens=5, do_sample=False))


def test_frames_without_memory_are_all_read():
    """If a video has fewer frames than others, the missing frames have no places."""
    model = make_model(memory_bank_length=0)
    inputs = {"vision_embeds": random_frames(2, 3), **random_text()}
    has_frame = torch.tensor([[True] * 3, [True, False, True]])
    text = prompts((4, 4), places=3 * NUM_QUERIES)
    words, mask = text["input_ids"], text["attention_mask"]
    mask[1, :NUM_QUERIES] = words[1, :NUM_QUERIES] = 0
    with torch.no_grad():
        logits = model(**inputs, **text, frame_attention_mask=has_frame).logits
        alone = model(
            vision_embeds=inputs["vision_embeds"][1:, has_frame[1]],
            qformer_input_ids=inputs["qformer_input_ids"][1:],
            qformer_attention_mask=inputs["qformer_attention_mask"][1:],
            input_ids=words[1:, mask[1].bool()],
        ).logits
    assert_close(logits[1, -4:], alone[0, -4:], atol=1e-5, rtol=1e-4)


def test_a_cache_goes_on():
    model = make_model()
    text = prompts()
    more = torch.randint(3, 60, (2, 3))
    with torch.no_grad():
        first = model(**video_inputs(), **text, use_cache=True)
        mask = torch.cat([text["attention_mask"], torch.ones(2, 3)], dim=1).long()
        rest = model(input_ids=more, attention_mask=mask, cache=first.cache)
        whole = model(
            **video_inputs(),
            input_ids=torch.cat([text["input_ids"], more], dim=1),
            attention_mask=mask,
        )
    assert_close(rest.logits, whole.logits[:, -3:], atol=1e-5, rtol=1e-4)


def test_embedded_text_is_text(model):
    text = prompts()
    embedded = {"inputs_embeds": model.get_input_embeddings()(text["input_ids"]).detach()}
    embedded["attention_mask"] = text["attention_mask"]
    options = {"max_new_tokens": 5, "do_sample": False}
    expected = model.generate(**video_inputs(), **text, **options)
    assert torch.equal(model.generate(**video_inputs(), **embedded, **options), expected)


@pytest.mark.parametrize("side", ["left", "right"])
def test_losses_of_candidates_are_those_of_labels(model, side):
    text = prompts(side=side)
    candidates = torch.tensor([[5, 6, 7], [8, 0, 0], [9, 10, 2], [5, 6, 0]])
    mask = (candidates != 0).long()
    ranking = model.rank_candidates(candidates, mask, **text, **video_inputs(), candidates_per_pass=3)
    assert torch.equal(ranking.ranks, ranking.losses.argsort(1))
    video_embeds = model.get_video_features(**video_inputs()).pooler_output
    is_decoder = not model.config.text_config.is_encoder_decoder
    for row in range(2):
        is_word = text["attention_mask"][row].bool()
        prompt = text["input_ids"][row : row + 1, is_word]
        for number, tokens in enumerate(mask.sum(1).tolist()):
            answer = candidates[number : number + 1, :tokens]
            ids, labels = prompt, answer
            if is_decoder:
                ids = torch.cat([prompt, answer], dim=1)
                labels = torch.cat([torch.full_like(prompt, -100), answer], dim=1)
            with torch.no_grad():
                loss = model(video_embeds=video_embeds[row : row + 1], input_ids=ids, labels=labels).loss
            assert_close(ranking.losses[row, number], loss * tokens, atol=1e-4, rtol=1e-4)
    # Each video may have candidates of its own.
    own = torch.stack([candidates, candidates.flip(0)])
    each = model.rank_candidates(own, (own != 0).long(), **text, **video_inputs())
    assert_close(each.losses[1].flip(0), ranking.losses[1], atol=1e-4, rtol=1e-4)


def test_the_loss_reaches_what_is_to_be_trained(model):
    model.zero_grad()
    text = prompts(side="right")
    model(
        **video_inputs(), **text, labels=text["input_ids"].masked_fill(text["attention_mask"] == 0, -100)
    ).loss.backward()
    base = model.memory_bank_qformer
    for parameter in (base.query_tokens, base.language_projection.weight, base.frame_position_embeddings.weight):
        assert parameter.grad.any()
    assert model.get_input_embeddings().weight.grad.any()
    model.zero_grad()


@torch.no_grad()
def test_the_loss_is_shared_out_over_accumulated_batches(model):
    """As `Trainer` needs it: the sum over tokens, divided by the number of tokens in all batches."""
    text = prompts((5, 5))
    labels = text["input_ids"].masked_fill(text["input_ids"] == PLACE, -100)
    is_decoder = not model.config.text_config.is_encoder_decoder
    labels[:, : -3 if is_decoder else 0] = -100
    count = (labels != -100).sum()
    mean = model(**video_inputs(), **text, labels=labels).loss
    shared = model(**video_inputs(), **text, labels=labels, num_items_in_batch=4 * count).loss
    assert_close(shared * 4, mean)


def test_saved_and_loaded_it_answers_the_same(model, tmp_path):
    model.generation_config.max_new_tokens = 7
    expected = model.generate(**video_inputs(), **prompts(), do_sample=False)
    model.save_pretrained(tmp_path)
    for auto_class in (AutoModelForImageTextToText, AutoModelForMultimodalLM):
        loaded = auto_class.from_pretrained(tmp_path)
        assert type(loaded) is MemoryBankQFormerForConditionalGeneration
        # The settings that were saved with the model are those it answers with.
        answers = loaded.generate(**video_inputs(), **prompts(), do_sample=False)
        assert torch.equal(answers, expected)
    model.generation_config.max_new_tokens = None


EMBEDS = torch.zeros(2, NUM_QUERIES, 24)
WORDS = torch.cat([torch.full((2, NUM_QUERIES), PLACE), torch.full((2, 3), 5)], dim=1)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"input_ids": WORDS}, "Pass one of `pixel_values`"),
        ({"vision_embeds": random_frames(), "video_embeds": EMBEDS}, "Pass one of `pixel_values`"),
        ({"video_embeds": EMBEDS[:1], "input_ids": WORDS}, r"have \[4, 4\] times .* the videos \[4\] tokens"),
        (
            {"vision_embeds": random_frames(), "frame_attention_mask": torch.tensor([[1] * 9, [0] * 9])},
            "leaves one without any",
        ),
    ],
)
def test_wrong_inputs_are_named(inputs, message):
    with pytest.raises(ValueError, match=message):
        make_model()(**inputs)


def test_wrong_numbers_of_places_are_named():
    model = make_model()
    ids = torch.tensor([[PLACE] * 4 + [5], [PLACE] * 3 + [5, 6]])
    for call in (model, model.generate):
        with pytest.raises(ValueError, match=r"have \[4, 3\] times the token 69 .* the videos \[4, 4\] tokens"):
            call(video_embeds=EMBEDS, input_ids=ids)


@pytest.mark.parametrize(
    ("candidates", "mask", "message"),
    [
        (torch.ones(3, 2).long(), torch.tensor([[1, 1], [0, 0], [1, 0]]), "at least one token"),
        (torch.ones(1, 3).long(), torch.tensor([[1, 0, 1]]), "padding on the right alone"),
    ],
)
def test_wrong_candidates_are_named(candidates, mask, message):
    with pytest.raises(ValueError, match=message):
        make_model().rank_candidates(candidates, mask, video_embeds=EMBEDS, input_ids=WORDS)


def test_a_language_model_is_needed():
    with pytest.raises(ValueError, match="set `text_config`"):
        MemoryBankQFormerForConditionalGeneration(tiny_config(projection_dim=24))
