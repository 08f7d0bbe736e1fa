"""Where the plain reader, which travels with a processor, and `hf_video.reading` differ: docs/plain_reader.md.

python -m tests.processing.plain_reading_table > docs/plain_reader.md
"""

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

from hf_video.processing.plain_video_reading import read_video as read_plainly
from hf_video.reading import read_video
from tests.reading.test_video_corpus import UNSTEADY
from tests.testing.video_corpus import damaged_variants, readable_variants

HEAD = """# Without hf_video

A processor from the Hub reads videos with `hf_video.reading` if hf_video is installed. Otherwise it uses
`plain_video_reading.py`, which lies beside it in the repository. This reader decodes a file in order, with PyAV or
torchcodec, and needs only one of them: `pip install av`. It reads files, bytes, open files and folders of frames, but
no URLs. It relies on FFmpeg: there are no limits of size and time, playlists are not refused, and damage that the
decoder skips is not reported.

The table compares the frames of both readers with PyAV, over all files of `tests/testing/video_corpus.py`. Only
hf_video turns mirrored videos upright; no encoder of this corpus makes them.
"""
OUTCOMES = ("the same frames", "refused by both", "refused only by hf_video", "refused only by the plain reader")
OTHER = "other frames"


def compare(data: bytes) -> str:
    """What both readers give for all frames of a file, in words."""
    ours, plain = _read(read_video, data), _read(read_plainly, data)
    if ours is None or plain is None:
        return OUTCOMES[1 + (plain is not None) + 2 * (ours is not None)]
    return OUTCOMES[0] if np.array_equal(ours, plain) else OTHER


def count() -> dict[str, tuple[Counter[str], list[str]]]:
    """How often each outcome is found for each kind of file, and the files of which hf_video alone is exact."""
    rows: dict[str, tuple[Counter[str], list[str]]] = {}
    variants = [("whole", *variant) for variant in readable_variants()]
    variants += [
        (name.rpartition(", ")[2].split()[0], name, data) for name, data in damaged_variants() if name not in UNSTEADY
    ]
    for kind, name, data in variants:
        counts, exact = rows.setdefault(kind, (Counter(), []))
        outcome = compare(data)
        counts[outcome] += 1
        if kind == "whole" and outcome != OUTCOMES[0]:
            exact.append(f"{name}: {outcome}")
    return rows


def _read(read: Callable[..., Any], data: bytes) -> np.ndarray | None:
    try:
        return read(data)[0]
    except (OSError, ValueError):
        return None


def main() -> None:
    names = {
        "whole": "whole",
        "frame": "bits of a frame",
        "header": "bits of a frame's header",
        "index": "bits beside frames",
    }
    names |= {"cut": "cut off", "zeros": "a frame of zeros"}
    rows = count()
    columns = (*OUTCOMES, OTHER)
    print(HEAD)
    print(f"| damage | {' | '.join(columns)} |")
    print("|---" * (len(columns) + 1) + "|")
    for kind, (counts, _) in rows.items():
        print(f"| {names[kind]} | {' | '.join(str(counts[column]) for column in columns)} |")
    exact = rows["whole"][1]
    print(
        "\nWhole files that only hf_video reads exactly:" if exact else "\nFor whole files, both give the same frames."
    )
    print("".join(f"\n- {line}" for line in exact), end="" if not exact else "\n")


if __name__ == "__main__":
    main()
