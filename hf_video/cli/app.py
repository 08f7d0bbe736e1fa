"""Open models in a browser: drop a video or record one, and see its classes, when it shows which, what the model
looked at, and answers to questions if the model gives them.

The page is only for this machine, unless you set --host. Videos and results are removed after six hours, and
all of them when the command ends: with Ctrl-C or SIGTERM.

example: hf-video app my_model
         hf-video app my_model another_model --port 8000 --max-upload 100
"""

import importlib.util
import socket
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Le

from hf_video.data.folders import videos_in
from hf_video.inference.inference_settings import ComputingSettings
from hf_video.loading.models import answers_in_words, load_answering_model, load_trained_model, locate_model
from hf_video.settings import AtLeast1, Mark, Settings, setting

from . import INTERRUPTED
from .command import command
from .errors import explain, is_debugging, report_bug
from .printing import say
from .signals import Terminated


@dataclass(kw_only=True)
class AppSettings(ComputingSettings, Settings):
    """Page"""

    models: Annotated[list[str], Mark(form="words", names="model")] = setting(
        help="Model folders, or names of models on the Hub.", metavar="MODEL"
    )
    host: str = setting("127.0.0.1", "Address to listen at; 0.0.0.0 lets other machines in, without a password.")
    port: Annotated[AtLeast1[int], Le(65535)] = setting(7860, "Port to listen at.")
    max_upload: AtLeast1[int] = setting(500, "Largest video to upload, in megabytes.", "MB")
    workers: AtLeast1[int] = setting(2, "Requests that are worked on at a time; a model computes for one.")
    queue: AtLeast1[int] = setting(32, "Requests that may wait; more are turned away.")
    examples: str | None = setting(None, "Folder with videos that the page offers.", "DIR")


@command(help="open models in a browser")
def run(settings: AppSettings) -> int:
    """Loads the models and serves the page until an interrupt."""
    if importlib.util.find_spec("gradio") is None:
        raise ImportError("The page is made with Gradio: pip install 'hf-video-models[app]'.")
    _check_port(settings.host, settings.port)
    examples = [] if settings.examples is None else _find_examples(settings.examples)

    say(f"Loading {', '.join(settings.models)} ...")

    from hf_video.app.server import is_loopback, serve
    from hf_video.app.work import LoadedModel, name_models

    names = name_models(settings.models)
    models = [LoadedModel(name, *_load(model, settings)) for name, model in zip(names, settings.models, strict=True)]
    if not is_loopback(settings.host):
        say(f"warning: anybody who reaches port {settings.port} can use the page. There is no password.")

    def tell_error(error: Exception) -> str:
        if is_debugging():
            traceback.print_exception(error)
        if sentence := explain(error):
            return sentence
        say(f"hf-video: {report_bug(error)}")
        return f"This is a bug ({type(error).__name__}): see the log of the server."

    try:
        serve(
            models,
            settings,
            tell_address=lambda address: print(f"The page is at {address}  (Ctrl-C ends it)", flush=True),
            tell_error=tell_error,
            examples=examples,
        )
    except Terminated:
        raise
    except KeyboardInterrupt:
        say("\nThe page is closed. Its videos and results are removed.")
        return INTERRUPTED
    return 0


def _load(model: str, settings: AppSettings) -> tuple[Any, Any]:
    """A model that answers if it can, else a classifier of videos or of frames."""
    from hf_video.inference.scores import require_classes
    from hf_video.loading.configurations import load_config

    options = {"device": settings.device, "dtype": settings.dtype}
    if answers_in_words(model):
        return load_answering_model(model, **options)
    require_classes(model, load_config(locate_model(model)))
    return load_trained_model(model, part="any classifier", **options)


def _find_examples(folder: str) -> list[Path]:
    """The videos directly in a folder; it is a `ValueError` if there are none."""
    path = Path(folder).expanduser().absolute()
    found = [video for video in videos_in(path) if video.is_file()] if path.is_dir() else []
    if not found:
        raise ValueError(f"--examples {folder} is not a folder with videos directly in it.")
    return found


def _check_port(host: str, port: int) -> None:
    """Refuses an address at which the page cannot be served, before models are loaded."""
    try:
        socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET).close()
    except OSError as error:
        reason = (error.strerror or str(error)).partition(" (")[0].lower()
        raise ValueError(
            f"--host {host} --port {port} cannot be used ({reason}). Choose another, such as --port {port + 1}."
        ) from error
