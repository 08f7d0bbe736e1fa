"""
Seconds of `hf-video predict` on one short video by part, and of its errors, beside a program of plain calls.

The plain program loads the model with Transformers' Auto classes, decodes frames with PyAV, and prints the best class.
For VideoViT it has VideoMAE of the same sizes (ViT-S, 16 x 224 x 224), which Transformers has itself: this time is
none of ours. VideoMamba-Ti (8 x 224 x 224) is no model of Transformers, so that program imports hf_video as well.
Whole processes take turns, and their median times are compared. The parts are those of one more process; VideoMamba
has one with kernels in its cache, and one that compiles them. It takes about three minutes on 2 CPU cores.

    python benchmarks/predict_start.py [--rounds 3] [--smoke]
"""

import functools
import importlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from helpers.measurement import make_parser, print_machine, print_ratio, take_turns
from helpers.stage_clock import StageClock

PLAIN = """\
import sys
import av, numpy, torch
from transformers import AutoModelForVideoClassification
{imports}
model = AutoModelForVideoClassification.from_pretrained(sys.argv[1]).eval()
with av.open(sys.argv[2]) as file:
    frames = [frame.to_ndarray(format="rgb24") for frame in file.decode(video=0)][: model.config.num_frames]
clip = torch.from_numpy(numpy.stack(frames)).movedim(-1, 1) / 127.5 - 1
clip = torch.nn.functional.interpolate(clip, (model.config.image_size,) * 2, mode="bilinear")
with torch.inference_mode():
    print(model.config.id2label[model(clip[None]).logits.argmax().item()])
"""
PREDICT = ["-m", "hf_video.cli", "predict"]
FORWARD = "first forward pass"


def write_models(folder: Path, is_small: bool) -> None:
    """VideoViT, VideoMAE of its sizes, and VideoMamba, with random weights."""
    from transformers import VideoMAEConfig, VideoMAEForVideoClassification

    from hf_video import (
        VideoClipProcessor,
        VideoMambaConfig,
        VideoMambaForVideoClassification,
        VideoViTConfig,
        VideoViTForVideoClassification,
    )

    width, size = (24, 32) if is_small else (384, 224)
    sizes: dict[str, Any] = {"hidden_size": width, "intermediate_size": 4 * width, "image_size": size}
    sizes |= {"num_hidden_layers": 1 if is_small else 12, "num_attention_heads": 2 if is_small else 6}
    small = {"hidden_size": 24, "num_hidden_layers": 1, "image_size": size} if is_small else {}
    models = {
        "videovit": VideoViTForVideoClassification(VideoViTConfig(**sizes)),
        "videomae": VideoMAEForVideoClassification(VideoMAEConfig(**sizes)),
        "videomamba": VideoMambaForVideoClassification(VideoMambaConfig.preset("tiny", **small)),
    }
    for name, model in models.items():
        model.save_pretrained(folder / name)
        options = {side: {"height": size, "width": size} for side in ("size", "crop_size")}
        VideoClipProcessor(num_frames=model.config.num_frames, **options).save_pretrained(folder / name)


def write_video(folder: Path) -> str:
    from hf_video.demo import write_moving_digits

    digits = write_moving_digits(folder / "digits", train_per_class=4, test_per_class=1, num_frames=48, image_size=256)
    return str(next((digits / "test").glob("*/*.mp4")))


def predict_by_part(words: list[str], begin: float) -> None:
    """Runs `hf-video predict`, and prints seconds of its parts after what it prints itself."""
    clock = StageClock(begin)
    import hf_video  # noqa: F401

    clock.lap("start Python, import PyTorch")
    import transformers  # noqa: F401

    clock.lap("import Transformers and the models")
    from hf_video.cli.main import main as run_command

    clock.lap("import the commands")
    caller = importlib.import_module("hf_video.jobs.classification")
    clock.lap("import the rest")
    scores = importlib.import_module("hf_video.inference.prediction")
    caller.load_trained_model = clock.timed("load the model", caller.load_trained_model)  # type: ignore[attr-defined]
    scores.predict_scores = clock.timed(FORWARD, scores.predict_scores, before="read the video")  # type: ignore[attr-defined]
    code = run_command(["predict", *words, "--device", "cpu"])
    clock.lap("print")
    print(json.dumps(clock.seconds), flush=True)
    sys.exit(code)


def print_parts(model: Path, video: str, **environment: str) -> None:
    words = [sys.executable, __file__, "--parts", str(model), video, str(time.time())]
    child = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True, env=os.environ | environment)
    for part, seconds in json.loads(child.stdout.splitlines()[-1]).items():
        print(f"  {part:46} {seconds:5.2f} s")


def run(words: list[str], code: int = 0) -> None:
    done = subprocess.run([sys.executable, *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if done.returncode != code:
        sys.exit(f"python {' '.join(words)} ended with exit code {done.returncode}: {done.stderr[-500:]}")


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="times that every program runs (default: 3)")
    parser.add_argument("--parts", nargs=3, metavar=("MODEL", "VIDEO", "SECONDS"), help="predict in this process")
    arguments = parser.parse_args()
    if arguments.parts:
        model, video, begin = arguments.parts
        predict_by_part([video, "--model", model], float(begin))
    print_machine("torch", "transformers", "numba")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_models(folder, arguments.smoke)
        video = write_video(folder)
        vit, mamba = str(folder / "videovit"), str(folder / "videomamba")
        programs = {
            "VideoViT, hf-video predict": [*PREDICT, video, "--model", vit, "--device", "cpu"],
            "VideoViT, plain": ["-c", PLAIN.format(imports=""), str(folder / "videomae"), video],
            "VideoMamba, hf-video predict": [*PREDICT, video, "--model", mamba, "--device", "cpu"],
            "VideoMamba, plain": ["-c", PLAIN.format(imports="import hf_video"), mamba, video],
        }
        mistakes = {
            "no such option": [*PREDICT, video, "--no-such-option"],
            "no such video": [*PREDICT, str(folder / "no.mp4"), "--model", vit],
            "no such model": [*PREDICT, video, "--model", str(folder / "no")],
        }
        runs = {title: functools.partial(run, words) for title, words in programs.items()}
        runs |= {title: functools.partial(run, words, code=2) for title, words in mistakes.items()}
        seconds = take_turns(runs, rounds=1 if arguments.smoke else arguments.rounds)
        medians = {title: statistics.median(values) for title, values in seconds.items()}
        for title, median in medians.items():
            print(f"{title:46} {median:7.2f} s")
        print("VideoViT, by part")
        print_parts(folder / "videovit", video)
        print("VideoMamba, kernels in the cache, by part")
        print_parts(folder / "videomamba", video)
        print("VideoMamba, kernels compiled, by part")
        print_parts(folder / "videomamba", video, NUMBA_CACHE_DIR=str(folder / "kernels"))
    for family, peer in (("VideoViT", "VideoMAE by plain calls"), ("VideoMamba", "plain calls")):
        print_ratio(f"predict, {family}", medians[f"{family}, hf-video predict"] / medians[f"{family}, plain"], peer)


if __name__ == "__main__":
    main()
