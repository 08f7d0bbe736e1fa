"""
Measures the time that `import hf_video` adds to a program that uses Transformers, and the time that `hf-video --help`
and `hf-video train --help` take.

Whole processes take turns, and their median times are compared.
"""

import statistics
import subprocess
import sys
import time

TRANSFORMERS = "from transformers import AutoModelForVideoClassification, PreTrainedModel"
PROGRAMS = {
    "transformers alone": ["-c", TRANSFORMERS],
    "hf_video and transformers": ["-c", f"import hf_video; {TRANSFORMERS}"],
    "hf_video alone": ["-c", "import hf_video"],
    "hf-video --help": ["-m", "hf_video.cli", "--help"],
    "hf-video train --help": ["-m", "hf_video.cli", "train", "--help"],
}
ROUNDS = 7


def run(arguments: list[str]) -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def main() -> None:
    for arguments in PROGRAMS.values():
        run(arguments)
    seconds: dict[str, list[float]] = {name: [] for name in PROGRAMS}
    for _ in range(ROUNDS):
        for name, arguments in PROGRAMS.items():
            seconds[name].append(run(arguments))
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    for name, median in medians.items():
        print(f"{name:28} {median:6.2f} s")
    ratio = medians["hf_video and transformers"] / medians["transformers alone"]
    print(f"with hf_video / without: {ratio:.2f}x")


if __name__ == "__main__":
    main()
