"""The small detector of a golden, converted."""

import json
from pathlib import Path

from conversion import stmixer
from tests.testing.goldens import load_golden


def write_detector(folder: Path) -> Path:
    """The folder of the model, inside of `folder`. Its actions have names."""
    golden = load_golden("stmixer", "detector_inference")
    config, names, output = folder / "detector.json", folder / "actions.txt", folder / "detector"
    config.write_text(json.dumps({"ViT": golden.config["cfg.ViT"], "STM": golden.config["cfg.MODEL.STM"]}))
    names.write_text("".join(f"action {number}\n" for number in range(10)))
    words = [str(golden.folder / "checkpoint.pth"), str(output), "--task", "action-detection", "--labels", str(names)]
    stmixer.main([*words, "--original-config", str(config)])
    return output
