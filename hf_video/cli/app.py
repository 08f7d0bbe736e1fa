"""`hf-video app`: the models in a browser."""

import argparse
import importlib.util
import socket
import sys
from typing import Any

from hf_video.loading.models import load_answering_model, load_trained_model, locate_model

from .command_line import add_flags
from .error_messages import explain, report_bug

DESCRIPTION = """\
Open models in a browser: drop a video or record one, and see its classes, when it shows which, what the model looked
at, and answers to questions where the model gives them.

The page is for this machine alone, unless --host says otherwise. One for this machine alone also opens videos by
their address. Videos and results are removed when a page is closed, and all of them when the command ends: with Ctrl-C
or SIGTERM.
"""
EPILOG = """\
example: hf-video app my_model
         hf-video app my_model another_model --port 8000 --max-upload 100
"""


def add_parser(commands: argparse._SubParsersAction) -> argparse.ArgumentParser:
    """Declares the command."""
    parser = commands.add_parser(
        "app",
        help="open models in a browser",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("models", nargs="+", metavar="MODEL", help="model folders, or names of models on the Hub")
    return parser


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declares its options."""
    from .command_settings import APP

    add_flags(parser, APP)


def run(args: argparse.Namespace) -> int:
    """Loads the models and serves the page until an interrupt."""
    if importlib.util.find_spec("gradio") is None:
        raise ImportError("The page is made with Gradio: pip install 'hf-video-models[app]'.")
    _check_port(args.host, args.port)

    from hf_video.app.server import serve
    from hf_video.app.visitors import is_loopback
    from hf_video.app.work import LoadedModel, name_models

    models = [
        LoadedModel(name, *_load(model, args))
        for name, model in zip(name_models(args.models), args.models, strict=True)
    ]
    only_local = is_loopback(args.host)
    if not only_local:
        print(
            f"warning: anybody who reaches port {args.port} of this machine can use the page. There is no password.",
            file=sys.stderr,
        )

    def tell_error(error: Exception) -> str | None:
        sentence = explain(error)
        if sentence is None:
            print(f"hf-video: {report_bug(error)}", file=sys.stderr, flush=True)
        return sentence

    serve(
        models,
        host=args.host,
        port=args.port,
        queue=args.queue,
        tell_address=lambda address: print(f"The page is at {address}  (Ctrl-C ends it)", flush=True),
        max_upload=args.max_upload,
        workers=args.workers,
        only_local=only_local,
        tell_error=tell_error,
        has_tracebacks=args.debug,
    )
    return 0


def _load(model: str, args: argparse.Namespace) -> tuple[Any, Any]:
    """A model that answers if it can, else a classifier."""
    from hf_video.inference.prediction import problem_type_of
    from hf_video.loading.configurations import load_config

    config = load_config(locate_model(model))
    if "MemoryBankQFormerForConditionalGeneration" in (config.architectures or []):
        return load_answering_model(model, device=args.device, dtype=args.dtype)
    if problem_type_of(config) == "regression":
        raise ValueError(f"{model} is a regression model: its values are no scores of classes. Choose a classifier.")
    return load_trained_model(model, device=args.device, dtype=args.dtype)


def _check_port(host: str, port: int) -> None:
    """Refuses an address at which the page cannot be served, before models are loaded."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise ValueError(
                f"--host {host} --port {port} cannot be used ({reason}). Choose another, such as --port {port + 1}."
            ) from error
