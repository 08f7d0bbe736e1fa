from hashlib import sha256

import datasets
import pytest

from hf_video.data.video_listing import list_videos
from tests.testing.videos import encode_video, make_frames


@pytest.fixture
def folder(tmp_path):
    """Files that are listed by name alone, and a folder of frames."""
    for name in ("a.mp4", "day 1/b.c.webm", "day 1/ünï.mp4", ".hidden.mp4", "notes.txt", "frames/001.jpg"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    return tmp_path


def ids(*words, **options):
    return [video.id for video in list_videos([str(word) for word in words], **options)]


def test_files_urls_and_folders(folder):
    assert ids(folder / "day 1" / "b.c.webm", folder / "a.mp4") == ["b.c", "a"]
    assert ids("https://example.com/films/the%20one.mp4?key=1") == ["the one"]
    assert ids(folder) == ["a", "frames", "day 1/b.c", "day 1/ünï"]
    assert ids(folder / "frames") == ["frames"]
    assert ids(folder / "missing.mp4") == ["missing"]


def test_a_video_is_listed_once_and_two_of_a_name_are_refused(folder):
    assert ids(folder / "a.mp4", folder / "day 1" / ".." / "a.mp4") == ["a"]
    (folder / "day 1" / "a.mp4").touch()
    with pytest.raises(ValueError, match="a.mp4 and .*day 1/a.mp4 would both be called 'a': rename one of them"):
        list_videos([str(folder / "a.mp4"), str(folder / "day 1" / "a.mp4")])
    assert ids(folder)[-2:] == ["day 1/b.c", "day 1/ünï"] and "day 1/a" in ids(folder)
    with pytest.raises(ValueError, match="empty has neither videos nor JPEG or PNG frames"):
        (folder / "empty").mkdir()
        list_videos([str(folder / "empty")])


def test_videos_that_differ_in_the_suffix_alone_keep_it(folder):
    (folder / "a.mkv").touch()
    assert ids(folder) == ["a.mkv", "a.mp4", "frames", "day 1/b.c", "day 1/ünï"]
    assert ids(folder / "a.mp4", folder / "a.mkv") == ["a.mp4", "a.mkv"]
    (folder / "list.csv").write_text("path,label\na.mp4,x\na.mkv,y")
    assert ids(folder / "list.csv") == ["a.mp4", "a.mkv"]


def test_lists_name_whole_videos_by_their_paths(folder):
    rows = ["path,label,start,end", "a.mp4,x,0,1", "a.mp4,y,1,2", "day 1/b.c.webm,x,,"]
    (folder / "list.csv").write_text("\n".join(rows))
    assert ids(folder / "list.csv") == ["a", "day 1/b.c"]
    (folder / "other").mkdir()
    (folder / "list.csv").rename(folder / "other" / "train.csv")
    assert ids(folder / "other" / "train.csv", video_root=folder) == ["a", "day 1/b.c"]
    assert ids(folder / "other", video_root=folder) == ["a", "day 1/b.c"]
    (folder / "day 1" / "a.mp4").touch()
    (folder / "other" / "list.csv").write_text(f"path\n{folder}/a.mp4\n{folder}/day 1/a.mp4\n")
    assert ids(folder / "other" / "list.csv") == ["a", "day 1/a"]


def test_videos_that_a_data_set_stores(tmp_path):
    video = encode_video(tmp_path / "a.mp4", make_frames(3))
    rows = {"video": [{"bytes": open(video, "rb").read(), "path": None}] * 2, "label": [0, 1]}
    columns = {"video": datasets.Video(), "label": datasets.ClassLabel(names=["x", "y"])}
    datasets.Dataset.from_dict(rows, features=datasets.Features(columns)).save_to_disk(tmp_path / "saved")
    first, second = list_videos([str(tmp_path / "saved")])
    stored = second.open().read()
    assert first.id != second.id and stored == open(video, "rb").read()
    assert first.sha256 == sha256(stored).hexdigest()


def test_a_folder_of_videos_has_no_video_root(folder):
    with pytest.raises(ValueError, match="holds the videos themselves"):
        ids(folder, video_root=folder)
    with pytest.raises(FileNotFoundError, match="There is no folder /nonexistent"):
        ids(folder, video_root="/nonexistent")
