"""A manifest is written while videos are inspected, trusted where it is read, and compared with each file that is
read."""

import os
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from datasets import ClassLabel, Dataset, Features, Value, Video, concatenate_datasets

from hf_video.data import ClipDataset, load_video_dataset
from hf_video.data.inspection import check_can_list, iterate_inspected, write_manifest
from hf_video.data.manifest import StaleManifestError, without_checks
from hf_video.data.repeated_videos import find_repeated_clips
from hf_video.data.stored_videos import content_digest
from hf_video.data.video_listing import list_videos
from hf_video.demo import write_moving_digits
from hf_video.processing import VideoClipProcessor
from hf_video.reading import VideoReadError

PROCESSOR = VideoClipProcessor(num_frames=4, sampling_strategy="uniform", size=32, crop_size=32)


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data") / "digits"
    return write_moving_digits(folder, train_per_class=2, test_per_class=1, num_frames=8, image_size=32)


@pytest.fixture
def data(digits, tmp_path):
    """A copy of the digits with one broken video in the test split."""
    folder = shutil.copytree(digits, tmp_path / "data")
    min((folder / "test").rglob("*.mp4")).write_bytes(b"no video")
    return folder


def write(data: Path, file: Path, *, decoded: bool = True) -> Path:
    splits = without_checks(load_video_dataset(data))
    videos = iterate_inspected(concatenate_datasets([*splits.values()]), decode=decoded, digest=True, progress=False)
    base = data if data.is_dir() else data.parent
    write_manifest(file, splits, videos, base=base, decoded=decoded, folder=file.parent)
    return file


def make(file: Path, **columns: list) -> Path:
    pq.write_table(pa.table(columns), file)
    return file


def test_a_manifest_says_what_was_found(data, tmp_path):
    rows = pq.read_table(write(data, tmp_path / "videos.parquet")).to_pylist()
    assert len(rows) == 24 and len({row["key"] for row in rows}) == 24
    first, broken = rows[0], next(row for row in rows if row["error"])
    path = tmp_path / first["path"]
    assert path.is_file() and first["path"] == f"data/{first['key']}.mp4"
    assert (first["split"], first["label"]) == ("train", path.parent.name)
    assert (first["frames"], first["start"], first["end"]) == (8, None, None)
    assert first["duration"] == pytest.approx(8 / 12) and first["checked"] == "decoded" and first["error"] is None
    assert first["size"] == path.stat().st_size and first["content"] == content_digest(path)
    assert broken["split"] == "test" and "cannot be" in broken["error"] and broken["frames"] is None


def test_it_is_read_as_the_data_that_it_was_made_of(data, tmp_path):
    folder, manifest = load_video_dataset(data), load_video_dataset(write(data, tmp_path / "videos.parquet"))
    for name, split in folder.items():
        assert manifest[name].select_columns(split.column_names)[:] == split[:]
        assert {column: manifest[name].features[column] for column in split.features} == split.features
    names = folder["train"].features["label"].names[::-1]
    assert load_video_dataset(tmp_path / "videos.parquet", labels=names)["test"]["label"][0] == 7


def test_clips_with_several_labels_and_segments_keep_them(digits, tmp_path):
    video, other = sorted(map(str, (digits / "train").rglob("*.mp4")))[:2]
    rows = [f"{video},a;b,0,0.3", f"{video},b,0.3,", f"{video},b,0.3,", f"{other},,,", f"{other},a,,"]
    (tmp_path / "list.csv").write_text("\n".join(["path,labels,start,end", *rows]))
    manifest = write(tmp_path / "list.csv", tmp_path / "videos.parquet")
    expected, found = load_video_dataset(tmp_path / "list.csv")["train"], load_video_dataset(manifest)["train"]
    assert found.select_columns(expected.column_names)[:] == expected[:]
    name = Path(video).stem
    keys = ["#t=0.0,0.3", "#t=0.3,", "#t=0.3,#2", "#t=,", "#t=,#2"]
    assert found["key"][:] == [
        f"{name}{key}" if row < 3 else f"{Path(other).stem}{key}" for row, key in enumerate(keys)
    ]


def test_videos_of_one_name_have_different_keys(digits, tmp_path):
    video = min((digits / "train").rglob("*.mp4"))
    for name in ("one/0.mp4", "two/0.mp4", "one/0.mkv"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(video, tmp_path / name)
    for folder in ("far/a", "far/b"):
        (tmp_path / folder).mkdir(parents=True)
        shutil.copy(video, tmp_path / folder / "9.mp4")
    base = tmp_path / "lists"
    base.mkdir()
    paths = ["../one/0.mp4", "../two/0.mp4", "../one/0.mkv", "../far/a/9.mp4", "../far/b/9.mp4"]
    (base / "list.csv").write_text("\n".join(["path,label", *(f"{path},{n % 2}" for n, path in enumerate(paths))]))
    keys = load_video_dataset(write(base / "list.csv", base / "videos.parquet"))["train"]["key"][:]
    assert len(set(keys)) == 5


def test_no_video_is_looked_at_before_it_is_read(data, tmp_path):
    manifest = write(data, tmp_path / "videos.parquet")
    shutil.rmtree(data)
    splits = load_video_dataset(manifest)
    assert len(splits["train"]) == 16 and find_repeated_clips(splits) == []
    clips = ClipDataset(splits["test"], PROCESSOR, training=False, on_error="skip").drop_broken()
    assert len(clips) == 7 and len(clips.broken_videos()) == 1
    with pytest.raises(StaleManifestError, match="0000.mp4 is listed in the manifest, but .*inspect DATA --output"):
        clips[0]


def test_a_changed_file_is_found_where_it_is_read(data, tmp_path):
    splits = load_video_dataset(write(data, tmp_path / "videos.parquet"))
    first, second = splits["train"]["video"][:2]
    shutil.copy(second, first)
    with pytest.raises(StaleManifestError, match="is not the file that the manifest describes"):
        ClipDataset(splits["train"], PROCESSOR, training=True)[0]
    skipping = ClipDataset(splits["train"], PROCESSOR, training=True, on_error="skip")
    assert skipping[0] is None and skipping.broken_videos() == [first]
    with pytest.raises(StaleManifestError):  # also where an evaluation leaves broken videos out
        ClipDataset(splits["train"], PROCESSOR, training=False, on_error="skip").drop_broken()[0]
    for video in splits["train"]["video"]:
        os.unlink(video)
    replacing = ClipDataset(splits["train"], PROCESSOR, training=True, on_error="replace")
    with pytest.raises(VideoReadError, match="None of the 16 videos can be read.* is listed in the manifest, but"):
        replacing[0]


def test_only_what_was_not_decoded_is_decoded_before_an_evaluation(data, tmp_path, monkeypatch):
    asked = []
    found = "hf_video.data.clip_dataset.find_broken"
    for decoded, expected in ((True, []), (False, [7])):
        test = load_video_dataset(write(data, tmp_path / f"{decoded}.parquet", decoded=decoded))["test"]
        monkeypatch.setattr(found, lambda dataset, **_: asked.append(dataset["video"][:]) or {})
        ClipDataset(test, PROCESSOR, training=False, on_error="skip").drop_broken()
        assert [len(set(videos) - {row["video"] for row in test if row["error"]}) for videos in asked] == expected


def test_a_known_error_is_raised_before_an_evaluation(data, tmp_path):
    test = load_video_dataset(write(data, tmp_path / "videos.parquet"))["test"]
    with pytest.raises(VideoReadError, match="0000.mp4"):
        ClipDataset(test, PROCESSOR, training=False).drop_broken()


def test_repeated_clips_are_found_by_the_digests_of_a_manifest(data, tmp_path):
    shutil.copy(min((data / "train").rglob("*.mp4")), data / "test" / "up-left" / "copy.mp4")
    manifest = write(data, tmp_path / "videos.parquet")
    shutil.rmtree(data)
    (clip,) = find_repeated_clips(load_video_dataset(manifest))
    assert clip.splits == ("train", "test") and len(clip.videos) == 2


def test_a_folder_of_manifests_named_after_splits(data, tmp_path):
    table = pq.read_table(write(data, tmp_path / "videos.parquet"))
    folder = tmp_path / "manifests"
    folder.mkdir()
    for split, name in (("train", "training"), ("test", "val")):
        part = table.filter(pa.compute.equal(table["split"], split)).drop_columns("split")
        pq.write_table(part, folder / f"{name}.parquet")
    splits = load_video_dataset(folder, video_root=tmp_path)
    assert {name: len(split) for name, split in splits.items()} == {"train": 16, "validation": 8}
    assert os.path.isfile(splits["train"][0]["video"])


def test_a_manifest_beside_class_folders_is_no_data_set(data):
    write(data, data / "videos.parquet")
    assert "checked" not in load_video_dataset(data)["train"].column_names
    assert {video.id for video in list_videos([str(data / "videos.parquet")])} == {
        path.relative_to(data).with_suffix("").as_posix() for path in data.rglob("*.mp4")
    }


def test_names_that_look_like_segments_stay_whole(digits, tmp_path):
    video = min((digits / "train").rglob("*.mp4"))
    for name in ("a#t=1", "a#t=2"):
        shutil.copy(video, tmp_path / f"{name}.mp4")
    (tmp_path / "list.csv").write_text("path,label,start,end\na#t=1.mp4,x,0,0.2\na#t=1.mp4,y,0.2,\na#t=2.mp4,y,,\n")
    manifest = write(tmp_path / "list.csv", tmp_path / "videos.parquet")
    assert load_video_dataset(manifest)["train"]["key"][:] == ["a#t=1#t=0.0,0.2", "a#t=1#t=0.2,", "a#t=2"]
    assert [video.id for video in list_videos([str(manifest)])] == ["a#t=1", "a#t=2"]


def test_a_table_of_another_program_needs_paths_and_labels(data, tmp_path):
    paths = [str(path) for path in sorted((data / "train").rglob("*.mp4"))][:2]
    file = make(tmp_path / "own.parquet", path=paths, label=[3, 11], shard=["a", "b"])
    train = load_video_dataset(file)["train"]
    assert train.features["label"].names == ["3", "11"] and "shard" not in train.column_names
    assert train["video"][:] == paths and len(ClipDataset(train, PROCESSOR, training=True)[0]["pixel_values"]) == 1


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"path": ["a"], "class": ["b"]}, "has the columns path, class; a manifest has at least path and label"),
        ({"path": ["a", ""], "label": ["b", "c"]}, "row 1: path is ''; a text is expected"),
        ({"path": ["a", "d"], "label": ["b", None]}, "row 1: label is None; a value is expected"),
        ({"path": ["a", "d"], "labels": [["b"], [None]]}, "a null or an empty text among labels"),
        ({"path": ["a", "d"], "label": ["b", "c"], "key": ["k", "k"]}, "the key 'k' several times"),
        ({"path": ["a", "d"], "label": ["b", "c"], "split": ["train", "rest"]}, "split is 'rest'; one of train"),
        ({"path": ["a", "d"], "label": ["b", "c"], "start": [0.0, -1.0]}, "row 1: start is -1.0; seconds from 0"),
        (
            {"path": ["a", "d"], "label": ["b", "c"], "start": [2.0, 0.0], "end": [2.0, 1.0]},
            "row 0: end is 2.0; a time",
        ),
        ({"path": ["a", "d"], "label": ["b", "c"], "end": ["soon", "late"]}, "column end of .* has the type string"),
        ({"path": ["a", "d"], "label": ["b", "b"]}, "has only one class, 'b'"),
        ({"path": ["a"], "label": ["b"], "labels": [["b"]]}, "has the columns label and labels"),
        ({"path": ["a", "d"], "label": ["b", "c"], "key": ["k", None]}, "row 1: key is None; a value is expected"),
        ({"path": ["a", "d"], "label": ["b", ""]}, "row 1: label is ''; a text is expected"),
        ({"path": ["a", "d"], "labels": [["b"], ["c", ""]]}, "an empty text among labels"),
        (
            {"path": ["a", "d"], "label": ["b", "c"], "error": ["", ""]},
            "error is ''; a text is expected, or null",
        ),
    ],
)
def test_wrong_tables_are_refused(tmp_path, columns, message):
    with pytest.raises(ValueError, match=message):
        load_video_dataset(make(tmp_path / "wrong.parquet", **columns))


def test_a_column_that_is_there_twice_is_refused(tmp_path):
    texts = pa.array(["a", "b"])
    pq.write_table(pa.table([texts, texts, texts], names=["path", "path", "label"]), tmp_path / "wrong.parquet")
    with pytest.raises(ValueError, match="wrong.parquet has the column path several times"):
        load_video_dataset(tmp_path / "wrong.parquet")


def test_columns_of_other_writers_are_read(tmp_path):
    plain = {"path": ["/a.mp4", "/b.mp4"], "label": ["x", "y"]}
    for kind in (pa.large_string(), pa.string_view(), pa.binary(), pa.dictionary(pa.int32(), pa.string())):
        columns = {name: pa.array(values).cast(kind) for name, values in plain.items()}
        # Not a number is how some programs write that a video has no known number of frames.
        train = load_video_dataset(make(tmp_path / "own.parquet", **columns, frames=[8.0, float("nan")]))["train"]
        assert (train["video"][:], train["label"][:]) == (plain["path"], [0, 1])


def test_a_data_set_of_videos_with_their_paths_is_no_manifest(digits, tmp_path):
    videos = sorted((digits / "train").rglob("*.mp4"))[:2]
    features = Features({"video": Video(), "path": Value("string"), "label": ClassLabel(names=["b", "a"])})
    stored = [{"bytes": video.read_bytes(), "path": None} for video in videos]
    columns = {"video": stored, "path": ["first.mp4", "second.mp4"], "label": [0, 1]}
    Dataset.from_dict(columns, features=features).to_parquet(tmp_path / "train.parquet")
    assert load_video_dataset(tmp_path)["train"]["bytes"][:] == [video.read_bytes() for video in videos]


def test_a_hidden_file_is_no_data_set(data):
    (data / "._videos.parquet").write_bytes(b"of a file system")
    assert len(load_video_dataset(data)["train"]) == 16


def test_the_file_of_a_split_has_no_rows_of_another(data, tmp_path):
    folder = tmp_path / "manifests"
    folder.mkdir()
    manifest = write(data, folder / "train.parquet")
    assert {*load_video_dataset(manifest)} == {"train", "test"}
    with pytest.raises(ValueError, match="train.parquet stands for the split train, but has rows of the split 'test'"):
        load_video_dataset(folder)


def test_an_error_of_any_characters_is_written(tmp_path):
    for label, name in (("one", b"\xff.jpg"), ("two", b"plain.jpg")):
        frames = tmp_path / "data" / label / "frames"
        frames.mkdir(parents=True)
        Path(frames, os.fsdecode(name)).write_bytes(b"no image")
    errors = pq.read_table(write(tmp_path / "data", tmp_path / "videos.parquet"))["error"].to_pylist()
    assert r"\udcff.jpg cannot be read" in errors[0] and "plain.jpg cannot be read" in errors[1]


def test_paths_count_from_the_folder_however_it_is_named(data, tmp_path):
    (tmp_path / "link").symlink_to(tmp_path, target_is_directory=True)
    for folder in (tmp_path / "data" / "..", tmp_path / "link"):
        paths = pq.read_table(write(data, folder / "videos.parquet"))["path"].to_pylist()
        assert {path.partition("/")[0] for path in paths} == {"data"}


def test_a_file_that_is_no_parquet_is_refused(tmp_path):
    (tmp_path / "wrong.parquet").write_text("path,label")
    with pytest.raises(ValueError, match="wrong.parquet cannot be read as Parquet"):
        load_video_dataset(tmp_path / "wrong.parquet")


def test_videos_inside_a_data_set_have_no_manifest(digits):
    splits = load_video_dataset(digits)
    stored = {"train": splits["train"].add_column("bytes", [b""] * len(splits["train"]))}
    with pytest.raises(ValueError, match="A manifest lists files"):
        check_can_list(stored)


def test_processes_read_the_videos_in_order_and_draw_nothing(data):
    rows = load_video_dataset(data)["test"]
    state = torch.get_rng_state()
    alone, together = (
        list(iterate_inspected(rows, digest=True, num_workers=number, progress=False)) for number in (1, 2)
    )
    assert alone == together and [video.path for video in alone] == rows["video"][:]
    assert sum(video.error is not None for video in alone) == 1
    assert torch.equal(torch.get_rng_state(), state)


def test_the_digest_is_that_of_the_content_wherever_it_lies(tmp_path):
    content = os.urandom(1_000_000)
    first, second, link = tmp_path / "a.mp4", tmp_path / "b.mkv", tmp_path / "c.mp4"
    first.write_bytes(content)
    second.write_bytes(content)
    link.symlink_to(first)
    assert content_digest(first) == content_digest(str(second)) == content_digest(link)
    assert len(content_digest(first)) == 64


@pytest.mark.parametrize("size", [0, 1, 16 * 1024, 64 * 1024])
def test_every_byte_of_a_small_file_counts(tmp_path, size):
    path = tmp_path / "a"
    content = bytearray(os.urandom(size))
    path.write_bytes(content)
    digests = {content_digest(path)}
    places = sorted({*range(0, size, 4001), size - 1} - {-1})
    for place in places:
        changed = bytearray(content)
        changed[place] ^= 1
        path.write_bytes(changed)
        digests.add(content_digest(path))
    path.write_bytes(content + b"\0")
    digests.add(content_digest(path))
    assert len(digests) == 2 + len(places)


def test_of_a_large_file_the_size_and_four_places_count(tmp_path):
    path = tmp_path / "a"
    size, block = 3_000_000, 16 * 1024
    content = bytearray(size)
    path.write_bytes(content)
    whole = content_digest(path)
    for place in (0, block - 1, (size - block) // 3, (size - block) * 2 // 3, size - block, size - 1):
        content[place] = 1
        path.write_bytes(content)
        assert content_digest(path) != whole, place
        content[place] = 0
    path.write_bytes(content + b"\0")
    assert content_digest(path) != whole


def test_a_folder_of_frames(tmp_path):
    for name in ("1.jpg", "2.jpg"):
        (tmp_path / name).write_text(name)
    before = content_digest(tmp_path)
    (tmp_path / "2.jpg").rename(tmp_path / "3.jpg")
    renamed = content_digest(tmp_path)
    (tmp_path / "3.jpg").write_text("other")
    assert len({before, renamed, content_digest(tmp_path)}) == 3


def test_what_cannot_be_read_is_an_error_at_once(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for name in ("fifo", "loop", "none"):
        with pytest.raises(OSError, match=name):
            content_digest(tmp_path / name)


def test_a_url_counts_by_its_name():
    first, second = (content_digest(f"https://example.com/{name}.mp4") for name in "ab")
    assert first != second and first == content_digest("https://example.com/a.mp4")
