"""
Pictures of the app for `docs/app.md`: classes, a timeline and heat maps.

    make demo screenshots        # five minutes after the demo; or: make screenshots MODEL=/path/to/model/of/the/demo

Classes and heat maps are those of the demo's model, which knows rounds of a digit. The timeline is that of the model
of `benchmarks/timeline.py`, which knows where a digit moves, trained for a shorter time. The app is driven in the
machine's Chromium; `app_classes.png`, `app_timeline.png` and `app_heat_maps.png` are written. With `--width 390` they
are as on a phone.
"""

import argparse
import shutil
import tempfile
from pathlib import Path

import av
import numpy as np
from helpers.event_video import write_event_video
from PIL import Image

from hf_video.demo import write_moving_digits
from tests.app.app_server import AppServer
from tests.app.chromium import start_chromium
from tests.app.visits import Visit
from tests.testing.videos import encode_video

from .pictures import train_on_motions

MAX_BYTES = 250_000
FPS, ENLARGED = 12, 6
SECONDS = 40


def write_round(folder: Path) -> str:
    """A video of a digit on a round, which the model of the demo was not trained on; enlarged."""
    digits = write_moving_digits(folder / "digits", train_per_class=1, test_per_class=1)
    frames = read_frames(next((digits / "test" / "down-left").glob("*.mp4")))
    return encode_video(folder / "round.mp4", frames, fps=FPS)


def read_frames(path: Path) -> np.ndarray:
    """(num_frames, height, width, 3) uint8, enlarged."""
    with av.open(str(path)) as container:
        frames = np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)])
    return frames.repeat(ENLARGED, axis=1).repeat(ENLARGED, axis=2)


def draw(visit: Visit, path: Path) -> None:
    """Writes the page as it is, in few colours."""
    visit.page.mouse.move(0, 0)
    visit.page.wait_for_timeout(500)
    visit.page.screenshot(path=path, full_page=True)
    with Image.open(path) as picture:
        picture.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(path, optimize=True)
    if (size := path.stat().st_size) > MAX_BYTES:
        raise SystemExit(f"{path} has {size} bytes, more than {MAX_BYTES}.")
    print(f"{path}: {size // 1000} kB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="hf_video_demo/model", help="folder of the model; default: %(default)s")
    parser.add_argument("--motion-model", help="folder of a model of motions that is already trained")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent, help="folder of the pictures")
    parser.add_argument("--width", type=int, default=1100, help="width of the window in pixels; default: %(default)s")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, start_chromium() as browser:
        folder = Path(name)
        rounds, motions = folder / "digit-rounds", folder / "digit-motions"
        shutil.copytree(args.model, rounds, ignore=shutil.ignore_patterns("checkpoint-*"))
        if args.motion_model is None:
            train_on_motions(folder, motions)
        else:
            shutil.copytree(args.motion_model, motions)
        round_video, motion_video = write_round(folder), folder / "motions.mp4"
        write_event_video(motion_video, seconds=SECONDS, seed=0, held_out=True)
        server = AppServer([str(rounds), str(motions)], folder / "server")
        try:
            visit = Visit(browser, server.address, viewport={"width": args.width, "height": 700})
            visit.choose(round_video)
            visit.press("classify")
            visit.wait_until(visit.classes)
            draw(visit, args.output / "app_classes.png")
            visit.press("explain")
            visit.wait_until(lambda: visit.video_width("heat-map"))
            draw(visit, args.output / "app_heat_maps.png")
            visit.clear()
            visit.choose_model(motions.name)
            visit.choose(motion_video)
            visit.press("find-segments")
            visit.wait_until(lambda: visit.shows_picture("timeline-picture"))
            visit.segments()[2].row.click()
            draw(visit, args.output / "app_timeline.png")
            if visit.problems:
                raise SystemExit(f"The page had problems: {visit.problems}")
        finally:
            server.stop()


if __name__ == "__main__":
    main()
