"""Executes every command and block of code in README.md, CONTRIBUTING.md and docs/.

    python -m tests.documents.run            # with the programs of this environment, which installs nothing
    python -m tests.documents.run --fresh    # in a fresh environment, into which the documents install what they need

Each document has a folder of its own: a fresh clone of the last commit, with small files under the names of the
examples. Name documents to run these alone. It takes a quarter of an hour on two cores, and `--fresh` as long again
for downloads.
"""

import argparse
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from ..hub_server.server import HubServer
from .blocks import ROOT, pages, read_blocks
from .running import Outcome, Shell, run_blocks
from .world import AT_HAND, environment, fill_hub, hub_tokens, make_files

# What takes long, or needs another machine, by the beginning of its command.
LONG = {
    **dict.fromkeys(("make test", "make bench", "make screenshots", "make pictures", "make cards"), "not run"),
    **dict.fromkeys(("python benchmarks/", "python examples/", "hf-video demo ", "sbatch ", "ray up "), "not run"),
}
# What would change the environment of this process.
INSTALLING = dict.fromkeys(("make ", "pip ", "python -m pip ", "apt-get "), "parsed")


def run_page(
    page: str, folder: Path, files: Path, variables: Mapping[str, str], unrun: Mapping[str, str]
) -> Iterator[Outcome]:
    """The outcomes of the blocks of a page, in a clone under `folder`."""
    place = folder / page.replace("/", "_").removesuffix(".md")
    subprocess.run(["git", "clone", "--quiet", "--shared", ROOT, place], check=True)
    if "make " in unrun:
        (place / ".venv").symlink_to(sys.prefix)
    shell = Shell(place, files, variables, unrun, AT_HAND)
    try:
        yield from run_blocks(read_blocks(page), shell)
    finally:
        shell.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="*", metavar="PAGE", help="such as README.md; by default all")
    parser.add_argument("--fresh", action="store_true", help="in an environment that the documents make themselves")
    args = parser.parse_args()
    # A process in the background of a script ignores Ctrl-C, and so would the servers that are ended by it here.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # README installs the package.
    chosen = dict.fromkeys([*(["README.md"] if args.fresh else []), *(args.pages or pages())])
    begin = time.monotonic()
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with HubServer(folder / "hub", hub_tokens()) as server:
            fill_hub(server, folder / "instructblip")
            (folder / "files").mkdir()
            files = make_files(folder / "files")
            programs, unrun = None, LONG | INSTALLING
            if args.fresh:
                subprocess.run([sys.executable, "-m", "venv", folder / "environment"], check=True)
                programs, unrun = folder / "environment" / "bin", LONG
            variables = environment(server, folder, programs)
            for page in chosen:
                for outcome in run_page(page, folder / "pages", files, variables, unrun):
                    print(outcome, flush=True)
                    outcomes.append(outcome)
    for outcome in outcomes:
        if outcome.status == "failed":
            print(f"\n{outcome}\n{outcome.said[-3000:]}")
    counts = Counter(outcome.status for outcome in outcomes)
    print(f"\n{', '.join(f'{number} {status}' for status, number in counts.items())}", end="")
    print(f" in {time.monotonic() - begin:.0f} s")
    return int(counts["failed"] > 0)


if __name__ == "__main__":
    sys.exit(main())
