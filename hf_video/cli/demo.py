"""Write videos of moving handwritten digits, train a small model on them, measure it on held-out digits and on
shuffled frames, and check that Transformers loads back exactly the same model.
"""

from __future__ import annotations

import shutil
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from hf_video.settings import Mark, Settings, setting, settings_of

from .command import command

if TYPE_CHECKING:
    from hf_video.training import TrainSettings


@dataclass(kw_only=True)
class DemoSettings(Settings):
    """Demo"""

    folder: Annotated[str, Mark(form="word")] = setting("hf_video_demo", "Folder for videos and model.", "DIR")
    fast: bool = setting(False, "Write a few videos and train one epoch, to check every step but the accuracy.")


TRAINING: dict[str, Any] = {"validation_fraction": 0.05, "device": "cpu", "dataloader_num_workers": 1}
VIDEOVIT: dict[str, Any] = {"num_frames": 8, "image_size": 48, "patch_size": 8, "hidden_size": 128}
VIDEOVIT |= {"num_hidden_layers": 4, "num_attention_heads": 4}
VIDEOVIT |= {"per_device_train_batch_size": 16, "learning_rate": 1e-3}
HELD_OUT_GOAL, SHUFFLED_LIMIT = 0.98, 0.225


@command(help="see it work: write videos, train, evaluate, save and reload, in a few minutes on a CPU")
def run(settings: DemoSettings) -> int:
    """Prints what it does, step by step. The exit code is 1 if a check fails."""
    from hf_video.demo import check_reloaded, shuffled_accuracy, write_moving_digits
    from hf_video.training import TrainSettings, train

    begin = time.monotonic()
    folder = Path(settings.folder)
    digits, model_dir = folder / "digits", folder / "model"

    print("1. Videos: digits move around a square, and only the order of the frames tells the class.")
    write_moving_digits(digits, **({"train_per_class": 4, "test_per_class": 2} if settings.fast else {}))

    training = TrainSettings(
        data=str(digits),
        output_dir=str(model_dir),
        **TRAINING,
        **VIDEOVIT,
        num_train_epochs=1 if settings.fast else 16,
        **({"overwrite_output_dir": True} if model_dir.exists() else {}),
    )
    # An environment need not be activated.
    program = "hf-video" if shutil.which("hf-video") else f"{sys.executable} -m hf_video.cli"
    print(f"\n2. Training: {program} {spell(training)}")
    try:
        trainer, report = train(training)
    except KeyboardInterrupt as interrupt:
        # A training speaks of --resume, which this command does not have.
        raise type(interrupt)("Run the same command again: it starts from the beginning.") from None

    print("\n3. The same model on clips with shuffled frames.")
    shuffled = shuffled_accuracy(trainer, digits)

    print("\n4. AutoModelForVideoClassification.from_pretrained loads the model.")
    accuracy = report["top1_accuracy"]
    checks = check_reloaded(trainer, model_dir, digits, accuracy)
    if not settings.fast:
        checks[f"held-out digits: {accuracy:.1%}, the goal is {HELD_OUT_GOAL:.0%}"] = accuracy >= HELD_OUT_GOAL
        checks[f"shuffled frames: {shuffled:.1%}, where guessing gives 12.5%"] = shuffled <= SHUFFLED_LIMIT
    for text, passed in checks.items():
        print(f"   {'ok    ' if passed else 'FAILED'}  {text}")

    print(f"""
Done in {time.monotonic() - begin:.0f} s.
   videos  {digits}
   model   {model_dir}
   report  {model_dir / "report" / "report.md"}

Ask the model for the class of a video:
   {program} predict {next((digits / "test").rglob("*.mp4"))} --model {model_dir}

Your own videos, one folder a class:
   {program} train my_videos --output-dir my_model
   {program} evaluate my_videos --model my_model
   {program} predict a_video.mp4 --model my_model""")
    return 0 if all(checks.values()) else 1


def spell(settings: TrainSettings) -> str:
    """The words of a command line that give settings their values."""
    known = settings_of(type(settings))
    spelled = (known[name].spell(getattr(settings, name)) for name in settings.given if name != "data")
    return " ".join(["train", settings.data, *spelled])
