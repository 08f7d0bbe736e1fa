"""
Runs the scripts of `benchmarks/` one after the other, keeps what each printed in
`benchmarks/results/MACHINE/NAME.json`, and writes `docs/benchmarks.md` and `docs/benchmarks/` from the results of all
machines. `make bench` calls it.

With `--smoke` inputs are small and the figures mean nothing: the pages are printed, and no file is changed.

    python benchmarks/helpers/run_all.py [NAME ...] [--smoke] [--page-only]
"""

import argparse
import datetime
import importlib.metadata
import os
import platform
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import torch

FOLDER = Path(__file__).parents[1]
sys.path.insert(0, str(FOLDER))

from helpers.results import Result, load_results  # noqa: E402
from helpers.results_page import render  # noqa: E402

RESULTS, DOCS = FOLDER / "results", FOLDER.parent / "docs"
PACKAGES = ("torch", "transformers", "accelerate", "av", "numba")
# The plot is drawn where the documents look for it, and the page names no folder of the machine.
# Others repeat less than their scripts do alone, so that all of them take little more than an hour.
OPTIONS = {
    "before_and_after": ["8d8ecbd"],
    "bulk": ["--few", "8", "--many", "48", "--rounds", "1"],
    "explain": ["--seeds", "1"],
    "extract": ["--rounds", "2"],
    "importing": ["--rounds", "5"],
    "int8": ["--layers", "2"],
    "memory_bank": ["--frames", "6"],
    "packed_reading": ["--rounds", "3"],
    "predict_start": ["--rounds", "1"],
    "reading": ["--rounds", "5"],
    "search": ["--rounds", "3"],
    "small_data": ["--seeds", "1"],
    "startup": ["--videos", "100000"],
    "structure": ["."],
    "timeline": ["--seeds", "1"],
    "videomamba_lengths": ["--plot", "docs/videomamba_cpu.png"],
    "videovit": ["--rounds", "3"],
    "watch": ["--frames", "5000"],
    "windows": ["--rounds", "4"],
}


def describe_machine() -> dict[str, str | int | float]:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    # Those of the last core, if there are several kinds.
    facts = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    # A virtual machine may call several generations by one name.
    known = "cpu family" in facts and "model" in facts
    generation = {"generation": f"family {facts['cpu family']}, model {facts['model']}"} if known else {}
    return {
        "cpu": facts.get("model name", platform.machine()),
        **generation,
        "cores": os.cpu_count() or 1,
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else "none",
    }


def describe_versions(root: Path = FOLDER.parent) -> dict[str, str]:
    """Python, packages, and the commit; a plus behind it says that files differ from it."""

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=True).stdout.strip()

    written = ["benchmarks/results", "docs/benchmarks.md", "docs/benchmarks", "docs/videomamba_cpu.png"]
    others = ["--", ".", *(f":!{path}" for path in written)]
    changes = git("status", "--porcelain", "--untracked-files=no", *others)
    packages = {name: importlib.metadata.version(name) for name in PACKAGES}
    commit = git("rev-parse", "--short", "HEAD") + ("+" if changes else "")
    return {"Python": platform.python_version(), **packages, "hf_video": commit}


def run(script: Path, words: list[str]) -> Result:
    """The result of a script, whether it succeeds or not. What it prints is shown at once as well."""
    date, load, start = datetime.datetime.now(datetime.UTC), os.getloadavg()[0], time.perf_counter()
    lines = []
    with tempfile.TemporaryFile("w+") as errors:
        program = [sys.executable, "-u", str(script), *words]
        process = subprocess.Popen(program, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=FOLDER.parent)
        assert process.stdout
        for line in process.stdout:
            print(line, end="", flush=True)
            lines.append(line)
        exit_code = process.wait()
        errors.seek(0)
        said = errors.read().strip()
    if exit_code:
        print(said, file=sys.stderr)
    return Result(
        name=script.stem,
        command=shlex.join([f"benchmarks/{script.name}", *words]),
        date=f"{date:%Y-%m-%d %H:%M}",
        load=round(load, 1),
        seconds=round(time.perf_counter() - start, 1),
        exit_code=exit_code,
        machine=describe_machine(),
        versions=describe_versions(),
        output="".join(lines),
        error=said.splitlines()[-1] if said and exit_code else "",
    )


def write_pages() -> None:
    for path, text in render(load_results(RESULTS)).items():
        (DOCS / path).parent.mkdir(exist_ok=True)
        (DOCS / path).write_text(text)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    scripts = {script.stem: script for script in sorted(FOLDER.glob("*.py"))}
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(scripts)} (default: all)")
    parser.add_argument("--smoke", action="store_true", help="small inputs; print the pages and keep nothing")
    parser.add_argument("--page-only", action="store_true", help="run nothing, write the pages from what is there")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - scripts.keys():
        parser.error(f"no benchmark is called {', '.join(sorted(unknown))}; there are {', '.join(scripts)}")
    chosen = [] if arguments.page_only else arguments.names or list(scripts)
    found = []
    for name in chosen:
        print(f"\nbenchmarks/{name}.py", flush=True)
        result = run(scripts[name], ["--smoke"] if arguments.smoke else OPTIONS.get(name, []))
        found.append(result)
        if not arguments.smoke:
            # After each one, so that what is interrupted has kept the figures until then.
            result.save(RESULTS)
            write_pages()
    if arguments.smoke:
        print("\n".join(render(found).values()))
    elif arguments.page_only:
        write_pages()
    bad = [f"{each.name} ({each.state})" for each in found if each.is_bad]
    if bad:
        print(f"without figures, or with a goal missed: {'; '.join(bad)}", file=sys.stderr)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
