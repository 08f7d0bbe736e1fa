"""Entry point of `hf-video`: reads the command line and runs a command."""

import argparse
import sys
from collections.abc import Sequence

import hf_video

from . import convert, demo, env, evaluate, inspect, predict, probe, publish, train, train_answers, watch
from .boundary import EXIT_CODES, run_guarded
from .processes import require_one_process


def main(argv: list[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: the words after `hf-video`; those of the process by default.

    Returns:
        The exit code, as `boundary.EXIT_CODES` lists them.
    """
    return run_guarded("hf-video", sys.argv[1:] if argv is None else argv, _run)


def _run(words: Sequence[str]) -> int:
    args = parse(words)
    if not getattr(args, "takes_several_processes", False):
        require_one_process(args.parser.prog)
    return args.run(args)


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The options of a command, as its `run` takes them; `argparse` exits on a mistake."""
    args, words = _build_parser().parse_known_args(argv)
    takes_words = getattr(args, "takes_words", False)
    unknown = [word for word in words if not takes_words or word.startswith("-") or "=" not in word]
    if unknown:
        args.parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    args.words = words
    return args


def _build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="hf-video",
        description="Train, evaluate and use video classifiers with Hugging Face Transformers.",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"hf-video {hf_video.__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in (inspect, train, train_answers, probe, evaluate, predict, watch, publish, demo, convert, env):
        command_parser = command.add_parser(commands)
        command_parser.add_argument(
            "--debug", action="store_true", default=False, help="show the traceback of an error"
        )
        command_parser.set_defaults(run=command.run, parser=command_parser)
    return parser
