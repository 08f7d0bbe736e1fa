"""Entry point of `hf-video`: reads the command line and runs a command."""

import logging
import os
import sys
from collections.abc import Sequence

from hf_video.processes import launched_processes

from . import (
    app,
    convert,
    demo,
    detect,
    env,
    evaluate,
    explain,
    export,
    extract,
    index,
    inspect,
    models,
    predict,
    probe,
    publish,
    search,
    timeline,
    train,
    verify,
    watch,
)
from .command import parse
from .errors import run_guarded
from .signals import end_process

COMMANDS = [
    inspect.COMMAND,
    train.TRAIN,
    train.PRETRAIN,
    train.TRAIN_ANSWERS,
    probe.COMMAND,
    evaluate.COMMAND,
    predict.COMMAND,
    extract.COMMAND,
    index.COMMAND,
    search.COMMAND,
    timeline.COMMAND,
    detect.COMMAND,
    explain.COMMAND,
    watch.COMMAND,
    app.COMMAND,
    export.COMMAND,
    publish.COMMAND,
    verify.COMMAND,
    demo.COMMAND,
    models.COMMAND,
    convert.COMMAND,
    env.COMMAND,
]


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
    command, settings = parse(words, COMMANDS)
    if not command.takes_several_processes and (number := launched_processes()) > 1:
        raise ValueError(
            f"hf-video {command.name} works on one process, and a launcher started {number}: run it without torchrun, "
            "accelerate launch or mpirun."
        )
    return command.run(settings)
