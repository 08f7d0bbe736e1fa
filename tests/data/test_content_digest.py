import os

import pytest

from hf_video.data.manifest import content_digest


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
