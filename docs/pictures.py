"""
Runs the commands of pages on small videos, prints what each says, and keeps the pictures that they draw.

    python -m docs.pictures [PAGE ...] [--model hf_video_demo/model]

`make demo pictures` calls it. Where a page shows what a command prints, it is this output, shortened where there is an
ellipsis. `my_videos` holds digits that go around a square, and `my_model` knows their rounds: it is the model of the
demo. On the page about timelines they are the motions and the model of `benchmarks/timeline.py`, trained for a
shorter time. `my_blip` has random weights. All else has the name and the size that it has in the tests of the pages.
"""

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from helpers.event_training import NUM_FRAMES, make_processor, make_window_classifier, read_windows, train
from helpers.event_video import write_event_video, write_ground_truth
from PIL import Image
from timeline import TRAINING_STRIDE
from transformers import set_seed

from hf_video.demo import write_moving_digits
from tests.documents.blocks import commands, read_blocks
from tests.documents.world import make_files, remove_outputs
from tests.hub_server.fixtures import client_environment
from tests.hub_server.server import HubServer, User

DOCS = Path(__file__).parent
MAX_BYTES, WIDTH = 120_000, 1000
TRAINING_SECONDS, EPOCHS, MATCH_SECONDS, LECTURE_SECONDS = 900, 12, 40, 90
# Page, file in the folder of its commands, name in `docs/`.
PICTURES = [
    ("tour", "street/timeline.png", "example_timeline.png"),
    ("tour", "why/heat_maps.png", "example_heat_maps.png"),
    ("fine_tune", "my_model/report/curves.png", "training_curves.png"),
    ("timeline", "match_timeline/timeline.png", "timeline.png"),
    ("explain", "why_pouring/heat_maps.png", "heat_maps.png"),
]
OTHERS = ["use", "long_video", "pretraining", "publish", "bulk", "export", "convert"]
# `my_model` stays what it is, and what needs the extras or takes minutes is left out.
SKIPPED = {"train", "app", "demo", "instructblip", "ray"}
TOKEN = "hf_user"


def make_digits(files: Path, model: Path) -> None:
    """Replaces videos and model of the tests."""
    for name in ("my_videos", "my_model"):
        shutil.rmtree(files / name)
    shutil.copytree(model, files / "my_model", ignore=shutil.ignore_patterns("checkpoint-*"))
    videos = write_moving_digits(files / "my_videos", train_per_class=10, test_per_class=5)
    for name in ("a_video.mp4", "pouring.mp4"):
        shutil.copy(videos / "test" / "down-left" / "0000.mp4", files / name)
    write_event_video(files / "lecture.mp4", seconds=LECTURE_SECONDS, seed=1, held_out=True)


def make_motions(files: Path) -> None:
    """Replaces them once more, for the page about timelines."""
    shutil.rmtree(files / "my_model")
    train_on_motions(files, files / "my_model")
    events = write_event_video(files / "match.mp4", seconds=MATCH_SECONDS, seed=0, held_out=True)
    write_ground_truth(files / "truth.json", {"match": (MATCH_SECONDS, events)})


def train_on_motions(folder: Path, model_folder: Path) -> None:
    """Saves a model of straight motions."""
    set_seed(0)
    video = folder / "training.mp4"
    events = write_event_video(video, seconds=TRAINING_SECONDS, seed=0, held_out=False)
    windows = read_windows(video, events, NUM_FRAMES, TRAINING_STRIDE)
    train(make_window_classifier(), *windows, EPOCHS).save_pretrained(model_folder)
    make_processor().save_pretrained(model_folder)


def keep_picture(source: Path, target: Path) -> None:
    """In few colours, and no wider than a page."""
    with Image.open(source) as picture:
        small = picture.convert("RGB")
        small.thumbnail((WIDTH, 10 * WIDTH), Image.Resampling.LANCZOS)
        small.quantize(256, dither=Image.Dither.NONE).save(target, optimize=True)
    if (size := target.stat().st_size) > MAX_BYTES:
        raise SystemExit(f"{target} has {size} bytes, more than {MAX_BYTES}.")
    print(f"{target}: {size // 1000} kB")


def run_page(page: str, folder: Path, variables: dict[str, str]) -> None:
    """Runs the commands of a page in a folder, and prints what they say."""
    for block in read_blocks(f"docs/{page}.md"):
        for words in commands(block.text) if block.language == "bash" and not block.mark else ():
            if words[0] == "hf-video" and not SKIPPED & set(words):
                print(f"\n{block.place}: {shlex.join(words)}", flush=True)
                remove_outputs(words, folder)
                program = [sys.executable, "-m", "hf_video.cli", *words[1:]]
                subprocess.run(program, cwd=folder, env=variables, stderr=subprocess.STDOUT, check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = list(dict.fromkeys([page for page, _, _ in PICTURES] + OTHERS))
    parser.add_argument("pages", nargs="*", metavar="PAGE", help=f"of {', '.join(names)} (default: all)")
    parser.add_argument("--model", type=Path, default=Path("hf_video_demo/model"), help="default: %(default)s")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, HubServer(Path(name) / "hub", {TOKEN: User("user")}) as server:
        folder = Path(name)
        (folder / "files").mkdir()
        files = make_files(folder / "files")
        make_digits(files, args.model)
        variables = {
            **os.environ,
            **client_environment(server, TOKEN),
            "HF_HOME": str(folder / "home"),
            "COLUMNS": "120",
        }
        for page in args.pages or names:
            place = Path(shutil.copytree(files, folder / page))
            if page == "timeline":
                make_motions(place)
            run_page(page, place, variables)
            for of, path, target in PICTURES:
                if of == page:
                    keep_picture(place / path, DOCS / target)


if __name__ == "__main__":
    main()
