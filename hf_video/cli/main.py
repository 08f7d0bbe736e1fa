"""Entry point of `hf-video`: reads the command line and runs a command."""

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from typing import Any

from . import (
    app,
    command_line,
    convert,
    demo,
    env,
    evaluate,
    evaluate_segments,
    explain,
    export,
    extract,
    inspect,
    pack,
    predict,
    pretrain,
    probe,
    publish,
    timeline,
    train,
    train_answers,
    watch,
)
from .boundary import run_guarded
from .processes import require_one_process
from .stopping import end_process

COMMANDS: dict[str, Any] = {
    "inspect": inspect,
    "pack": pack,
    "train": train,
    "pretrain": pretrain,
    "train-answers": train_answers,
    "probe": probe,
    "evaluate": evaluate,
    "evaluate-segments": evaluate_segments,
    "predict": predict,
    "extract": extract,
    "timeline": timeline,
    "explain": explain,
    "watch": watch,
    "app": app,
    "export": export,
    "publish": publish,
    "demo": demo,
    "convert": convert,
    "env": env,
}


def main(argv: list[str] | None = None) -> int:
    """Runs the words after `hf-video`, by default those of this process, and gives the exit code (`EXIT_CODES`)."""
    # Transformers imports torchao wherever it is installed, and PyTorch warns of how that registers its types.
    logging.getLogger("torch.utils._pytree").setLevel(logging.ERROR)
    if sys.stderr is None or not sys.stderr.isatty():
        # A progress bar would fill a log. tqdm reads this when it is imported.
        os.environ.setdefault("TQDM_DISABLE", "1")
    code = run_guarded("hf-video", sys.argv[1:] if argv is None else argv, _run)
    if argv is None:
        end_process(code)
    return code


def _run(words: Sequence[str]) -> int:
    args = parse(words)
    if not getattr(args, "takes_several_processes", False):
        require_one_process(args.parser.prog)
    return args.run(args)


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The options for `run` of a command; `argparse` exits on a mistake."""
    return command_line.parse(argv, COMMANDS)
