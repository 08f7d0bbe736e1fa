"""
Pictures of the app for `docs/app.md`: classes, a timeline and heat maps of a model of moving digits.

    make demo screenshots        # a minute after the demo; or: make screenshots MODEL=/path/to/another/model

Starts the app, drives it in the machine's Chromium, and writes `app_classes.png`, `app_timeline.png` and
`app_heat_maps.png`. With `--width 390` they are as on a phone.
"""

import argparse
import tempfile
from pathlib import Path

import av
import numpy as np
from PIL import Image

from hf_video.data.moving_digits import MOTIONS, write_moving_digits
from tests.app.app_server import AppServer
from tests.app.chromium import start_chromium
from tests.app.visits import Visit
from tests.video_files import encode_video

MAX_BYTES = 250_000
FPS, ENLARGED = 12, 6


def write_videos(folder: Path) -> tuple[str, str]:
    """A video of one motion and one of four, of digits that the model of the demo was not trained on."""
    digits = write_moving_digits(folder / "digits", train_per_class=1, test_per_class=1) / "test"
    clips = [read_frames(next((digits / motion).glob("*.mp4"))) for motion in sorted(MOTIONS)[::2]]
    one = encode_video(folder / "digit.mp4", clips[0], fps=FPS)
    return one, encode_video(folder / "four_digits.mp4", np.concatenate(clips), fps=FPS)


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
    parser.add_argument("--output", type=Path, default=Path(__file__).parent, help="folder of the pictures")
    parser.add_argument("--width", type=int, default=1100, help="width of the window in pixels; default: %(default)s")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, start_chromium() as browser:
        one, four = write_videos(Path(folder))
        server = AppServer([args.model], Path(folder) / "server")
        try:
            visit = Visit(browser, server.address, viewport={"width": args.width, "height": 700})
            visit.choose(one)
            visit.press("classify")
            visit.wait_until(visit.classes)
            draw(visit, args.output / "app_classes.png")
            visit.press("explain")
            visit.wait_until(lambda: visit.video_width("heat-map"))
            draw(visit, args.output / "app_heat_maps.png")
            visit.clear()
            visit.choose(four)
            visit.press("find-segments")
            visit.wait_until(visit.segments)[1].row.click()
            draw(visit, args.output / "app_timeline.png")
            if visit.problems:
                raise SystemExit(f"The page had problems: {visit.problems}")
        finally:
            server.stop()


if __name__ == "__main__":
    main()
