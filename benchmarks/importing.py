"""
The time that `import hf_video` adds to a program that uses Transformers, and the time of `hf-video --help`.

The peer is the same program without hf_video. Whole processes take turns, and their median times are compared. It
takes about three minutes on 2 CPU cores. With `--smoke` Transformers is not imported.

    python benchmarks/importing.py [--rounds 7] [--smoke]
"""

import functools
import statistics
import subprocess
import sys

from helpers.measurement import make_parser, print_machine, print_ratio, take_turns

MODELS = "from transformers import AutoModelForVideoClassification, PreTrainedModel"


def make_programs(imports: str) -> dict[str, list[str]]:
    """The words behind `python` by what they measure."""
    return {
        "transformers alone": ["-c", imports],
        "hf_video and transformers": ["-c", f"import hf_video; {imports}"],
        "hf_video alone": ["-c", "import hf_video"],
        "hf-video --help": ["-m", "hf_video.cli", "--help"],
        "hf-video train --help": ["-m", "hf_video.cli", "train", "--help"],
    }


def run(words: list[str]) -> None:
    subprocess.run([sys.executable, *words], check=True, stdout=subprocess.DEVNULL)


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=7, help="times that every program runs (default: 7)")
    arguments = parser.parse_args()
    print_machine("torch", "transformers")
    programs = make_programs("pass" if arguments.smoke else MODELS)
    runs = {name: functools.partial(run, words) for name, words in programs.items()}
    seconds = take_turns(runs, rounds=1 if arguments.smoke else arguments.rounds)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    for name, median in medians.items():
        print(f"{name:28} {median:6.2f} s")
    ratio = medians["hf_video and transformers"] / medians["transformers alone"]
    print(f"with hf_video / without: {ratio:.2f}x")
    print_ratio("import", ratio, "Transformers alone")


if __name__ == "__main__":
    main()
