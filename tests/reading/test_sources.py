"""What a source is, by its name or type."""

import io
from pathlib import Path

import numpy as np
import pytest

from hf_video.reading.sources import describe, is_url, kind_of


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        ("https://host/video.mp4", "address"),
        ("S3://bucket/video.mp4", "address"),
        ("zip://video.mp4::s3://bucket/videos.zip", "address"),
        ("rtsp://camera/1", "stream"),
        ("TCP://127.0.0.1:1?listen=1", "stream"),
        ("/dev/video99", "stream"),
        ("folder/a://b.mp4", "path"),
        ("C://video.mp4", "path"),
        ("video.mp4", "path"),
        (Path("video.mp4"), "path"),
        (str(Path(__file__).parent), "folder"),
        (Path(__file__).parent, "folder"),
        (b"1234", "bytes"),
        (io.BytesIO(), "file"),
        ([np.zeros((4, 4, 3), dtype=np.uint8)], "frames"),
    ],
)
def test_each_source_has_a_kind(source, kind):
    assert kind_of(source) == kind
    assert is_url(source) == (kind == "address" or (kind == "stream" and "://" in source))


def test_what_is_no_source_is_named():
    with pytest.raises(TypeError, match="not int"):
        kind_of(3)


def test_a_name_for_messages_keeps_paths_and_hides_keys():
    assert describe("https://me:secret@host/video.mp4?key=1") == "https://host/video.mp4?..."
    assert describe(Path("what?/video.mp4")) == "what?/video.mp4"
    assert describe(b"1234") == "The video of 4 bytes"
