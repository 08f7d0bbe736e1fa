"""Weights of classes, and samplers: what they are, and that a training follows them."""

from collections import Counter

import numpy as np
import pytest
import torch

from hf_video.data import ClipMixing, MixingCollator, collate_clips
from hf_video.training import CrossEntropy
from hf_video.training.class_balance import ClassSampler, make_class_weights, read_class_weights
from tests.testing import trainers
from tests.testing.trainers import LAST_WEIGHTS, labelled_clips, labelled_rows, make_model, weights_of

LABELS = [0] * 20 + [1] * 4 + [2] * 1
SEVERAL = [[0], [0, 1], [0], [0, 2], [], [], [0]]
NAMES = ["a", "b", "c"]


def test_weights_are_those_of_the_formulas():
    weights = make_class_weights("balanced", NAMES, labelled_rows(LABELS))
    # As `compute_class_weight` of scikit-learn has them.
    np.testing.assert_allclose(weights, 25 / 3 / np.array([20, 4, 1]), rtol=1e-6)
    assert weights.dtype == torch.float32 and weights[LABELS].mean() == pytest.approx(1)
    by_hand = np.array([1 / sum(0.999**number for number in range(size)) for size in (20, 4, 1)])
    weights = make_class_weights("effective", NAMES, labelled_rows(LABELS))
    np.testing.assert_allclose(weights, by_hand / by_hand.mean(), rtol=1e-6)
    # Several classes are weighted by their absence.
    weights = make_class_weights("balanced", NAMES, labelled_rows(SEVERAL))
    torch.testing.assert_close(weights, torch.tensor([2 / 5, 6, 6]))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("weights.csv", 'c,3\n"a", 1\nb,0.5\n'),
        ("header.csv", "class,weight\na,1\nb,0.5\nc,3\n"),
        ("weights.json", '{"c": 3, "a": 1, "b": 0.5}'),
        ("weights.yaml", "b: 0.5\na: 1\nc: 3\n"),
    ],
)
def test_weights_of_a_file(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    weights = make_class_weights(str(tmp_path / name), NAMES, None)
    assert weights.tolist() == [1, 0.5, 3]
    assert read_class_weights({"a": 1}) == {"a": 1.0}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,1\nb,-2\nc,1\n", "the weight of 'b'; names with numbers of at least 0 are expected"),
        ("a,1\nb\nc,1\n", "the weight of 'b'"),
        ("a,1\nb,1\nz,1\n", "class_weights has z, not among the classes: a, b, c"),
        ("a,1\nc,1\n", "class_weights has no weight for b"),
        ("[1, 2, 3]", "weights.json; names with numbers of at least 0"),
    ],
)
def test_a_wrong_file_of_weights_is_named(tmp_path, text, message):
    file = tmp_path / ("weights.json" if text.startswith("[") else "weights.csv")
    with pytest.raises(FileNotFoundError, match=f"{file.name} does not exist"):
        make_class_weights(str(file), NAMES, None)
    file.write_text(text)
    with pytest.raises(ValueError, match=message):
        make_class_weights(str(file), NAMES, None)


@pytest.mark.parametrize(
    ("kind", "rows", "message"),
    [
        ("balance", labelled_rows(LABELS), "class_weights is 'balance'; balanced, effective, or a file that ends in"),
        (
            "effective",
            labelled_rows(LABELS).select([0, 1, 20]),
            "has no weight for c: none or each of the 3 training videos",
        ),
        (
            "balanced",
            labelled_rows([[0, 1], [0], [0, 2]]),
            "has no weight for a: none or each of the 3 training videos has",
        ),
        ("effective", labelled_rows(SEVERAL), "effective is for videos of one class each"),
        ("balanced", None, "counts the videos of a VideoDataset"),
    ],
)
def test_weights_that_cannot_be_are_named(kind, rows, message):
    with pytest.raises(ValueError, match=message):
        make_class_weights(kind, NAMES, rows)


@pytest.mark.parametrize(("sampler", "shares"), [("balanced", (1, 1, 1)), ("sqrt", (20**0.5, 2, 1))])
def test_a_sampler_draws_classes_by_their_sizes(sampler, shares):
    clips = labelled_clips(LABELS)
    order = ClassSampler(clips, sampler, seed=0)
    drawn = Counter()
    for epoch in range(100):
        clips.set_epoch(epoch)
        pairs = list(order)
        assert len(pairs) == len(order) == len(set(pairs)) == 25
        # Repetitions are counted from 0.
        assert {row: number + 1 for row, number in pairs} == Counter(row for row, _ in pairs)
        drawn.update(LABELS[row] for row, _ in pairs)
    found = np.array([drawn[index] for index in range(3)]) / drawn.total()
    np.testing.assert_allclose(found, np.array(shares) / sum(shares), atol=0.03)


def test_the_order_follows_from_seed_and_epoch_and_several_classes_count_as_the_rarest():
    clips = labelled_clips(LABELS)
    first = list(ClassSampler(clips, "balanced", seed=0))
    assert list(ClassSampler(clips, "balanced", seed=0)) == first != list(ClassSampler(clips, "balanced", seed=1))
    clips.set_epoch(1)
    assert list(ClassSampler(clips, "balanced", seed=0)) != first
    clips.rows = labelled_rows(SEVERAL)
    # Three videos count as a, one as b, one as c, two as none of them.
    found = ClassSampler(clips, "balanced", seed=0).probabilities
    np.testing.assert_allclose(found, [1 / 12, 1 / 4, 1 / 12, 1 / 4, 1 / 8, 1 / 8, 1 / 12])


class Recorder:
    """`collate_clips`, which keeps the keys of the clips."""

    def __init__(self):
        self.keys = []

    def __call__(self, items):
        self.keys += [item["sample_key"] for item in items]
        return collate_clips(items)


def make_trainer(folder, clips=None, collator=None, num_labels=3, **options):
    clips = labelled_clips(LABELS) if clips is None else clips
    options = {"per_device_train_batch_size": 5, **LAST_WEIGHTS, **options}
    model = make_model(num_labels=num_labels, id2label=dict(enumerate(NAMES[:num_labels])))
    return trainers.make_trainer(folder, clips, model=model, data_collator=collator, **options)


def test_a_resumed_run_draws_what_an_undisturbed_one_does(tmp_path):
    def run(checkpoint=None):
        collator = Recorder()
        options = {"sampler": "balanced", "class_weights": "effective", "loss": "focal", "ema_decay": 0.5}
        options |= {"save_strategy": "steps", "save_steps": 1, "save_total_limit": None}
        trainer = make_trainer(tmp_path, collator=collator, **options)
        trainer.train(checkpoint)
        return collator.keys, weights_of(trainer.model)

    keys, weights = run()
    assert [key[1] for key in keys] == [0] * 25 + [1] * 25 and len(set(keys)) == 50
    # An epoch has five steps.
    rest, resumed = run(str(tmp_path / "checkpoint-2"))
    assert rest == keys[10:]
    torch.testing.assert_close(resumed, weights, rtol=0, atol=0)


def test_evaluation_and_soft_targets(tmp_path):
    """Evaluation losses are plain, so that they compare. Training losses take the soft targets of mixed clips."""
    mix = MixingCollator(ClipMixing(mixup_alpha=0.8), 3, label_smoothing=0.1)
    trainer = make_trainer(tmp_path, collator=mix, class_weights="balanced", label_smoothing_factor=0.1)
    targets = next(iter(trainer.get_train_dataloader()))["labels"]
    assert targets.shape == (5, 3) and ((targets > 0) & (targets < 1)).all()
    trainer.train()
    assert trainer.model.config.problem_type in (None, "single_label_classification")
    weights = make_class_weights("balanced", NAMES, labelled_rows(LABELS))
    clips = labelled_clips(LABELS)
    items = [clips[index] for index in (0, 20, 24)]
    batch = collate_clips(items)
    outputs = trainer.model.train()(batch["pixel_values"])
    expected = CrossEntropy(label_smoothing_factor=0.1, class_weights=weights)(outputs, batch["labels"])
    torch.testing.assert_close(trainer.compute_loss(trainer.model, dict(batch)), expected)
    mixed = mix(items)
    logits = trainer.model(mixed["pixel_values"]).logits
    loss = trainer.compute_loss(trainer.model, dict(mixed), num_items_in_batch=torch.tensor(9))
    torch.testing.assert_close(loss, -(weights * mixed["labels"] * logits.log_softmax(-1)).sum() / 3)
    logits = trainer.model.eval()(batch["pixel_values"]).logits
    loss = trainer.compute_loss(trainer.model, dict(batch))
    torch.testing.assert_close(loss, torch.nn.functional.cross_entropy(logits, batch["labels"]))
