"""A pack gives the clips of the files that it was made of, finds damage, and reads nothing but its shards."""

import os
import shutil

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from datasets import concatenate_datasets
from fsspec.asyn import AsyncFileSystem
from fsspec.implementations.local import LocalFileSystem
from torch.utils.data import DataLoader

from hf_video.data import ClipDataset, hold_out, load_video_dataset
from hf_video.data.inspection import check_can_list, inspect_videos
from hf_video.data.manifest import StaleManifestError, without_checks
from hf_video.data.repeated_videos import find_repeated_clips
from hf_video.data.stored_videos import check_shards, open_video, source_names, stored_sha256
from hf_video.data.video_listing import list_videos
from hf_video.demo import write_moving_digits
from hf_video.hub.training_facts import describe_data as describe_for_card
from hf_video.processing import VideoClipProcessor
from hf_video.reading import VideoReadError
from hf_video.training.training_data import describe_data, readable_videos

from .packs import change_index, write_pack

PROCESSOR = VideoClipProcessor(num_frames=4, sampling_strategy="uniform", size=32, crop_size=32)
EPOCHS = 8


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data") / "digits"
    return write_moving_digits(folder, train_per_class=2, test_per_class=1, num_frames=8, image_size=32)


@pytest.fixture(scope="module")
def whole(digits, tmp_path_factory):
    return write_pack(digits, tmp_path_factory.mktemp("packs") / "whole")


@pytest.fixture
def pack(whole, tmp_path):
    return shutil.copytree(whole, tmp_path / "pack")


class OfThreads(AsyncFileSystem):
    """Local files behind a thread and a loop, as `s3` and `http` have them; neither survives a fork."""

    protocol = "threads"
    cachable = True

    async def _info(self, path, **options):
        return LocalFileSystem().info(f"/{path}")

    async def _cat_file(self, path, start=None, end=None, **options):
        return LocalFileSystem().cat_file(f"/{path}", start, end)

    def _open(self, path, mode="rb", **options):
        return open(f"/{path}", mode)


@pytest.fixture
def in_memory(whole):
    """The URL of the pack on a file system that is none of the disk."""
    system = fsspec.filesystem("memory")
    system.put(str(whole), "/bucket/pack", recursive=True)
    yield "memory://bucket/pack"
    system.rm("/bucket", recursive=True)


def all_rows(data):
    return concatenate_datasets([*load_video_dataset(data).values()])


def read_clips(rows, num_workers):
    """The clips of all rows in several epochs, in random order."""
    clips = ClipDataset(rows, PROCESSOR, training=True, seed=3)
    loader = DataLoader(clips, batch_size=5, shuffle=True, num_workers=num_workers, collate_fn=list)
    torch.manual_seed(7)
    read = []
    for epoch in range(EPOCHS):
        clips.set_epoch(epoch)
        read += [(item["pixel_values"], item["labels"], item["sample_key"]) for batch in loader for item in batch]
    return read


@pytest.fixture(scope="module")
def clips_of_files(digits):
    return read_clips(all_rows(digits), 0)


def assert_same_clips(read, expected):
    assert len(read) == len(expected) == 192
    for (clip, label, key), (right, right_label, right_key) in zip(read, expected, strict=True):
        assert torch.equal(clip, right) and (label, key) == (right_label, right_key)


@pytest.mark.parametrize("num_workers", [0, pytest.param(1, marks=pytest.mark.slow), 2])
def test_the_clips_are_those_of_the_files(whole, clips_of_files, num_workers):
    assert len([*whole.glob("*.tar")]) > 2
    assert_same_clips(read_clips(all_rows(whole), num_workers), clips_of_files)


@pytest.mark.parametrize("num_workers", [pytest.param(0, marks=pytest.mark.slow), 2])
def test_the_clips_of_a_pack_behind_a_url(in_memory, clips_of_files, num_workers):
    rows = all_rows(in_memory)
    assert rows[0]["shard"] == f"{in_memory}/shard-00000.tar"
    assert_same_clips(read_clips(rows, num_workers), clips_of_files)


def test_workers_open_connections_of_their_own(whole, clips_of_files):
    fsspec.register_implementation("threads", OfThreads, clobber=True)
    rows = all_rows(f"threads://{whole}")
    check_shards(rows)
    assert open_video(rows[0]).read(8)  # this process has a connection before it forks
    assert_same_clips(read_clips(rows, 2), clips_of_files)


def test_all_names_of_a_pack_give_the_same_rows(whole, in_memory, tmp_path):
    rows = all_rows(whole)
    assert (
        rows[:]
        == all_rows(whole / "index.parquet")[:]
        == all_rows(f"file://{whole}")[:] | {name: rows[name][:] for name in ("video", "shard")}
    )
    assert all_rows(f"{in_memory}/")[:] == all_rows(f"{in_memory}/index.parquet")[:]
    shutil.copy(whole / "index.parquet", tmp_path / "elsewhere.parquet")
    apart = load_video_dataset(tmp_path / "elsewhere.parquet", video_root=in_memory)["train"]
    assert apart["shard"][:] == load_video_dataset(in_memory)["train"]["shard"][:]
    with open(load_video_dataset(tmp_path / "elsewhere.parquet", video_root=whole)["train"][0]["shard"], "rb") as file:
        assert file.read(5) == b"train"
    for url in ("memory://nowhere", "memory://nowhere/index.parquet", "nothing://here"):
        with pytest.raises(FileNotFoundError, match="is neither a pack nor a manifest"):
            load_video_dataset(url)


def test_a_manifest_behind_a_url_counts_paths_from_there(in_memory):
    with fsspec.open("memory://bucket/lists/videos.parquet", "wb") as file:
        pq.write_table(pa.table({"path": ["a.mp4", "/b.mp4", "s3://c/d.mp4"], "label": ["x", "y", "y"]}), file)
    rows = load_video_dataset("memory://bucket/lists/videos.parquet")["train"]
    assert rows["video"][:] == ["memory://bucket/lists/a.mp4", "/b.mp4", "s3://c/d.mp4"]


def test_a_row_gives_the_bytes_of_its_file(digits, whole):
    for of_file, of_pack in zip(all_rows(digits), all_rows(whole), strict=True):
        with open(of_file["video"], "rb") as file, open_video(of_pack) as packed:
            assert packed.read() == file.read() and packed.name == of_pack["video"]
    assert stored_sha256(of_pack) == of_pack["sha256"]


def test_what_a_run_knows_of_its_data_is_the_same(digits, whole):
    files, packed = load_video_dataset(digits), load_video_dataset(whole)
    names = files["train"].features["label"].names
    of_files, of_pack = (describe_data("data", splits, names) for splits in (files, packed))
    assert of_files == of_pack and "content" in of_files
    change = {"train": packed["train"].select([1, 0, *range(2, 16)]), "test": packed["test"]}
    assert describe_data("data", change, names)["digest"] != of_files["digest"]
    cards = [describe_for_card(ClipDataset(splits["train"], PROCESSOR, training=True)) for splits in (files, packed)]
    assert cards[0]["sha256"] == cards[1]["sha256"] and (cards[0]["name"], cards[1]["name"]) == ("digits", "whole")


def test_the_same_videos_are_held_out(digits, tmp_path):
    """Those of files are chosen by their sorted names, whatever the order of the list; shards follow the list."""
    data = shutil.copytree(digits, tmp_path / "data")
    videos = np.random.default_rng(0).permutation(sorted((data / "train").glob("*/*.mp4")))
    lines = [f"{video.relative_to(data)},{video.parent.name}" for video in videos]
    (data / "list.csv").write_text("\n".join(["path,label", *lines]))
    packed = load_video_dataset(write_pack(data / "list.csv", tmp_path / "pack"))["train"]
    parts = [hold_out(rows, 0.4, seed=5) for rows in (load_video_dataset(data / "list.csv")["train"], packed)]
    assert packed["video"][:] != sorted(packed["video"][:])
    for of_files, of_pack in zip(*parts, strict=True):
        names = [os.path.relpath(video, data) for video in of_files["video"]]
        assert names == source_names(of_pack).to_pylist()


def test_names_are_those_of_the_files_whatever_the_members_are_called(pack):
    change_index(pack, 0, key="train/a.b/0.1", path="train/a_b/0_1.mp4")
    change_index(pack, 1, key="train/a.b/0.2#t=0.0,1e-05", path="train/a_b/0_2.mp4")
    change_index(pack, 2, key="train/a.b/0.3#t=,2.5#2", path="train/a_b/0_3.mkv")
    change_index(pack, 3, key="train/a.b/0.4.mp4", path="train/a_b/0_4_mp4.mp4")
    change_index(pack, 4, key="train/a.b/#t=1", path="train/a_b/5")
    names = source_names(load_video_dataset(pack)["train"]).to_pylist()[:5]
    assert names == [f"train/a.b/{name}" for name in ("0.1.mp4", "0.2.mp4", "0.3.mkv", "0.4.mp4", "#t=1")]


def test_segments_of_one_video_are_one_video(pack):
    first = pq.read_table(pack / "index.parquet").to_pylist()[0]
    for row, (key, start, end) in enumerate((("a#t=0.0,0.3", 0.0, 0.3), ("a#t=0.3,", 0.3, None))):
        change_index(pack, row, **{**first, "key": key, "start": start, "end": end})
    train = load_video_dataset(pack)["train"]
    assert source_names(train).to_pylist()[:2] == ["a.mp4", "a.mp4"] and train["end"][:2] == [0.3, None]
    assert len({video.id for video in list_videos([str(pack)])}) == 23
    assert len(inspect_videos(all_rows(pack), num_workers=0, progress=False)) == 23


def test_videos_are_listed_by_their_keys(digits, whole, in_memory):
    expected = [video.id for video in list_videos([str(digits)])]
    for place in (str(whole), in_memory, f"{in_memory}/index.parquet"):
        videos = list_videos([place])
        assert sorted(video.id for video in videos) == sorted(expected)
        assert videos[0].open().read() and len(videos[0].sha256) == 64


def test_urls_of_videos_are_not_asked_for(monkeypatch):
    monkeypatch.setattr("hf_video.data.places.url_to_fs", lambda url: pytest.fail(f"{url} was asked for"))
    urls = ["https://example.com/a.mp4", "https://example.com/watch?v=b", "s3://bucket/c.webm"]
    assert [video.source for video in list_videos(urls)] == urls


def flip(shard, place):
    with open(shard, "r+b") as file:
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ 1]))


def test_a_flipped_byte_names_key_and_shard(pack):
    rows = load_video_dataset(pack)["train"]
    flip(rows[4]["shard"], rows[4]["offset"] + rows[4]["size"] // 2)
    message = rf"{rows[4]['key']} is not what the index says: .* of {rows[4]['shard']} were changed.*hf-video inspect"
    with pytest.raises(StaleManifestError, match=message):
        ClipDataset(rows, PROCESSOR, training=True)[4]
    skipping = ClipDataset(rows, PROCESSOR, training=True, on_error="skip")
    assert skipping[4] is None and skipping.broken_videos() == [rows[4]["video"]]
    assert ClipDataset(rows, PROCESSOR, training=True, on_error="replace")[4]["pixel_values"].shape[1] == 4
    with pytest.raises(StaleManifestError):  # an evaluation stops
        ClipDataset(rows, PROCESSOR, training=False, on_error="skip")[4]
    check_shards(rows)
    # The neighbours are whole.
    assert [bool(ClipDataset(rows, PROCESSOR, training=True)[index]) for index in (3, 5)] == [True, True]


def test_an_inspection_finds_each_flipped_byte(pack):
    rows = without_checks(load_video_dataset(pack))["train"]
    for number in (2, 9):
        flip(rows[number]["shard"], rows[number]["offset"])
    found = inspect_videos(rows, num_workers=2, progress=False)
    assert [bool(video.error) for video in found] == [number in (2, 9) for number in range(16)]
    assert all(rows[number]["key"] in found[number].error for number in (2, 9))
    assert {video.num_frames for video in found} == {0, 8}
    assert find_repeated_clips({"train": rows}) == []
    with pytest.raises(ValueError, match="A manifest lists files"):
        check_can_list({"train": rows})


def test_a_video_that_is_not_in_the_pack(digits, tmp_path):
    data = shutil.copytree(digits, tmp_path / "data")
    min((data / "test").rglob("*.mp4")).write_bytes(b"no video")
    splits = load_video_dataset(write_pack(data, tmp_path / "pack"))
    broken = splits["test"][0]
    assert broken["shard"] is None and "cannot be" in broken["error"]
    with pytest.raises(VideoReadError, match=f"{broken['key']} is not in the pack, for it could not be read: .*0000"):
        open_video(broken)
    assert len(ClipDataset(splits["test"], PROCESSOR, training=False, on_error="skip").drop_broken()) == 7
    (error,) = (video.error for video in inspect_videos(without_checks(splits)["test"]) if video.error)
    assert "is not in the pack" in error
    names = splits["train"].features["label"].names
    of_files, of_pack = (describe_data("data", found, names) for found in (load_video_dataset(data), splits))
    assert of_files == of_pack
    with pytest.raises(ValueError, match="1 videos cannot be read"):
        readable_videos(splits, "error")
    kept, reasons = readable_videos(splits, "skip")
    assert len(kept["test"]) == 7 and len(reasons) == 1


@pytest.mark.parametrize("on_error", ["error", "skip", "replace"])
def test_a_training_does_not_begin_without_a_shard(pack, on_error):
    splits = load_video_dataset(pack)
    os.unlink(pack / "shard-00001.tar")
    with pytest.raises(
        StaleManifestError, match=r"shard-00001.tar does not exist, and \d+ rows of the data are in it"
    ):
        readable_videos(splits, on_error)
    with pytest.raises(StaleManifestError, match="shard-00001.tar, the shard of .*, does not exist. Copy the shard"):
        for row in all_rows(pack):
            open_video(row)


def test_a_shard_that_was_cut_off(pack, in_memory):
    row = all_rows(pack)[3]
    os.truncate(row["shard"], row["offset"] + row["size"] - 1)
    message = rf"gave {row['size'] - 1} bytes for {row['key']}, which has {row['size']} from byte {row['offset']}"
    with pytest.raises(StaleManifestError, match=message):
        open_video(row)
    with pytest.raises(StaleManifestError, match=r"shard-00000.tar has \d+ bytes, not the \d+"):
        check_shards(all_rows(pack))
    with fsspec.open(f"{in_memory}/shard-00000.tar", "wb") as file:
        file.write(b"short")
    with pytest.raises(StaleManifestError, match=f"gave 0 bytes for {row['key']}"):
        open_video(all_rows(in_memory)[3])
    with pytest.raises(StaleManifestError, match="shard-00000.tar has 5 bytes"):
        check_shards(all_rows(in_memory))
    fsspec.filesystem("memory").rm("/bucket/pack/shard-00000.tar")
    with pytest.raises(StaleManifestError, match="the shard of .*, does not exist"):
        open_video(all_rows(in_memory)[3])
    with pytest.raises(StaleManifestError, match="shard-00000.tar does not exist"):
        check_shards(all_rows(in_memory))


def test_a_size_that_no_shard_has_takes_no_memory(pack):
    change_index(pack, 3, size=2**60)
    with pytest.raises(StaleManifestError, match=f"which has {2**60} from byte"):
        open_video(all_rows(pack)[3])


def test_a_shard_that_is_no_file_is_not_waited_for(pack):
    os.unlink(pack / "shard-00000.tar")
    os.mkfifo(pack / "shard-00000.tar")
    with pytest.raises(StaleManifestError, match="shard-00000.tar is a FIFO"):
        open_video(all_rows(pack)[0])


@pytest.mark.parametrize(
    "name",
    [
        "../x.tar",
        "a/../../x.tar",
        "/etc/passwd",
        "file:///etc/passwd",
        "s3://b/x.tar",
        "a::b.tar",
        "./x.tar",
        "",
        "a//b",
    ]
    + ["..", ".hidden.tar", "x.tar\n", "a\\b.tar"],
)
def test_an_index_reads_nothing_outside_its_folder(pack, name):
    change_index(pack, 2, shard=name)
    with pytest.raises(
        ValueError, match="index.parquet, row 2: shard is .*; (the name of a file in the folder|a text)"
    ):
        load_video_dataset(pack)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"offset": None}, "row 2: offset is None; a place in the shard is expected, from 0 on"),
        ({"offset": -1}, "row 2: offset is -1; a place"),
        ({"size": None}, "row 2: size is None; a number of bytes"),
        ({"size": 0}, "row 2: size is 0; a number of bytes"),
        ({"sha256": None}, "row 2: sha256 is None; 64 hexadecimal digits"),
        ({"sha256": "0" * 63}, "row 2: sha256 is '0*'; 64 hexadecimal digits"),
        ({"shard": None}, "row 2: shard is None; only a row with an error has none"),
    ],
)
def test_a_wrong_index_is_refused(pack, values, message):
    change_index(pack, 2, **values)
    with pytest.raises(ValueError, match=message):
        load_video_dataset(pack)


@pytest.mark.parametrize("name", ["sha256", "size", "key"])
def test_an_index_without_a_column_is_refused(pack, name):
    pq.write_table(pq.read_table(pack / "index.parquet").drop_columns(name), pack / "index.parquet")
    with pytest.raises(ValueError, match=f"index.parquet has the columns shard and offset.*but no column {name}"):
        load_video_dataset(pack)
