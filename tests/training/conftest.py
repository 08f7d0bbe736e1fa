import json

import pytest

from hf_video.data.video_texts import load_video_texts
from tests.testing.undrawn_reports import undrawn_reports
from tests.testing.videos import encode_video, make_frames

__all__ = ["undrawn_reports"]


@pytest.fixture(scope="session")
def answers(tmp_path_factory):
    """Rows of four videos with a question and an answer."""
    folder = tmp_path_factory.mktemp("answers")
    rows = []
    for number, (shade, answer) in enumerate([(20, "one"), (230, "two"), (60, "one"), (200, "two")]):
        encode_video(folder / f"{number}.mp4", make_frames(8) // 16 + shade)
        rows.append({"video": f"{number}.mp4", "question": "which digit", "answer": answer})
    (folder / "train.json").write_text(json.dumps(rows))
    return load_video_texts(folder / "train.json")["train"]
