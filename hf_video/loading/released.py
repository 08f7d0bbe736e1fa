"""Models by their names: those that their authors released, fetched and converted, and the bundled model.

`released_models.json` is written by `model_cards/generate.py`, from the facts that the model cards state. The start
is a small VideoViT, pre-trained on generated videos and free pictures, for which few clips are enough; `SCRATCH` is
for random weights.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from hf_video.io import FULL_DISK, hub_or_cache, read_own_json, sha256_of, write_error_number
from hf_video.processes import is_first_process

# Found by its name, since the package knows no source of checkpoints.
CONVERSION = "hf_video.conversion"
FACTS_FILE = "training_facts.json"
SHIPPED, SCRATCH = "start", "scratch"
SHA256 = "[0-9a-f]{64}"
START_FOLDER = Path(__file__).parents[1] / "start"


def model_path(model: str | None) -> str | None:
    """The folder or Hub name of a model that `SHIPPED` may stand for; None, for random weights, stays."""
    return str(START_FOLDER) if model == SHIPPED else model


def told_name(model: str | None) -> str | None:
    """The name of a model in what is printed."""
    is_shipped = model is not None and (model == SHIPPED or Path(model).resolve() == START_FOLDER.resolve())
    return "the bundled model" if is_shipped else model


def start_sha256() -> str:
    """The SHA-256 of the weights of the bundled model, in hexadecimal digits."""
    return sha256_of(START_FOLDER / "model.safetensors")


@dataclass(frozen=True)
class ReleasedModel:
    """A released model, as its authors describe it.

    Attributes:
        name: the stem of the file, or the repository on the Hub of a model in Transformers' format.
        auto_class: the Auto class of Transformers that loads it.
        parameters: their number; None if it is not known.
        results: figures that the authors report, each with `data`, `metric`, `value` and `views`.
        license: None if the authors state none.
        repository: where it is on the Hub; None if it is elsewhere.
        file: the file in the repository; None if it has another format, or is elsewhere.
        link: the address of the file or repository, or of a page that leads there.
        command: the shell command that converts a file at hand.
    """

    name: str
    auto_class: str
    parameters: int | None
    results: list[dict[str, Any]]
    license: str | None
    repository: str | None
    file: str | None
    link: str
    command: str

    @property
    def folder(self) -> Path:
        """Where the converted model is kept, whole or not at all."""
        from huggingface_hub import constants

        return Path(constants.HF_ASSETS_CACHE, "hf_video", "released", self.name)

    @property
    def sha256(self) -> str | None:
        """The SHA-256 of the file that was converted; None if none was."""
        facts = read_own_json(self.folder / FACTS_FILE) or {}
        return facts.get("source", {}).get("sha256")

    @property
    def cached_file(self) -> Path | None:
        """The authors' file, or weights in Transformers' format, in the cache of the Hub; None if it is not there."""
        from huggingface_hub import try_to_load_from_cache

        names = [self.file] if self.file else ["model.safetensors", "pytorch_model.bin"]
        found = (try_to_load_from_cache(self.repository, name) for name in names if self.repository)
        return next((Path(file) for file in found if isinstance(file, str)), None)

    def describe_size(self) -> str:
        """The size of the cached file, or after ~ four bytes a parameter."""
        if file := self.cached_file:
            return f"{file.stat().st_size / 1e6:,.0f} MB"
        return f"~{4 * self.parameters / 1e6:,.0f} MB" if self.parameters else "unknown"


@cache
def released_models() -> dict[str, ReleasedModel]:
    """All released models that a source of `hf-video convert` reads, by name."""
    rows = json.loads(Path(__file__).with_name("released_models.json").read_text(encoding="utf-8"))
    return {row["name"]: ReleasedModel(**row) for row in rows}


def find_released(name: str) -> ReleasedModel | None:
    """The released model of a name; None if there is none, or a folder or file here has the name, and comes first."""
    model = released_models().get(name)
    if model is not None and Path(name).exists():
        _say_once(f"{name} is a folder or file here, which comes before the released model of this name.")
        return None
    return model


def locate_released(model: ReleasedModel) -> str:
    """The folder of a released model, which is fetched and converted if that was not done before; or the repository of
    one in Transformers' format. A line on stderr says which, and the licence."""
    if model.folder.is_dir():
        if cached := model.cached_file:
            _check_sha256(model, cached.resolve().name)
    elif model.file is None:
        return fetch_released(model)
    else:
        from filelock import FileLock

        model.folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(model.folder.with_name(f".{model.name}.lock")):
            for begun in model.folder.parent.glob(f".{model.name}.*.partial"):
                shutil.rmtree(begun)  # by a process that was killed
            if not model.folder.is_dir():
                file = fetch_released(model)
                with redirect_stdout(sys.stderr):
                    convert_released(model, file, [str(model.folder)], raises_errors=True)
    _say_once(f"{model.name}: the released model, converted in {model.folder}, licence {model.license or 'unknown'}.")
    return str(model.folder)


def convert_released(model: ReleasedModel, file: str, words: Sequence[str], **options: Any) -> None:
    """Converts the file of a released model, or its repository, as `hf-video convert SOURCE` does with a file at hand.
    `words` are the folder to write, and further options of the command; `options` those of the source's `main`."""
    _, _, source, _, _, *own = shlex.split(model.command.splitlines()[-1])
    import_module(f"{CONVERSION}.{source}").main([file, *words, *own], **options)


def fetch_released(model: ReleasedModel) -> str:
    """The authors' file in the cache of the Hub, or the repository of a model in Transformers' format, from which
    nothing is fetched yet. It is a `ValueError` if the file cannot be had, its SHA-256 is not the one that the Hub
    announces, or it is not the file that was converted before."""
    license = f"licence {model.license or 'unknown'}"
    if model.repository is None:
        command = " && ".join(model.command.splitlines())
        raise ValueError(
            f"{model.name} is released, but not on the Hub: get its file from {model.link}, and convert it with "
            f"`{command}`. The name is then that of this folder."
        )
    if model.file is None:
        _say_once(f"{model.name}: released in Transformers' format, {model.describe_size()}, {license}.")
        return model.repository
    from huggingface_hub import constants, hf_hub_download
    from huggingface_hub.errors import RemoteEntryNotFoundError
    from huggingface_hub.utils import httpx

    place = f"{model.file} of {model.repository}"
    at_hand = f"or get the file elsewhere, and convert it: `{model.command}`."
    try:
        with hub_or_cache():
            plan = hf_hub_download(model.repository, model.file, dry_run=True)
            if plan.will_download:
                size = f"{plan.file_size / 1e6:,.1f} MB" if plan.file_size else "of unknown size"
                _say(f"{model.name}: fetching {place}, {size}, {license}.")
            file = Path(hf_hub_download(model.repository, model.file))
    except RemoteEntryNotFoundError as error:
        raise ValueError(f"{model.name}: there is no {place} on the Hub. Look at {model.link}, {at_hand}") from error
    except (OSError, httpx.HTTPError) as error:
        if write_error_number(error) in FULL_DISK:
            raise
        reason = str(error.__cause__ or error).strip().partition("\n")[0].rstrip(".")
        raise ValueError(
            f"{model.name}: {place} cannot be fetched from the Hub "
            f"({'HF_HUB_OFFLINE is set' if constants.is_offline_mode() else reason}). Check the connection and "
            f"HF_ENDPOINT, {at_hand}"
        ) from None
    # The cache names a large file by the SHA-256 that the Hub announces.
    content, announced, found = file.resolve(), file.resolve().name, sha256_of(file)
    if re.fullmatch(SHA256, announced) and found != announced:
        content.unlink()
        raise ValueError(
            f"{model.name}: {place} came with the SHA-256 {found}, and the Hub announces {announced}. It is removed "
            "from the cache: run the same command again."
        )
    _check_sha256(model, found)
    return str(file)


def _check_sha256(model: ReleasedModel, found: str) -> None:
    if model.sha256 and re.fullmatch(SHA256, found) and found != model.sha256:
        raise ValueError(
            f"{model.name}: {model.file} of {model.repository} has the SHA-256 {found}, the file that was converted "
            f"before had {model.sha256}: to take the new one, remove {model.folder}, or name it to keep the other."
        )


def _say(line: str) -> None:
    """Says a line in the first of several processes."""
    if is_first_process():
        print(line, file=sys.stderr, flush=True)


# What was chosen is asked for several times in a command.
_say_once = cache(_say)
