"""An index of videos: what its rows are, and that it follows the folder of the videos."""

import shutil

import numpy as np
import pytest

from hf_video.bulk import build_index
from hf_video.inference import IndexSettings, open_index
from tests.testing.files import files_of
from tests.testing.search_models import save_dual_encoder, write_videos


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_dual_encoder(tmp_path_factory.mktemp("models") / "dual")


@pytest.fixture
def videos(tmp_path):
    return write_videos(tmp_path / "videos")


def index(videos, model, folder, **options):
    return build_index(
        IndexSettings(videos=[str(videos)], model=str(model), output=str(folder), device="cpu", **options)
    )


def vectors_of(folder):
    """The vectors of an index by video and start, none of which is there twice."""
    found = open_index(folder)
    places = list(zip(found.rows["key"].to_pylist(), found.rows["start"].to_pylist(), strict=True))
    assert len(set(places)) == len(places)
    return dict(sorted(zip(places, found.vectors, strict=True)))


def test_windows_have_their_times(videos, model, tmp_path):
    index(videos, model, tmp_path / "index", window=2, stride=2, frame_sampling_rate=1)
    rows = open_index(tmp_path / "index").rows
    assert len(rows) == 6 * 4
    assert rows["start"].to_pylist()[:4] == [0, 0.5, 1, 1.5] and rows["end"].to_pylist()[:4] == [0.5, 1, 1.5, 2]


def test_files_are_added_and_removed(videos, model, tmp_path):
    index(videos, model, tmp_path / "index", part_size=4)
    before = vectors_of(tmp_path / "index")
    (videos / "1.mp4").unlink()
    shutil.copy(videos / "2.mp4", videos / "new.mp4")
    # What is not named stays, unless it is to be removed.
    assert index(videos / "new.mp4", model, tmp_path / "index", part_size=4).num_new == 1
    assert sorted(open_index(tmp_path / "index").rows["key"].to_pylist()) == ["0", "1", "2", "3", "4", "5", "new"]
    # The same model elsewhere is the same.
    shutil.copytree(model, tmp_path / "copy")
    assert index(videos, tmp_path / "copy", tmp_path / "index", part_size=4, prune=True).num_new == 0
    after = vectors_of(tmp_path / "index")
    assert [key for key, _ in after] == ["0", "2", "3", "4", "5", "new"]
    np.testing.assert_array_equal(after["5", 0.0], before["5", 0.0])


def test_broken_videos_are_rows_with_their_errors(videos, model, tmp_path):
    for name in ("2.mp4", "3.mp4"):
        (videos / name).write_bytes(b"not a video")
    result = index(videos, model, tmp_path / "index", part_size=2)
    assert result.num_videos == 6
    assert sorted(path for path, _ in result.errors) == [str(videos / f"{n}.mp4") for n in (2, 3)]
    assert "cannot be opened as a video" in result.errors[0][1]
    found = open_index(tmp_path / "index")
    assert sorted(found.rows["key"].to_pylist()) == ["0", "1", "4", "5"] and len(found.vectors) == 4
    for path in videos.iterdir():
        path.write_bytes(b"not a video")
    index(videos, model, tmp_path / "none")
    with pytest.raises(ValueError, match="has no clip of a video"):
        open_index(tmp_path / "none")


def test_a_folder_that_is_not_there_empties_no_index(videos, model, tmp_path):
    index(videos, model, tmp_path / "index")
    before = files_of(tmp_path / "index")
    for named in ([tmp_path / "vidoes"], [videos, tmp_path / "unmounted"]):
        settings = IndexSettings(videos=list(map(str, named)), model=str(model), output=str(tmp_path / "index"))
        with pytest.raises(FileNotFoundError, match=f"{named[-1]} does not exist"):
            build_index(settings)
    assert files_of(tmp_path / "index") == before
