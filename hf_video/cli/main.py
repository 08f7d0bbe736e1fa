"""Entry point of `hf-video`: reads the command line, runs a command, turns errors into messages and exit codes."""

import argparse
import sys

import hf_video

from . import convert, demo, env, evaluate, inspect, predict, probe, publish, train, train_answers, watch
from .processes import require_one_process

USER_ERROR = 2
INTERRUPTED = 130


def main(argv: list[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: the words after `hf-video`; those of the process by default.

    Returns:
        The exit code: 0 when all went well, 1 when some inputs failed, 2 for a mistake in the input, 130 for Ctrl-C.
    """
    debug = False
    try:
        args = parse(argv)
        debug = args.debug
        if not getattr(args, "takes_several_processes", False):
            require_one_process(args.parser.prog)
        return args.run(args)
    except SystemExit as exit_request:  # argparse has already printed help or the mistake
        return int(exit_request.code or 0)
    except KeyboardInterrupt as interrupt:
        print(f"\nhf-video: interrupted. {interrupt}".rstrip(), file=sys.stderr)
        return INTERRUPTED
    except (ValueError, OSError, ImportError) as error:
        if debug:
            raise
        print(f"hf-video: error: {_message(error)}", file=sys.stderr)
        return USER_ERROR


def _message(error: Exception) -> str:
    """What went wrong; PyTorch puts the traceback of a worker that reads data before that."""
    message = str(error)
    return message.rpartition(f"{type(error).__name__}: ")[2].strip() if "DataLoader worker" in message else message


def parse(argv: list[str] | None) -> argparse.Namespace:
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
        prog="hf-video", description="Train, evaluate and use video classifiers with Hugging Face Transformers."
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
