"""People of a video at key frames, their actions and their tracks."""

import numpy as np
import pytest
import torch

from hf_video.data.key_frames import read_key_frame_clip
from hf_video.inference import detect_actions
from hf_video.inference.detection import assign_tracks
from hf_video.reading import VideoReadError

from ..data.detection_files import write_videos
from ..training.detection_testing import ACTIONS, make_detector, make_processor

LEFT, RIGHT = [0, 0, 10, 20], [30, 0, 40, 20]


@pytest.fixture(scope="module")
def videos(tmp_path_factory):
    return write_videos(tmp_path_factory.mktemp("videos"))


def moved(box, by):
    return [box[0] + by, box[1], box[2] + by, box[3]]


def test_persons_are_those_that_the_processor_gives_in_pixels_of_the_video(videos):
    model, processor, video = make_detector().eval(), make_processor(), videos / "a.mp4"
    found = detect_actions(model, processor, video, seconds=[2, 0.5], person_threshold=0.25, action_threshold=0.0)
    assert [frame.second for frame in found] == [0.5, 2]
    for frame in found:
        inputs = processor([read_key_frame_clip(video, frame.second, processor)], return_tensors="pt")
        with torch.no_grad():
            outputs = model(**inputs)
        (expected,) = processor.post_process_action_detection(
            outputs, threshold=0.25, original_sizes=inputs["original_sizes"], target_sizes=[(48, 64)]
        )
        order = np.argsort(-expected["scores"].numpy())
        persons = sorted(frame.persons, key=lambda person: -person.score)
        assert len(persons) == len(expected["scores"]) > 0
        for person, place in zip(persons, order, strict=True):
            assert person.score == pytest.approx(expected["scores"][place].item(), abs=1e-5)
            np.testing.assert_allclose(person.box, expected["boxes"][place], rtol=0, atol=1e-3)
            scores = dict(zip(ACTIONS, expected["action_scores"][place].tolist(), strict=True))
            assert person.actions == pytest.approx(scores, abs=1e-5)
            assert list(person.actions.values()) == sorted(person.actions.values(), reverse=True)


def test_key_frames_are_all_multiples_in_the_video(videos):
    model, processor = make_detector().eval(), make_processor()
    seconds = [frame.second for frame in detect_actions(model, processor, videos / "a.mp4", every=1.5, batch_size=1)]
    assert seconds == [0, 1.5]
    # The threshold is above every score.
    assert detect_actions(model, processor, videos / "b.mp4", person_threshold=1.0)[0].persons == []
    with pytest.raises(VideoReadError, match="no key frame at 9 s"):
        detect_actions(model, processor, videos / "a.mp4", seconds=[9])


@pytest.mark.parametrize(
    ("boxes", "tracks"),
    [
        ([[LEFT, RIGHT], [moved(RIGHT, 2), moved(LEFT, 2)]], [[0, 1], [1, 0]]),
        ([[LEFT], [], [], [moved(LEFT, 1)]], [[0], [], [], [0]]),
        ([[LEFT], [], [], [], [LEFT]], [[0], [], [], [], [1]]),
        ([[LEFT], [moved(LEFT, 9)]], [[0], [1]]),
        ([[LEFT], [moved(LEFT, 2), moved(LEFT, 1)]], [[0], [1, 0]]),
        ([], []),
    ],
    ids=["crossed rows", "missed twice", "missed too often", "too far", "the nearer one", "no frame"],
)
def test_tracks_follow_boxes_that_overlap(boxes, tracks):
    boxes = [np.array(of_frame, float).reshape(-1, 4) for of_frame in boxes]
    assert assign_tracks(boxes, np.arange(len(boxes)) / 10) == tracks


def test_a_track_ends_in_a_pause_that_is_longer_than_usual():
    boxes = [np.array([LEFT], float)] * 4
    assert assign_tracks(boxes, [0, 1, 2, 5]) == [[0], [0], [0], [0]]
    assert assign_tracks(boxes, [0, 1, 2, 60]) == [[0], [0], [0], [1]]
