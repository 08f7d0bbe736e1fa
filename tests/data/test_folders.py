"""What in a folder is a video: by its ending, and entries that look like videos and are not."""

import mimetypes
import re
from pathlib import Path

import pytest

from hf_video.data import inspect_videos, load_unlabelled_videos, load_video_dataset
from hf_video.data.checks import readable_videos
from hf_video.data.video_listing import list_videos
from hf_video.data.video_texts import load_video_texts
from tests.testing.files import ODD_FILES, make_odd_file
from tests.testing.videos import encode_video, make_frames

# What is named like a video, and is listed as one.
REASONS = {kind: reason for kind, reason in ODD_FILES.items() if kind != "folder"}


@pytest.fixture
def data(tmp_path):
    for name in ("run", "sit"):
        (tmp_path / name).mkdir()
        encode_video(tmp_path / name / "whole.mp4", make_frames(4, 32, 32))
    return tmp_path


def broken_of(data):
    videos = inspect_videos(load_video_dataset(data)["train"], progress=False)
    return {Path(video.path).name: video.error for video in videos if video.error}


def test_the_table_in_a_folder_of_videos_is_named(data):
    folder = data / "run"
    (folder / "clips.csv").write_text("path,label\nwhole.mp4,run\n")
    with pytest.raises(ValueError, match=f"If {folder / 'clips.csv'} is the table of these videos"):
        load_video_dataset(folder)


@pytest.mark.parametrize("kind", REASONS)
def test_what_is_named_like_a_video_is_listed_as_broken(data, kind):
    odd = make_odd_file(data / "run" / "odd.mp4", kind)
    (reason,) = broken_of(data).values()
    assert re.search(f"^{odd} {REASONS[kind]}", reason)
    assert len(load_video_dataset(data)["train"]) == 3


def test_training_refuses_them_or_goes_on_without(data):
    for kind in REASONS:
        make_odd_file(data / "run" / f"{kind}.mp4", kind)
    with pytest.raises(ValueError, match=f"^{len(REASONS)} videos"):
        readable_videos(load_video_dataset(data), "error")
    kept, broken = readable_videos(load_video_dataset(data), "skip")
    assert [Path(video).name for video in kept["train"]["video"]] == ["whole.mp4"] * 2
    assert len(broken) == len(REASONS)


def test_videos_without_a_class_are_left_out_with_a_warning(data, caplog):
    load_video_dataset(data)
    assert not caplog.records
    (data / "a.mp4").touch()
    (data / "b.webm").symlink_to("gone")
    assert len(load_video_dataset(data)["train"]) == 2
    (record,) = caplog.records
    assert "2 videos" in record.getMessage() and "a.mp4, b.webm" in record.getMessage()


@pytest.mark.parametrize("kind", ["FIFO", "link to nothing"])
def test_the_video_of_a_text_is_a_file(data, kind):
    odd = make_odd_file(data / "odd.mp4", kind)
    rows = data / "rows.jsonl"
    rows.write_text('{"video": "odd.mp4", "answer": "one"}')
    with pytest.raises(FileNotFoundError, match=f"{rows}, line 1: {odd}"):
        load_video_texts(rows)


ENDINGS = "mts m2ts ts asf gif 3gp m4v flv wmv ogv mpg vob mxf WebM".split()


def test_endings_of_videos_do_not_depend_on_the_machine(tmp_path, monkeypatch):
    monkeypatch.setattr(mimetypes, "guess_type", lambda *_, **__: (None, None))
    for name in ("run", "sit"):
        (tmp_path / name).mkdir()
        for ending in ENDINGS:
            (tmp_path / name / f"a.{ending}").touch()
    for rows in (load_video_dataset(tmp_path)["train"], load_unlabelled_videos(tmp_path)["train"]):
        assert sorted(Path(video).suffix[1:] for video in rows["video"]) == sorted(ENDINGS * 2)
    assert len(list_videos([str(tmp_path)])) == len(ENDINGS) * 2


def test_a_picture_hides_no_video(data):
    (data / "run" / "cover.jpg").touch()
    assert len(load_video_dataset(data)["train"]) == 2
    assert len(load_unlabelled_videos(data)["train"]) == 2
    assert [Path(video.source).name for video in list_videos([str(data / "run")])] == ["whole.mp4"]


@pytest.mark.parametrize("load", [load_video_dataset, load_unlabelled_videos, lambda path: list_videos([str(path)])])
def test_what_is_not_taken_is_counted_and_named(data, load, caplog):
    (data / "run" / "notes.txt").touch()
    (data / "sit" / "song.mp3").touch()
    load(data)
    (record,) = caplog.records
    assert "2 files" in record.getMessage() and "run/notes.txt, sit/song.mp3" in record.getMessage()
