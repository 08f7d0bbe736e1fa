"""Which stretches are chosen, and what is measured of each."""

import numpy as np
import pytest
import torch

from hf_video import VideoViTConfig, VideoViTForVideoClassification
from hf_video.inference import choose_stretches, extract_window_features, score_frames, score_windows
from hf_video.inference.suggestion import measure_stretches

from .test_scores import LABELS, PROCESSOR, SIZES, causal, make_frames, regular, vit  # noqa: F401


@pytest.fixture
def clip_classifier():
    torch.manual_seed(0)
    heads = {"num_attention_heads": 2, "intermediate_size": 32}
    return VideoViTForVideoClassification(VideoViTConfig(**SIZES, **LABELS, **heads)).eval()


def test_the_most_uncertain_first_and_then_what_is_unlike_it():
    features = np.array([[0.0], [0.0], [0.0], [10.0], [4.0]])
    far = np.arange(5)[:, None] * 2
    assert choose_stretches(np.array([0.5, 0.9, 0.8, 0.7, 0.1]), features, far, 3) == [1, 3, 4]
    # A label is as good as a choice, and is not chosen.
    is_labelled = np.array([True, False, False, False, False])
    assert choose_stretches(np.array([0.5, 0.9, 0.8, 0.7, 0.1]), features, far, 2, is_labelled) == [3, 4]
    assert not choose_stretches(np.ones(5), features, far, 2, np.ones(5, bool))


def test_no_two_lie_beside_each_other():
    """Those of one video, numbered; the next video is far."""
    places = np.array([(video * 2, number) for video in range(2) for number in range(4)])
    features = np.random.default_rng(0).normal(size=(8, 3))
    chosen = choose_stretches(np.ones(8), features, places, 8)
    assert 3 <= len(chosen) <= 4 and len({*chosen}) == len(chosen)
    for video in range(2):
        numbers = sorted(row - 4 * video for row in chosen if row // 4 == video)
        assert all(later - sooner > 1 for sooner, later in zip(numbers, numbers[1:], strict=False)) and numbers


def test_a_class_of_which_little_is_labelled_goes_first():
    """Of equal stretches, although a labelled one of the other class is farther."""
    features, far = np.array([[0.0], [0.0], [1.0], [-1.1]]), np.arange(4)[:, None] * 2
    is_labelled, ids = np.array([True, True, False, False]), np.array([1, 1, 0, 1])
    assert choose_stretches(np.ones(4), features, far, 1, is_labelled) == [3]
    assert choose_stretches(np.ones(4), features, far, 1, is_labelled, ids) == [2]


@pytest.mark.parametrize("family", ["causal", "vit"])
def test_frames_have_the_features_that_their_scores_are_of(family, request):
    model = request.getfixturevalue(family)
    found = list(score_frames(model, PROCESSOR, make_frames(regular(30)), batch_size=3, with_features=True))
    for window in found:
        logits = model.classifier.weight.detach().numpy() @ window.features + model.classifier.bias.detach().numpy()
        np.testing.assert_allclose(np.exp(logits) / np.exp(logits).sum(), window.scores, atol=1e-5)


def test_a_stretch_has_the_mean_of_the_windows_in_it(clip_classifier):
    model, video = clip_classifier, list(make_frames(regular(50)))
    found = measure_stretches(model, PROCESSOR, video, 2.0, name="a", batch_size=3)
    # Of 6.25 s, the last quarter of a second is no stretch.
    assert [(each.video, each.start, each.end) for each in found] == [("a", 0, 2), ("a", 2, 4), ("a", 4, 6)]
    scored = list(score_windows(model, PROCESSOR, video))
    features = extract_window_features(model, PROCESSOR, video).features
    inside = [row for row, each in enumerate(scored) if 2 <= (each.start + each.end) / 2 < 4]
    np.testing.assert_allclose(found[1].features, features[inside].mean(axis=0), rtol=1e-5)
    assert found[1].class_id == np.mean([scored[row].scores for row in inside], axis=0).argmax()
    margins = [1 - np.diff(np.sort(scored[row].scores)[-2:])[0] for row in inside]
    assert found[1].uncertainty == pytest.approx(np.mean(margins))


def test_several_labels_and_short_videos(clip_classifier):
    """One class whose score is a half is enough; and a video that is shorter than a stretch is one."""
    model = clip_classifier
    model.config.problem_type = "multi_label_classification"
    video = list(make_frames(regular(8)))
    (found,) = measure_stretches(model, PROCESSOR, video, 3.0)
    scored = list(score_windows(model, PROCESSOR, video))
    assert (found.start, found.end) == (0.0, 1.0)
    assert found.uncertainty == pytest.approx(np.mean([1 - np.abs(2 * each.scores - 1).min() for each in scored]))
