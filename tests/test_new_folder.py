import pytest

from hf_video.io import new_folder


def fill(path):
    with new_folder(path) as folder:
        (folder / "inner").mkdir()
        (folder / "inner" / "a.txt").write_text("a")
        assert not (path / "inner").exists()


def test_a_folder_is_there_once_it_is_whole(tmp_path):
    fill(tmp_path / "some" / "new")
    assert (tmp_path / "some" / "new" / "inner" / "a.txt").read_text() == "a"
    assert [path.name for path in (tmp_path / "some").iterdir()] == ["new"]


def test_an_empty_folder_is_filled_where_a_disk_is_mounted_as_well(tmp_path, monkeypatch):
    for is_mounted in (False, True):
        target = tmp_path / str(is_mounted)
        target.mkdir()
        monkeypatch.setattr("os.path.ismount", lambda path, is_mounted=is_mounted: is_mounted)
        fill(target)
        assert [path.name for path in target.iterdir()] == ["inner"]
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_nothing_is_left_of_one_that_fails(tmp_path, error):
    with pytest.raises(error), new_folder(tmp_path / "new") as folder:
        (folder / "a.txt").write_text("a")
        raise error
    assert not list(tmp_path.iterdir())


def test_what_came_meanwhile_is_left_alone(tmp_path):
    with pytest.raises(OSError, match="not empty"), new_folder(tmp_path / "new"):
        (tmp_path / "new").mkdir()
        (tmp_path / "new" / "mine.txt").write_text("mine")
    assert [path.name for path in tmp_path.rglob("*")] == ["new", "mine.txt"]


def test_its_permissions_are_those_of_any_folder(tmp_path):
    (tmp_path / "other").mkdir()
    fill(tmp_path / "new")
    assert (tmp_path / "new").stat().st_mode == (tmp_path / "other").stat().st_mode
