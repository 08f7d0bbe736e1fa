import numpy as np
import pytest

from hf_video.training.planning import fit_discriminant, plan_labels


def clips(per_class, seed=0, apart=0.7, num_classes=3, hidden_size=16):
    generator = np.random.default_rng(seed)
    labels = np.repeat(np.arange(num_classes), per_class)
    centres = np.random.default_rng(99).normal(size=(num_classes, hidden_size)) * apart
    return centres[labels] + generator.normal(size=(len(labels), hidden_size)), labels


def test_the_band_holds_the_gain_that_more_clips_bring():
    test = clips(500, seed=1)

    def accuracy(features, labels):
        return (fit_discriminant(features, labels, 3)(test[0]).argmax(1) == test[1]).mean()

    held, gains = [], []
    for seed in range(10):
        features, labels = clips(40, seed=10 + seed)
        few = np.arange(len(labels)) % 40 < 10
        plan = plan_labels(features[few], labels[few], more=30, seed=seed)
        low, gain, high = plan.overall.gain
        gains.append(accuracy(features, labels) - accuracy(features[few], labels[few]))
        held.append(low <= gains[-1] <= high)
        assert high - low < 0.35 and plan.overall.now[1] + gain == pytest.approx(plan.overall.later[1], abs=0.05)
    assert np.mean(gains) > 0.02 and sum(held) >= 8


def test_what_many_clips_say_has_a_narrower_band_and_more_bring_less():
    few, many = (plan_labels(*clips(number)).overall.gain for number in (10, 80))
    assert many[2] - many[0] < few[2] - few[0] and many[1] < few[1]


def test_a_class_that_is_hard_gains_more_than_one_that_is_known():
    features, labels = clips(30, apart=0.3)
    features[labels == 0, 0] += 20
    classes = plan_labels(features, labels).classes
    assert classes[0].now[1] > 0.97 > classes[1].now[1] and classes[0].gain[1] < classes[1].gain[1]


def test_labels_that_the_other_clips_contradict_are_doubted_and_others_are_not():
    features, labels = clips(20, apart=2)
    labels[[3, 25]] = 2, 0
    doubts = plan_labels(features, labels).doubts
    assert {(doubt.row, doubt.other) for doubt in doubts} == {(3, 0), (25, 1)}
    assert all(doubt.probability < 0.05 for doubt in doubts)


def test_clips_of_one_video_are_held_out_together():
    generator = np.random.default_rng(0)
    videos = np.repeat(np.arange(24), 4)
    # What a video looks like is known from its other clips, and says nothing of classes.
    features = generator.normal(size=(24, 32))[videos] + 0.01 * generator.normal(size=(96, 32))
    labels = np.arange(24)[videos] % 2
    apart, together = plan_labels(features, labels), plan_labels(features, labels, videos)
    assert together.by_video and apart.overall.now[1] > 0.9 and together.overall.now[1] < 0.75
    assert not plan_labels(features, labels, videos // 6).by_video


def test_it_is_repeated_by_its_seed_and_wants_five_clips_a_class():
    features, labels = clips(8)
    assert repr(plan_labels(features, labels, seed=3)) == repr(plan_labels(features, labels, seed=3))
    with pytest.raises(ValueError, match=r"5 clips each .* \[4, 8, 8\]"):
        plan_labels(features[4:], labels[4:])
