"""Packs hold the bytes of the videos that they were made of, in an order that follows from the data alone."""

import hashlib
import json
import os
import shutil
import tarfile
import threading
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import datasets
import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import Dataset, Features, Video

from hf_video.data import load_video_dataset
from hf_video.data.manifest import StaleManifestError, find_manifest, load_manifest
from hf_video.data.packs.pack_files import ShardWriter
from hf_video.data.packs.packing import pack_videos
from hf_video.data.stored_videos import content_digest, source_names
from hf_video.demo import write_moving_digits
from hf_video.io import StoredFolder
from hf_video.reading import probe_video, read_video

from ..video_files import encode_video, make_frames


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data") / "digits"
    return write_moving_digits(folder, train_per_class=2, test_per_class=1, num_frames=8, image_size=32)


def pack(data, folder, **options):
    """The result of packing, and the rows of the index."""
    base = Path(data) if isinstance(data, os.PathLike) else folder
    counts = pack_videos(load_video_dataset(data), StoredFolder(folder), base, progress=False, **options)
    with fsspec.open(f"{folder}/index.parquet") as file:
        return counts, pq.read_table(file).to_pylist()


def content(folder, row):
    with fsspec.open(f"{folder}/{row['shard']}") as file:
        file.seek(row["offset"])
        return file.read(row["size"])


def test_a_row_says_where_the_bytes_of_its_video_lie(digits, tmp_path):
    counts, rows = pack(digits, tmp_path / "pack", shard_size=10_000)
    listed = [row for split in load_video_dataset(digits).values() for row in split]
    assert (counts.num_videos, counts.num_rows, counts.broken) == (24, 24, {})
    assert len({row["shard"] for row in rows}) == counts.num_shards > 3
    assert counts.num_bytes == sum(row["size"] for row in rows)
    for row, source in zip(rows, listed, strict=True):
        video = Path(source["video"])
        assert content(tmp_path / "pack", row) == video.read_bytes()
        assert row["sha256"] == hashlib.sha256(video.read_bytes()).hexdigest()
        assert row["content"] == content_digest(video) and row["checked"] == "opened"
        assert (row["frames"], row["label"], row["path"]) == (8, video.parent.name, f"{row['key']}.mp4")
        assert row["duration"] == probe_video(video).duration
    assert sorted(path.name for path in (tmp_path / "pack").iterdir()) == [
        "index.parquet",
        *(f"shard-{number:05d}.tar" for number in range(counts.num_shards)),
    ]


def test_shards_are_of_about_the_size_that_is_asked_for(tmp_path):
    for number, size in enumerate((4, 5, 30, 1, 1, 9)):
        (tmp_path / "data" / "ab"[number % 2]).mkdir(parents=True, exist_ok=True)
        (tmp_path / "data" / "ab"[number % 2] / f"{number}.mp4").write_bytes(bytes(size))
    pack(tmp_path / "data", tmp_path / "pack", shard_size=10)
    # In the order of the listing: 4, 30, 1 of class a, and 5, 1, 9 of class b.
    assert len(list((tmp_path / "pack").glob("*.tar"))) == 4


def test_webdataset_reads_the_shards(digits, tmp_path):
    _, rows = pack(digits, tmp_path / "pack", shard_size=30_000)
    shards = sorted(map(str, (tmp_path / "pack").glob("*.tar")))
    samples = datasets.load_dataset("webdataset", data_files=shards, split="train", cache_dir=str(tmp_path / "cache"))
    names = load_video_dataset(digits)["train"].features["label"].names
    samples = samples.cast_column("mp4", Video(decode=False))
    for sample, row in zip(samples, rows, strict=True):
        assert sample["__key__"] == row["key"] == sample["json"]["key"]
        assert sample["mp4"]["bytes"] == content(tmp_path / "pack", row)
        assert names[sample["cls"]] == row["label"] == sample["json"]["segments"][0]["label"]


def test_names_in_capitals_stay_those_of_the_files(digits, tmp_path):
    """What a run knows of its data is made of them."""
    data = shutil.copytree(digits / "test", tmp_path / "data")
    for video in [*data.rglob("*.mp4")]:
        video.rename(video.with_suffix(".MP4"))
    pack(data, tmp_path / "pack")
    of_files, of_pack = (
        source_names(load_video_dataset(each)["train"]).to_pylist() for each in (data, tmp_path / "pack")
    )
    assert [str(Path(name).relative_to(data)) for name in of_files] == of_pack


def test_webdataset_reads_shards_of_segments(digits, tmp_path):
    """Some videos have one clip, others several: the members of all samples have the same names and types."""
    videos = sorted((digits / "train").rglob("*.mp4"))[:8]
    lines = [f"{video},{video.parent.name},," for video in videos]
    lines += [f"{videos[-1]},{videos[-1].parent.name},0.1,0.3", f"{videos[1]},{videos[1].parent.name},,0.2"]
    (tmp_path / "clips.csv").write_text("\n".join(["path,label,start,end", *lines]))
    pack(tmp_path / "clips.csv", tmp_path / "pack")
    samples = datasets.load_dataset(
        "webdataset",
        data_files=str(tmp_path / "pack" / "*.tar"),
        split="train",
        cache_dir=str(tmp_path / "cache"),
    )
    assert "cls" not in samples.features
    assert [len(sample["segments"]) for sample in samples["json"]] == [1, 2, 1, 1, 1, 1, 1, 2]
    times = [(segment["start"], segment["end"]) for segment in samples["json"][7]["segments"]]
    assert times == [(0, probe_video(videos[7]).duration), (0.1, 0.3)]


def test_a_member_has_one_dot_in_its_name_and_names_differ(tmp_path):
    path = encode_video(tmp_path / "v.mp4", make_frames(4, 32, 32))
    (tmp_path / "data").mkdir()
    names = ["a.b.mp4", "a_b.mp4", "ünï 1.MP4", "no suffix"]
    for name in names:
        shutil.copy(path, tmp_path / "data" / name)
    shutil.copy(path, tmp_path / "c.mp4")
    videos = [*names, "../c.mp4"]
    (tmp_path / "data" / "list.csv").write_text("path,label\n" + "".join(f"{name},{name[:2]}\n" for name in videos))
    _, rows = pack(tmp_path / "data" / "list.csv", tmp_path / "pack")
    assert [row["path"] for row in rows] == ["a_b.mp4", "a_b_2.mp4", "ünï 1.MP4", "no suffix.mp4", "c.mp4"]
    assert {content(tmp_path / "pack", row) for row in rows} == {Path(path).read_bytes()}


def test_clips_of_one_video_share_its_bytes(digits, tmp_path):
    first, second = sorted(map(str, (digits / "train").rglob("*.mp4")))[:2]
    lines = [f"{first},a;b,0,0.3", f"{second},b,,", f"{first},,0.3,", f"{first},b,,"]
    (tmp_path / "train.csv").write_text("\n".join(["path,labels,start,end", *lines]))
    (tmp_path / "validation.csv").write_text(f"path,labels,start,end\n{second},a,0.1,0.2\n")
    folder = tmp_path / "lists"
    folder.mkdir()
    for name in ("train", "validation"):
        (tmp_path / f"{name}.csv").rename(folder / f"{name}.csv")
    counts, rows = pack(folder, tmp_path / "pack", shard_size=1)
    assert (counts.num_videos, counts.num_rows, counts.num_shards) == (2, 5, 2)
    assert [row["split"] for row in rows] == ["train"] * 4 + ["validation"]
    assert [(row["labels"], row["start"], row["end"]) for row in rows] == [
        (["a", "b"], 0, 0.3),
        (["b"], None, None),
        ([], 0.3, None),
        (["b"], None, None),
        (["a"], 0.1, 0.2),
    ]
    assert len({(row["shard"], row["offset"]) for row in rows}) == 2
    with tarfile.open(tmp_path / "pack" / "shard-00000.tar") as tar:
        names = tar.getnames()
        assert [Path(name).suffix for name in names] == [".mp4", ".json"]
        segments = json.load(tar.extractfile(names[1]))["segments"]
    assert [(row["labels"], row["start"]) for row in segments] == [(["a", "b"], 0), ([], 0.3), (["b"], 0)]


def test_class_ids_are_those_of_the_source(digits, tmp_path):
    """A data set may declare its classes in any order, and classes without a clip."""
    videos = [str(path) for path in sorted((digits / "train").rglob("*.mp4"))[:4]]
    names = ["z", "unused", "a"]
    features = Features({"video": Video(), "label": datasets.ClassLabel(names=names)})
    rows = Dataset.from_dict(
        {"video": [{"path": None, "bytes": Path(v).read_bytes()} for v in videos], "label": [2, 0, 2, 0]},
        features=features,
    )
    _, found = pack(rows, tmp_path / "pack")
    assert [row["label"] for row in found] == ["a", "z", "a", "z"]
    assert [content(tmp_path / "pack", row) for row in found] == [Path(v).read_bytes() for v in videos]
    assert [row["content"] for row in found] == [content_digest(v) for v in videos]
    loaded = load_manifest(find_manifest(tmp_path / "pack" / "index.parquet"))["train"]
    assert (loaded.features["label"].names, loaded["label"][:]) == (names, [2, 0, 2, 0])


def test_a_manifest_is_trusted_and_its_stale_rows_are_broken(digits, tmp_path, monkeypatch):
    from .test_manifest import write

    data = shutil.copytree(digits, tmp_path / "data")
    broken, gone, changed = sorted((data / "train").rglob("*.mp4"))[:3]
    broken.write_bytes(b"no video")
    manifest = write(data, tmp_path / "videos.parquet", decoded=True)
    gone.unlink()
    changed.write_bytes(changed.read_bytes()[:-1] + b"x")
    opened = []
    monkeypatch.setattr("hf_video.data.packs.packing.probe_video", lambda *args: opened.append(args))
    counts, rows = pack(manifest, tmp_path / "pack")
    assert opened == [] and (counts.num_videos, counts.num_rows) == (21, 24)
    assert [row["error"] is None for row in rows] == [False] * 3 + [True] * 21
    assert "cannot be opened" in rows[0]["error"] and "it was changed" in rows[2]["error"]
    assert [*counts.broken] == [str(broken), str(gone), str(changed)]
    assert {(row["frames"], row["checked"]) for row in rows[3:]} == {(8, "decoded")}
    known = pq.read_table(manifest, columns=["content"]).column(0).to_pylist()
    assert [row["content"] for row in rows] == known


def test_videos_of_an_object_store_are_packed_into_another(digits, tmp_path):
    system = fsspec.filesystem("memory")
    paths = sorted((digits / "train").rglob("*.mp4"))[:4]
    for number, path in enumerate(paths):
        system.pipe_file(f"/source/{number}.mp4", path.read_bytes())
    videos = [f"memory://source/{name}.mp4" for name in (0, 1, 2, 3, "gone")]
    manifest = tmp_path / "videos.parquet"
    pq.write_table(pa.table({"path": videos, "label": ["a", "b", "a", "b", "a"]}), manifest)
    try:
        counts, rows = pack(manifest, "memory://target/pack", shard_size=1)
        assert (counts.num_videos, counts.num_shards) == (4, 5) and [*counts.broken] == ["memory://source/gone.mp4"]
        assert [content("memory://target/pack", row) for row in rows[:4]] == [path.read_bytes() for path in paths]
        assert rows[0]["content"] == content_digest("memory://source/0.mp4")
        assert pack(manifest, "memory://target/pack", shard_size=1)[0] is None
        assert not [name for name in system.find("/target") if ".packing" in name]
    finally:
        system.store.clear()


def test_videos_of_a_web_server_are_packed(digits, tmp_path):
    paths = sorted((digits / "test" / "left-up").glob("*.mp4"))
    handler = partial(QuietHandler, directory=digits / "test" / "left-up")
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        videos = [f"{url}/{paths[0].name}?key=secret", f"{url}/gone.mp4?key=secret"]
        pq.write_table(pa.table({"path": videos, "label": ["a", "b"]}), tmp_path / "videos.parquet")
        counts, rows = pack(tmp_path / "videos.parquet", tmp_path / "pack")
        server.shutdown()
    assert content(tmp_path / "pack", rows[0]) == paths[0].read_bytes() and rows[0]["path"].endswith(".mp4")
    assert "404" in rows[1]["error"] and rows[1]["shard"] is None
    assert not any(b"secret" in file for file in files_in(tmp_path / "pack").values())


def test_a_key_holds_no_secret_of_its_url_and_a_wrong_url_is_a_broken_video(tmp_path):
    urls = [
        "http://someone:secret@127.0.0.1:1/a/clip.mp4",
        "http://127.0.0.1:1/b/clip.mp4?signature=secret1",
        "http://127.0.0.1:1/b/clip.mp4?signature=secret2",
        "http://[::1/clip.mp4?signature=secret",
    ]
    pq.write_table(pa.table({"path": urls, "label": ["a", "b", "b", "b"]}), tmp_path / "videos.parquet")
    _, rows = pack(tmp_path / "videos.parquet", tmp_path / "pack")
    assert all(row["error"] for row in rows) and "not a valid address" in rows[3]["error"]
    keys = [row["key"] for row in rows]
    assert len(set(keys)) == 4 and keys[0] == "http://127.0.0.1:1/a/clip.mp4"
    assert not any(b"secret" in file for file in files_in(tmp_path / "pack").values())


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *args):
        pass


class Ended(BaseException):
    """The run is ended."""


@pytest.mark.parametrize("num_written", [0, 3, 4])
def test_finished_shards_are_never_written_again(digits, tmp_path, monkeypatch, num_written):
    whole, _ = pack(digits, tmp_path / "whole", shard_size=10_000)
    written, limit, writing = [], [num_written], StoredFolder.writing

    @contextmanager
    def interrupted(self, name):
        with writing(self, name) as file:
            yield file
            if len(written) == limit[0]:
                raise Ended
        written.append(name)

    monkeypatch.setattr(StoredFolder, "writing", interrupted)
    with pytest.raises(Ended):
        pack(digits, tmp_path / "pack", shard_size=10_000)
    limit[0] = -1
    pack(digits, tmp_path / "pack", shard_size=10_000)
    parts = [name for name in written if name.endswith(".tar.parquet")]
    assert len(parts) == len(set(parts)) == whole.num_shards
    assert files_in(tmp_path / "pack") == files_in(tmp_path / "whole")


def files_in(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_the_number_of_workers_changes_no_byte(digits, tmp_path):
    for number in (0, 2):
        pack(digits, tmp_path / str(number), shard_size=10_000, num_workers=number)
    assert files_in(tmp_path / "0") == files_in(tmp_path / "2")


def test_a_finished_pack_is_left_alone_and_others_are_refused(digits, tmp_path):
    data = shutil.copytree(digits, tmp_path / "data")
    pack(data, tmp_path / "pack")
    before = files_in(tmp_path / "pack")
    assert pack(data, tmp_path / "pack")[0] is None
    with pytest.raises(ValueError, match="has a pack of other settings .shard-size 1000000000, not 5"):
        pack(data, tmp_path / "pack", shard_size=5)
    with pytest.raises(ValueError, match="has other files .videos"):
        (tmp_path / "others").mkdir()
        (tmp_path / "others" / "videos").touch()
        pack(data, tmp_path / "others")
    os.utime(min(data.rglob("*.mp4")), ns=(0, 0))
    with pytest.raises(ValueError, match="of videos that were changed since"):
        pack(data, tmp_path / "pack")
    shutil.rmtree(data / "test")
    with pytest.raises(ValueError, match="of other data"):
        pack(data, tmp_path / "pack")
    assert files_in(tmp_path / "pack") == before


def test_a_pack_without_one_of_its_shards_is_not_finished(digits, tmp_path, monkeypatch):
    pack(digits, tmp_path / "whole", shard_size=10_000)
    shutil.copytree(tmp_path / "whole", tmp_path / "pack")
    (tmp_path / "pack" / "shard-00002.tar").unlink()
    with pytest.raises(StaleManifestError, match="shard-00002.tar does not exist, and .* into a new folder"):
        pack(digits, tmp_path / "pack", shard_size=10_000)
    with pytest.raises(StaleManifestError, match="shard-00002.tar does not exist"):
        pack(tmp_path / "pack", tmp_path / "other")
    assert not (tmp_path / "other").exists()

    def fail(*args):
        raise Ended

    with monkeypatch.context() as patch:
        patch.setattr("hf_video.data.packs.packing.write_index", fail)
        with pytest.raises(Ended):
            pack(digits, tmp_path / "begun", shard_size=10_000)
    (tmp_path / "begun" / "shard-00002.tar").unlink()
    pack(digits, tmp_path / "begun", shard_size=10_000)
    assert files_in(tmp_path / "begun") == files_in(tmp_path / "whole")


def test_what_is_read_back_must_be_what_was_written(digits, tmp_path, monkeypatch):
    add = ShardWriter.add

    def flip(self, *args):
        member = add(self, *args)
        self._tar.fileobj.flush()
        position = self._tar.fileobj.tell()
        self._tar.fileobj.seek(member.offset + 100)
        self._tar.fileobj.write(b"\xff\x00\xff")
        self._tar.fileobj.seek(position)
        return member

    with monkeypatch.context() as patch:
        patch.setattr(ShardWriter, "add", flip)
        with pytest.raises(OSError, match="shard-00000.tar is not what was written: .*mp4 differs"):
            pack(digits, tmp_path / "pack")
    counts, _ = pack(digits, tmp_path / "pack")
    assert counts.num_videos == 24


def test_a_full_disk_is_no_broken_video(digits, tmp_path, monkeypatch):
    def fail(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("hf_video.data.packs.packing.open_bytes", fail)
    with pytest.raises(OSError, match="No space left"):
        pack(digits, tmp_path / "pack")


def test_folders_of_frames_are_refused(digits, tmp_path):
    data = shutil.copytree(digits / "test", tmp_path / "data")
    (data / "left-up" / "frames").mkdir()
    (data / "left-up" / "frames" / "0.jpg").touch()
    with pytest.raises(ValueError, match="1 videos are folders of frames, and a pack holds files: .*frames. Encode"):
        pack(data, tmp_path / "pack")
    assert not (tmp_path / "pack").exists()


def test_long_videos_are_cut_and_segments_keep_their_frames(tmp_path):
    """Groups of 20 frames at 30 frames a second."""
    long, short = (encode_video(tmp_path / f"{n}.mp4", make_frames(n, 32, 32)) for n in (60, 12))
    avi = encode_video(tmp_path / "long.avi", make_frames(60, 32, 32), codec="mpeg4", codec_options={"g": "20"})
    clips = [
        (long, "a", "", ""),
        (long, "b", 0.667, 1.333),
        (long, "a", 1.0, 1.2),
        (short, "b", 0.1, 0.2),
        (avi, "a", "", ""),
    ]
    lines = ["path,label,start,end", *(",".join(map(str, clip)) for clip in clips)]
    (tmp_path / "list.csv").write_text("\n".join(lines))
    counts, rows = pack(tmp_path / "list.csv", tmp_path / "pack", max_duration=0.7)
    assert (counts.num_videos, counts.num_rows, counts.num_long) == (6, 7, 1)
    assert [row["key"] for row in rows[:4]] == [
        "60#t=0.0,0.667",
        "60#t=0.667,1.333#2",
        "60#t=1.333,2.0",
        "60#t=0.667,1.333",
    ]
    assert [(row["frames"], row["label"]) for row in rows[:3]] == [(20, "a")] * 3
    # The first segment ends at the time of a frame, which its piece has, too; the second lies in a piece of the whole.
    assert [rows[3]["frames"], rows[4]["frames"]] == [40, 20] and rows[4]["path"] == rows[1]["path"]
    read = [read_video(content(tmp_path / "pack", row), start=row["start"], end=row["end"])[0] for row in rows]
    np.testing.assert_array_equal(np.concatenate(read[:3]), read_video(long)[0])
    for frames, (path, _, start, end) in zip(read[3:6], clips[1:4], strict=True):
        np.testing.assert_array_equal(frames, read_video(path, start=start, end=end)[0])
    assert content(tmp_path / "pack", rows[6]) == Path(avi).read_bytes()
    assert pack(tmp_path / "list.csv", tmp_path / "again", max_duration=0.7)[1] == rows
    assert files_in(tmp_path / "pack") == files_in(tmp_path / "again")
