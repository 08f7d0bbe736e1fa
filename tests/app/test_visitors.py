"""Files and work of an open page end with it."""

import pytest

from hf_video.app.visitors import Cancelled, Ticket, Visitors


@pytest.fixture
def visitors(tmp_path):
    return Visitors(tmp_path / "uploads")


@pytest.fixture
def upload(visitors):
    """An uploaded video, where Gradio puts it."""

    def make(name="clip.mp4"):
        file = visitors.folder / f"hash of {name}" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"video")
        return file

    return make


def test_the_files_of_a_page_go_with_it(visitors, upload):
    visitors.keep("ann", upload("ann.mp4"))
    visitors.keep("bob", upload("bob.mp4"))
    results = [visitors[name].new_folder() / "heat_map.mp4" for name in ("ann", "bob")]
    for result in results:
        result.write_bytes(b"result")
    visitors.leave("ann")
    left = sorted(path.name for path in visitors.folder.rglob("*") if path.is_file())
    assert left == ["bob.mp4", "heat_map.mp4"] and results[1].exists()
    visitors.close()
    assert list(visitors.folder.iterdir()) == []


def test_a_video_that_was_replaced_is_removed(visitors, upload):
    first, second = upload("first.mp4"), upload("second.mp4")
    visitors.keep("ann", first)
    visitors.keep("ann", first)
    assert first.exists()
    visitors.keep("ann", second)
    assert second.exists() and not first.parent.exists()
    visitors.keep("ann", None)
    assert not second.exists()


def test_two_pages_share_the_file_of_one_video(visitors, upload):
    file = upload()
    visitors.keep("ann", file)
    visitors.keep("bob", file)
    visitors.leave("ann")
    assert file.exists()
    visitors.leave("bob")
    assert not file.exists()


def test_a_file_elsewhere_is_never_removed(visitors, tmp_path):
    other = tmp_path / "mine.mp4"
    other.write_bytes(b"video")
    visitors.keep("ann", other)
    visitors.leave("ann")
    assert other.exists()


def test_work_ends_with_the_page_and_with_its_video(visitors, upload):
    endings = {
        lambda: visitors.keep("ann", upload()): True,
        lambda: visitors["ann"].cancel_outdated(model="other"): True,
        lambda: visitors["ann"].cancel(): False,
        lambda: visitors.leave("ann"): False,
    }
    for end, is_outdated in endings.items():
        with visitors["ann"].work(None, "model") as ticket, visitors["bob"].work(None, "model") as other:
            ticket.check()
            end()
            with pytest.raises(Cancelled):
                ticket.check()
            assert ticket.is_outdated is is_outdated
            other.check()


def test_work_on_a_video_goes_on_when_the_page_tells_later_that_it_holds_it(visitors, upload):
    first, second = upload("first.mp4"), upload("second.mp4")
    visitors.keep("ann", first)
    with visitors["ann"].work(first, "model") as old, visitors["ann"].work(second, "model") as ticket:
        assert not visitors.keep("ann", second)  # what the work has shown stays
        ticket.check()
        with pytest.raises(Cancelled):
            old.check()
        visitors["ann"].cancel_outdated(model="model")
        ticket.check()
    assert visitors.keep("ann", None)
    assert visitors.keep("ann", second)


def test_a_page_is_busy_while_it_works(visitors):
    visitor = visitors["ann"]
    with visitor.work(None, "a"), visitor.work(None, "b"):
        assert visitor.is_busy
    assert not visitor.is_busy
    with visitor.work(None, "a") as later:
        later.check()


def test_what_was_cancelled_is_closed():
    ticket, closed = Ticket(None, "model"), []

    def numbers():
        try:
            yield from range(10)
        finally:
            closed.append(True)

    seen = []
    with pytest.raises(Cancelled):
        for number in ticket.until_cancelled(numbers()):
            seen.append(number)
            if number == 3:
                ticket.cancel()
    assert seen == [0, 1, 2, 3] and closed == [True]
