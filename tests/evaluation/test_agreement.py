"""Agreement of two about the same videos: kappa against scikit-learn, and cases worked out by hand."""

import numpy as np
import pytest
from sklearn.metrics import cohen_kappa_score

from hf_video.evaluation.agreement import Compared, measure_agreement
from hf_video.inference import Segment

NAMES = ["walk", "groom", "dig"]


def segments_of(shown):
    """A segment for each frame of 0.25 s and class, (n, num_classes) bool."""
    return [Segment(NAMES[label], frame / 4, (frame + 1) / 4) for frame, label in np.argwhere(shown)]


@pytest.mark.parametrize("seed", range(6))
def test_kappa_is_that_of_scikit_learn(seed):
    """Of classes that exclude each other (odd seeds) or do not, at known moments of several videos."""
    rng = np.random.default_rng(seed)
    videos, frames, bins = [], [], []
    for num_frames in (40, 27, 8):
        first = rng.random((num_frames, 3)) < 0.4
        first &= (first.cumsum(axis=1) == 1) | bool(seed % 2 == 0)
        second = np.where(rng.random((num_frames, 1)) < 0.6, first, np.roll(first, 3, axis=0))
        is_known = (np.arange(num_frames) < 4) | (np.arange(num_frames) >= 7)
        known = [(0, 1.0), (1.75, num_frames / 4)]
        videos.append(Compared(np.arange(num_frames) / 4 + 0.125, known, segments_of(first), segments_of(second)))
        pair = np.stack([first, second])
        frames.append(pair[:, is_known])
        cells = [(pair[:, f : f + 4], is_known[f : f + 4]) for f in range(0, num_frames, 4)]
        bins.append(np.stack([cell[:, known].mean(axis=1) >= 0.5 for cell, known in cells], axis=1))
    found = measure_agreement(videos, NAMES)
    for name, parts in (("kappa_frames", frames), ("kappa_bins", bins)):
        one, other = np.concatenate(parts, axis=1)
        for label, of_class in enumerate(found["classes"].values()):
            assert of_class[name] == pytest.approx(cohen_kappa_score(one[:, label], other[:, label]))
        texts = (["+".join(map(str, row.nonzero()[0])) for row in each] for each in (one, other))
        assert found["all"][name] == pytest.approx(cohen_kappa_score(*texts))
        assert found["all"]["intervals"][name][0] < found["all"][name] < found["all"]["intervals"][name][1]
    assert found["num_seconds"] == sum(each.shape[1] for each in frames) / 4


def test_bouts_by_hand():
    """The second did not look from 6 s on; a bout that reaches over that is cut."""
    first = [Segment("walk", 1, 3), Segment("walk", 5, 9), Segment("dig", 7, 8)]
    second = [Segment("walk", 1.5, 3), Segment("walk", 4, 4.5), Segment("swim", 0, 1)]
    video = Compared(np.arange(0.05, 10, 0.1), [(0.5, 6.0)], first, second)
    found = measure_agreement([video], NAMES)
    walk, dig = found["classes"]["walk"], found["classes"]["dig"]
    assert (walk["f1"], walk["bouts"], walk["latency"]) == (0.5, [2, 2], [0.5, 1.0])
    assert walk["seconds"] == pytest.approx([3, 2]) and found["num_seconds"] == 5.5
    assert (dig["bouts"], dig["f1"], dig["kappa_frames"], dig["latency"]) == ([0, 0], None, None, [None, None])
    assert [found["all"][key] for key in ("bouts", "latency", "intervals")] == [[2, 2], [0.5, 1.0], {}]
    both = measure_agreement([video, video._replace(second=first)], NAMES)["classes"]["walk"]
    assert both["bouts"] == [4, 4] and both["intervals"]["bouts"] == [[4, 4], [4, 4]] and both["f1"] == 0.75
    assert both["intervals"]["f1"] == [0.5, 1.0] and both["latency"] == [0.5, 0.75]
    unknown = video._replace(known=[])
    assert measure_agreement([video, unknown], NAMES)["classes"]["walk"]["latency"] == [0.5, 1.0]
    with pytest.raises(ValueError, match="no moment that both looked at"):
        measure_agreement([unknown], NAMES)
