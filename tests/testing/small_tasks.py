"""A command of each task, which trains a tiny model for a moment and measures it on seven videos."""

import json
from pathlib import Path

from tests.data.frame_videos import write_flashes
from tests.testing.answering import tiny_pair
from tests.testing.videos import encode_video, make_frames
from tests.training.captions_testing import WORDS, make_video_text_pair
from tests.training.detection_testing import make_detector, make_processor

# The numbers of the videos of each split.
SPLITS = {"train": range(4), "validation": range(4, 11)}
SIZES = ["--num-frames=4", "--image-size=32", "--hidden-size=16", "--num-hidden-layers=1"]


def write_small_tasks(folder: Path) -> None:
    """Writes the data and models of `small_commands`."""
    for name in ("lists", "persons", "captions", "answers", "flashes"):
        (folder / name).mkdir()
    for split, numbers in SPLITS.items():
        frames = {number: make_frames(8 + number) // (1 + number % 4) for number in numbers}
        paths = {number: encode_video(folder / f"{number}.mp4", each) for number, each in frames.items()}
        labels = [f"{path},{'ab'[number % 2]}" for number, path in paths.items()]
        persons = [
            f"{path},0.1,0.1,0.{person},0.{4 + person}{number % 10},0.9,{('sit', 'run', 'talk')[number % 3]},{person}"
            for number, path in paths.items()
            for person in range(1, 2 + number % 3)
        ]
        (folder / "lists" / f"{split}.csv").write_text("\n".join(["path,label", *labels]))
        header = "video,second,x1,y1,x2,y2,action,person"
        (folder / "persons" / f"{split}.csv").write_text("\n".join([header, *persons]))
        texts = {path: f"{WORDS[number % 8]} {WORDS[3 * number % 8]}" for number, path in paths.items()}
        captions = [{"video": path, "caption": text} for path, text in texts.items()]
        answers = [{"video": path, "question": "which", "answer": text} for path, text in texts.items()]
        (folder / "captions" / f"{split}.json").write_text(json.dumps(captions))
        (folder / "answers" / f"{split}.json").write_text(json.dumps(answers))
        (folder / "flashes" / split).mkdir()
        header, *rows = write_flashes(folder / "flashes" / split, len(numbers)).read_text().splitlines()
        times = [header, *(f"{folder / 'flashes' / split / row}" for row in rows)]
        (folder / "flashes" / f"{split}.csv").write_text("\n".join(times))
    models = {
        "answers": tiny_pair(),
        "captions": make_video_text_pair(),
        "persons": (make_detector(), make_processor()),
    }
    for name, parts in models.items():
        for part in parts:
            part.save_pretrained(folder / "models" / name)


def small_commands(folder: Path) -> dict[str, list[str]]:
    """The words of a command for each task, without its output folder."""
    answers, captions, persons = (f"--model={folder / 'models' / name}" for name in ("answers", "captions", "persons"))
    scratch = [*SIZES, "--num-attention-heads=2"]
    found = {
        "classification": ["train", folder / "lists", *scratch, "--model=scratch", "--num-clips=2"],
        "frames": ["train", folder / "flashes", *SIZES, "--fps=4", "--task=frames"],
        "detection": ["train", folder / "persons", persons, "--task=detection"],
        "retrieval": ["train", folder / "captions", captions, "--task=retrieval"],
        "answers": ["train-answers", folder / "answers", answers, "--num-frames=2", "--max-new-tokens=2"],
        "pretraining": ["pretrain", folder / "lists", *scratch, "--mask-ratio=0.5"],
    }
    common = ["--batch-size=2", "--max-steps=1", "--device=cpu", "--disable-tqdm"]
    return {name: [*map(str, words), *common] for name, words in found.items()}
