"""The small model of the golden of zero-shot retrieval, converted."""

import json
from pathlib import Path

from transformers import BertTokenizer

from conversion import videomamba_text
from tests.testing.goldens import load_golden

GOLDEN = load_golden("video_text", "zero_shot_retrieval")


def write_retrieval_model(folder: Path) -> Path:
    """The folder of the model, inside of `folder`."""
    BertTokenizer({word: number for number, word in enumerate(GOLDEN.config["vocab"])}).save_pretrained(
        folder / "bert"
    )
    (folder / "original.json").write_text(json.dumps(GOLDEN.config))
    options = ["--original-config", str(folder / "original.json"), "--tokenizer", str(folder / "bert")]
    videomamba_text.main([str(GOLDEN.folder / "checkpoint.pth"), str(folder / "model"), *options])
    return folder / "model"
