"""Streams of training clips: each clip once an epoch, in an order by seed, and the same after an interruption."""

import json
from collections import Counter
from itertools import islice

import pytest
import torch
from datasets import ClassLabel, Dataset, Features, IterableDataset, Value, Video

from hf_video.data import (
    ClipTask,
    ReadAheadLoader,
    VideoDataset,
    VideoStream,
    collate_clips,
    load_video_dataset,
    load_video_stream,
)
from hf_video.processing import VideoClipProcessor
from hf_video.reading import VideoReadError

PROCESSOR = VideoClipProcessor(num_frames=2, sampling_strategy="dense", size=20, crop_size=16)
NAMES = ["walk", "run"]
NUM_CLIPS = 23


@pytest.fixture(scope="module")
def shards(digits, tmp_path_factory):
    """23 clips with different videos in four Parquet files to train on, and two in one to validate with."""
    folder = tmp_path_factory.mktemp("digits")
    contents = [path.read_bytes() for path in sorted(digits.rglob("*.mp4"))][: NUM_CLIPS + 2]
    rows = [
        {"clip": {"bytes": content, "path": f"{number}.mp4"}, "action": number % 2}
        for number, content in enumerate(contents)
    ]
    parts = {f"train-{part}": rows[:NUM_CLIPS][part::4] for part in range(4)} | {"dev-0": rows[NUM_CLIPS:]}
    for name, part in parts.items():
        write_shard(folder / "parquet" / "data" / f"{name}.parquet", part)
    return folder / "parquet"


def write_shard(path, rows, label=None):
    path.parent.mkdir(parents=True, exist_ok=True)
    features = Features({"clip": Video(decode=False), "action": label or ClassLabel(names=NAMES)})
    Dataset.from_list(rows, features=features).cast_column("clip", Video()).to_parquet(path)


def make_stream(shards, process=0, num_processes=1, class_names=None, **options):
    stream = VideoStream(
        load_video_stream(shards)[0], ClipTask(PROCESSOR, class_names), **{"shuffle_buffer_size": 5} | options
    )
    stream.split_by_process(process, num_processes)
    return stream


def names_of(clips):
    return [clip.row["video"] for clip in clips]


def test_splits_by_their_names(shards):
    stream, others = load_video_stream(shards)
    assert isinstance(stream, IterableDataset) and list(others) == ["validation"]
    assert list(others["validation"]["label"]) == [1, 0] and "bytes" in others["validation"].column_names
    whole = load_video_dataset(shards)
    assert list(whole) == ["train", "validation"]
    named = load_video_dataset(shards, train_split="validation", validation_split="train")
    assert [len(named["train"]), len(named["validation"])] == [2, NUM_CLIPS]
    with pytest.raises(ValueError, match="validation_split='dev'"):
        load_video_stream(shards, validation_split="dev")


def test_items_are_those_of_a_data_set(shards):
    stream = make_stream(shards)
    clip = next(stream.draw_clips())
    item = stream[clip]
    rows = load_video_dataset(shards)["train"]
    index = next(i for i, name in enumerate(rows["video"]) if name.endswith(" " + clip.row["video"]))
    expected = VideoDataset(rows, ClipTask(PROCESSOR), training=True).task.make(rows[index], clip.key, True)
    assert torch.equal(item["pixel_values"], expected["pixel_values"])
    assert item["labels"] == expected["labels"] and item["sample_key"] == expected["sample_key"] == clip.key
    renamed = make_stream(shards, class_names=["run", "sit", "walk"])
    assert renamed[next(renamed.draw_clips())]["labels"] == {0: 2, 1: 0}[item["labels"]]


@pytest.mark.parametrize("num_processes", [2, 3])
def test_each_clip_once_an_epoch_and_with_the_same_draws(shards, num_processes):
    """Two processes read two files each; three read all four, and every third row."""
    streams = [make_stream(shards, process, num_processes, seed=7) for process in range(num_processes)]
    for epoch in range(2):
        seen = Counter()
        for stream in streams:
            clips = [clip for clip in islice(stream.draw_clips(), 60) if clip.state["epoch"] == epoch]
            seen.update((clip.row["video"], clip.key) for clip in clips)
        assert len(seen) == NUM_CLIPS and set(seen.values()) == {1}
        alone = [clip for clip in islice(make_stream(shards, seed=7).draw_clips(), 60) if clip.state["epoch"] == epoch]
        assert seen == Counter((clip.row["video"], clip.key) for clip in alone)


def test_order_by_seed_and_epoch(shards):
    first, again, other = (
        names_of(islice(make_stream(shards, seed=seed).draw_clips(), 2 * NUM_CLIPS)) for seed in (0, 0, 1)
    )
    assert first == again != other
    assert first[:NUM_CLIPS] != first[NUM_CLIPS:] and sorted(first[:NUM_CLIPS]) == sorted(first[NUM_CLIPS:])


@pytest.mark.parametrize(
    ("num_processes", "reading_threads"),
    [(1, 0), (3, 2), pytest.param(2, 2, marks=pytest.mark.slow)],
)
def test_a_stream_goes_on_with_the_next_clip(shards, num_processes, reading_threads):
    def load(stream):
        return ReadAheadLoader(stream, batch_size=2, collate_fn=collate_clips, reading_threads=reading_threads)

    process, count = num_processes - 1, 2 * NUM_CLIPS // num_processes
    undisturbed = list(islice(load(make_stream(shards, process, num_processes)), count // 2))
    for stop in (1, 2, 3, count // 4, count // 2 - 1):
        stream = make_stream(shards, process, num_processes)
        list(islice(load(stream), stop))
        resumed = make_stream(shards, process, num_processes)
        resumed.load_state_dict(json.loads(json.dumps(stream.state_dict())))
        for batch, expected in zip(load(resumed), undisturbed[stop:], strict=False):
            assert torch.equal(batch["pixel_values"], expected["pixel_values"])
            assert torch.equal(batch["labels"], expected["labels"])


def test_shards_that_are_sorted_by_class_are_mixed(shards, tmp_path):
    content = load_video_dataset(shards)["validation"]["bytes"][0]
    for number in range(3):
        rows = [{"clip": {"bytes": content, "path": f"{number}-{each}.mp4"}, "action": number} for each in range(6)]
        write_shard(tmp_path / f"train-{number}.parquet", rows, ClassLabel(names=["walk", "run", "sit"]))
    clips = list(islice(make_stream(tmp_path, shuffle_buffer_size=6).draw_clips(), 18))
    assert len(set(names_of(clips))) == 18
    for start in (0, 6, 12):
        assert sorted(clip.row["label"] for clip in clips[start : start + 6]) == [0, 0, 1, 1, 2, 2]


def test_a_state_of_another_order_is_refused(shards):
    state = make_stream(shards).state_dict()
    with pytest.raises(ValueError, match="shuffle_buffer_size=5.* shuffle_buffer_size=4"):
        make_stream(shards, shuffle_buffer_size=4).load_state_dict(state)
    with pytest.raises(ValueError, match="num_processes=1.* num_processes=2"):
        make_stream(shards, 0, 2).load_state_dict(state)


@pytest.mark.parametrize("on_error", ["error", "skip", "replace"])
def test_broken_videos(shards, tmp_path, on_error):
    content = load_video_dataset(shards)["validation"]["bytes"][0]
    broken = {"clip": {"bytes": b"no video", "path": "broken.mp4"}, "action": 0}
    write_shard(tmp_path / "train.parquet", [broken, {"clip": {"bytes": content, "path": "good.mp4"}, "action": 1}])
    stream = make_stream(tmp_path, on_error=on_error)
    loader = ReadAheadLoader(stream, batch_size=2, collate_fn=collate_clips, reading_threads=2)
    if on_error == "error":
        with pytest.raises(VideoReadError, match=r"broken\.mp4"):
            next(iter(loader))
        return
    assert len(next(iter(loader))["labels"]) == {"skip": 1, "replace": 2}[on_error]
    assert stream.broken_videos() == ["broken.mp4"]
    alone = ReadAheadLoader(make_stream(tmp_path, on_error=on_error), batch_size=1, collate_fn=collate_clips)
    assert [batch["labels"].tolist() for batch in islice(alone, 2)] == [[1], [1]]


def test_labels_need_names(shards, tmp_path):
    content = load_video_dataset(shards)["validation"]["bytes"][0]
    row = {"clip": {"bytes": content, "path": "a.mp4"}, "label": "run"}
    features = Features({"clip": Video(decode=False), "label": Value("string")})
    Dataset.from_list([row], features=features).to_parquet(tmp_path / "train.parquet")
    with pytest.raises(ValueError, match="names"):
        load_video_stream(tmp_path)
    stream, _ = load_video_stream(tmp_path, labels=NAMES)
    assert next(iter(VideoStream(stream, ClipTask(PROCESSOR, class_names=NAMES))))["labels"] == 1
    with pytest.raises(ValueError, match=r"a\.mp4 has the label 'run'"):
        next(iter(VideoStream(stream, ClipTask(PROCESSOR, class_names=["walk"]))))


def test_what_cannot_be_a_stream(shards, tmp_path):
    with pytest.raises(ValueError, match="cannot be a stream"):
        load_video_stream(tmp_path)
    with pytest.raises(ValueError, match=r"not 'video' with Video\(decode=False\)"):
        VideoStream(Dataset.from_dict({"a": [1]}).to_iterable_dataset(), ClipTask(PROCESSOR))
    with pytest.raises(ValueError, match="is no data set of the datasets library"):
        load_video_dataset(shards.parent / "mp4", config="small")
