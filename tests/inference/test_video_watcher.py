"""VideoWatcher: frames in, answers out, for any size of chunks; interrupted, saved and continued."""

import pytest
import torch

from hf_video import MemoryBank, VideoWatcher
from tests.testing.answering import random_images, same, tiny_pair

QUESTION, OTHER = "which digit came first", "what is shown"
GREEDY = {"max_new_tokens": 6, "do_sample": False}


@pytest.fixture(scope="module")
def pair():
    return tiny_pair()


def expected_answer(model, processor, images, question):
    """The answer for the whole video at once."""
    inputs = processor(list(images), question, do_sample_frames=False, return_tensors="pt")
    ids = model.generate(**inputs, **GREEDY)
    return processor.batch_decode(ids, skip_special_tokens=True)[0].strip()


@pytest.mark.parametrize("chunk_size", [1, 4, 64])
def test_answers_are_those_of_the_whole_video(pair, chunk_size):
    images = random_images(10)
    watcher = VideoWatcher(*pair, QUESTION, chunk_size=chunk_size)
    answers = {seen: watcher.answer(**GREEDY) for seen in watcher.watch(image for image in images)}
    assert list(answers) == list(range(1, 11))
    for seen in (1, 5, 10):
        assert answers[seen] == expected_answer(*pair, images[:seen], QUESTION)
    assert len(set(answers.values())) > 1


@pytest.mark.parametrize("question", [QUESTION, ""])
def test_another_question_leaves_the_memory_as_it_is(pair, question):
    """Also if the watcher has no question while it watches."""
    images = random_images(3)
    watcher = VideoWatcher(*pair, question)
    watcher.update(images[:2])
    assert watcher.answer(OTHER, **GREEDY) == expected_answer(*pair, images[:2], OTHER)
    watcher.update(images[2:])
    assert watcher.answer(QUESTION, **GREEDY) == expected_answer(*pair, images, QUESTION)


def test_a_model_is_asked_about_a_memory(pair):
    """Two questions at once about one video, in which no frames were merged."""
    model, processor = pair
    images = random_images(2)
    watcher = VideoWatcher(*pair, QUESTION)
    watcher.update(images)
    ids = model.ask(watcher.memory, **processor(text=[QUESTION, OTHER], return_tensors="pt"), **GREEDY)
    answers = [text.strip() for text in processor.batch_decode(ids, skip_special_tokens=True)]
    assert answers == [expected_answer(*pair, images, question) for question in (QUESTION, OTHER)]


def test_a_qformer_without_text_answers_every_question_exactly():
    pair = tiny_pair(reads_text=False)
    images = random_images(9)
    watcher = VideoWatcher(*pair)
    watcher.update(images)
    for question in (QUESTION, OTHER):
        assert watcher.answer(question, **GREEDY) == expected_answer(*pair, images, question)


def test_a_saved_memory_goes_on(pair, tmp_path):
    images = random_images(9)
    whole, first = VideoWatcher(*pair, QUESTION), VideoWatcher(*pair, QUESTION)
    whole.update(images)
    first.update(images[:5])
    first.save(tmp_path / "memory.safetensors")
    second = VideoWatcher(*pair, QUESTION, memory=MemoryBank.load(tmp_path / "memory.safetensors"))
    assert second.frames_seen == 5 and second.answer(**GREEDY) == first.answer(**GREEDY)
    second.update(images[5:])
    assert second.frames_seen == 9
    for bank, other in zip(second.memory.banks(), whole.memory.banks(), strict=True):
        assert same(bank.states, other.states, atol=1e-4)
    assert second.answer(**GREEDY) == whole.answer(**GREEDY)


@pytest.mark.parametrize("settings", [{}, {"reads_text": False}])
def test_a_saved_memory_answers_the_same(tmp_path, settings):
    """After merges, where a replay would give another answer."""
    pair = tiny_pair(**settings)
    first = VideoWatcher(*pair, QUESTION)
    first.update(random_images(9))
    first.save(tmp_path / "memory")
    second = VideoWatcher(*pair, QUESTION, memory=MemoryBank.load(tmp_path / "memory"))
    assert torch.equal(second.memory.last_queries, first.memory.last_queries)
    assert second.answer(**GREEDY) == first.answer(**GREEDY)
    third = VideoWatcher(*pair, OTHER, memory=MemoryBank.load(tmp_path / "memory"))
    assert torch.equal(third.memory.last_queries, first.memory.last_queries) == ("reads_text" in settings)


def test_a_memory_of_another_model_of_its_sizes_is_refused(pair):
    first = VideoWatcher(*pair, QUESTION)
    first.update(random_images(2))
    other = tiny_pair()[0]
    with torch.no_grad():
        other.base_model.query_tokens.normal_()
    with pytest.raises(ValueError, match="filled by another model"):
        VideoWatcher(other, pair[1], QUESTION, memory=first.memory)


@pytest.mark.parametrize(("question", "has_origin"), [(OTHER, True), ("what digit came first", False)])
def test_a_memory_of_another_question_is_replayed(pair, question, has_origin):
    """One question has as many words as the first. Without an origin only their ids tell them apart."""
    images = random_images(3)
    first = VideoWatcher(*pair, QUESTION)
    first.update(images)
    kept = first.memory.clone()
    kept.origin = kept.origin if has_origin else {}
    second = VideoWatcher(*pair, question, memory=kept)
    expected = VideoWatcher(*pair, question)
    expected.update(images)
    for bank, other in zip(second.memory.banks(), expected.memory.banks(), strict=True):
        assert same(bank.states, other.states, atol=1e-4)
    assert second.answer(**GREEDY) == expected.answer(**GREEDY)


def test_an_error_of_the_source_costs_no_frame_before_it(pair):
    images = random_images(6)

    def source():
        yield from images
        raise OSError("the camera is gone")

    watcher = VideoWatcher(*pair, QUESTION, chunk_size=4)
    with pytest.raises(OSError, match="the camera is gone"):
        watcher.update(source())
    assert watcher.frames_seen == 6
    assert watcher.answer(**GREEDY) == expected_answer(*pair, images, QUESTION)


def test_memory_does_not_grow(pair):
    watcher = VideoWatcher(*pair, QUESTION)
    sizes = [sum(bank.slots.numel() for bank in watcher.memory.banks()) for _ in watcher.watch(random_images(40))]
    assert len(set(sizes)) == 1


def test_wrong_uses_are_named(pair):
    watcher = VideoWatcher(*pair, QUESTION)
    with pytest.raises(ValueError, match="nothing to answer about yet"):
        watcher.answer()
    with pytest.raises(ValueError, match="has no memory"):
        VideoWatcher(tiny_pair(memory_bank_length=0)[0], pair[1], QUESTION)
    long = " ".join(["digit"] * 25)
    with pytest.raises(ValueError, match="26 tokens, but the Q-Former reads at most 24"):
        VideoWatcher(*pair, long)
    with pytest.raises(ValueError, match="26 tokens, but the Q-Former reads at most 24"):
        watcher.check_question(long)
    watcher.check_question(OTHER)
