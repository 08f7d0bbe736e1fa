import pytest
from datasets import Dataset

from hf_video.data import ClipDataset, collate_clips, inspect_videos
from hf_video.processing import VideoClipProcessor, VideoReadError

from ..video_files import encode_video, make_frames
from .broken_videos import write_broken_videos


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    folder = tmp_path_factory.mktemp("good")
    return [encode_video(folder / f"{number}.mp4", make_frames(20, 32, 48), fps=10) for number in range(3)]


@pytest.fixture(scope="module")
def broken(tmp_path_factory):
    return write_broken_videos(tmp_path_factory.mktemp("broken"))


def make_dataset(paths, **options):
    rows = [{"video": str(path), "label": number} for number, path in enumerate(paths)]
    processor = VideoClipProcessor(num_frames=4, sampling_strategy="uniform", size=16, crop_size=16)
    return ClipDataset(Dataset.from_list(rows), processor, **options)


@pytest.mark.parametrize("num_workers", [1, 2])
def test_every_way_to_be_broken_is_found_by_decoding(good, broken, num_workers):
    paths = [*good, *map(str, broken.values())]
    found = inspect_videos(Dataset.from_dict({"video": paths}), num_workers=num_workers, progress=False)
    assert [video.path for video in found] == paths
    assert [video.path for video in found if video.error] == [str(path) for path in broken.values()]
    assert all(video.path in video.error for video in found if video.error)
    assert (found[0].num_frames, found[0].duration, found[0].height, found[0].width) == (20, 2.0, 32, 48)


def test_damaged_data_are_passed_over_without_decoding(broken):
    paths = [str(path) for path in broken.values()]
    found = inspect_videos(Dataset.from_dict({"video": paths}), decode=False, progress=False)
    assert [name for name, video in zip(broken, found, strict=True) if video.error is None] in (["damaged"], [])


def test_a_segment_behind_the_end_is_an_error_and_a_video_is_read_once(good):
    rows = [{"video": good[0], "start": None, "end": None}, {"video": good[0], "start": 9.5, "end": None}]
    (video,) = inspect_videos(Dataset.from_list(rows), progress=False)
    assert "a segment starts at 9.5 s, the video ends at 2 s" in video.error


def test_broken_videos_are_left_out_of_a_batch(good, broken):
    dataset = make_dataset([good[0], broken["text"], good[1]], training=True, on_error="skip")
    assert collate_clips([dataset[index] for index in range(3)])["labels"].tolist() == [0, 2]
    assert dataset.broken_videos() == [str(broken["text"])]
    with pytest.raises(ValueError, match="at least one readable video is expected"):
        collate_clips([dataset[1]])


def test_a_broken_video_is_replaced_by_another_drawn_from_seed_epoch_and_index(good, broken):
    paths = [broken["empty"], *good, broken["damaged"]]
    drawn = set()
    for epoch in range(20):
        first, second = (make_dataset(paths, training=True, on_error="replace") for _ in range(2))
        first.set_epoch(epoch)
        second.set_epoch(epoch)
        second[4]  # which videos were met before does not matter for a draw among readable ones
        item = first[0]
        assert (item["pixel_values"] == second[0]["pixel_values"]).all()
        assert item["sample_key"] == (0, epoch, 0)
        drawn.add(item["labels"])
    assert drawn == {1, 2, 3}


def test_no_readable_video_at_all(broken):
    dataset = make_dataset([broken["empty"], broken["text"]], training=True, on_error="replace")
    with pytest.raises(VideoReadError, match="None of the 2 videos can be read"):
        dataset[0]


def test_evaluation_never_replaces(good):
    with pytest.raises(ValueError, match="are for training"):
        make_dataset(good, training=False, on_error="replace")
    with pytest.raises(ValueError, match="on_error='ignore' is unknown; choose from error, skip, replace"):
        make_dataset(good, training=True, on_error="ignore")
