"""Selects the files of a model folder that are published, and checks them."""

import fnmatch
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCard
from pydantic import BaseModel
from transformers.trainer import TRAINER_STATE_NAME
from transformers.utils import (
    IMAGE_PROCESSOR_NAME,
    PROCESSOR_NAME,
    SAFE_WEIGHTS_INDEX_NAME,
    SAFE_WEIGHTS_NAME,
    VIDEO_PROCESSOR_NAME,
)

from hf_video.io import read_object
from hf_video.loading.configurations import Config
from hf_video.loading.released import FACTS_FILE

CARD = "README.md"
# Files that are looked through for tokens, besides licences.
TEXT = (".json", ".md", ".txt", ".yaml", ".jinja")
TOKEN = re.compile(
    r"""(?x)
    (?<![A-Za-z0-9]) (?:
        (?: hf_ | api_org_ ) [A-Za-z0-9]{30,}   # Hugging Face
        | A[KS]IA [0-9A-Z]{16} (?![A-Za-z0-9])  # AWS
        | gh[pousr]_ [A-Za-z0-9]{36} | github_pat_ \w{50,} | glpat- [\w-]{20,}
        | xox[abeoprs]- [\w-]{10,}              # Slack
        | AIza [\w-]{35} | sk- [\w-]{32,}       # Google and others
    )
    | -----BEGIN\ [A-Z ]*PRIVATE\ KEY-----
    | :// [^/\s:@"'<>]+ : [^/\s:@"'<>{$]+ @     # an address with a password
    """
)
SELF_TEST = "self_test"
# The adapters that a training merged into the model, as PEFT writes them.
ADAPTER_CONFIG = "adapter/adapter_config.json"
# The Auto class that loads each of them.
PROCESSORS = {
    VIDEO_PROCESSOR_NAME: "AutoVideoProcessor",
    IMAGE_PROCESSOR_NAME: "AutoImageProcessor",
    PROCESSOR_NAME: "AutoProcessor",
}
TRAINING_STATE = ("optimizer.pt", "optimizer.bin", "scheduler.pt", "scaler.pt", "rng_state*.pth", TRAINER_STATE_NAME)
TOKENIZER = (
    *("tokenizer*.json", "special_tokens_map.json", "added_tokens.json", "vocab.json", "vocab.txt", "merges.txt"),
    *("tokenizer.model", "*.jinja"),
)
# All other files of the folder may be private.
PUBLISHED = (
    *("config.json", "generation_config.json", *PROCESSORS, "*.safetensors", SAFE_WEIGHTS_INDEX_NAME),
    *(*TOKENIZER, *(f"qformer_tokenizer/{name}" for name in TOKENIZER), CARD, "LICENSE*", FACTS_FILE),
    # Not the picture of the worst clips, which shows frames of the user's videos.
    *("report/curves.png", "report/confusion_matrix.png", ADAPTER_CONFIG, "adapter/adapter_model.safetensors"),
)
# Why other files stay behind; the first pattern that fits decides.
LEFT_OUT = {
    "checkpoint-*/*": "a checkpoint of the training",
    f"{SELF_TEST}/*": "publishing makes another self-test",
    "report/*": "of the report only curves.png and confusion_matrix.png are published",
    **dict.fromkeys(TRAINING_STATE, "state of the training, which --with-training-state adds"),
    **dict.fromkeys(("*.bin", "*.pt", "*.pth", "*.pkl", "*.ckpt"), "a pickled file can run code where it is loaded"),
    "*": "it is not on the list of published files, so it may be private",
}


class PublishError(ValueError):
    """A folder cannot be published, or the Hub refuses it. The message says why and the way out."""


def select_files(folder: Path, with_training_state: bool = False) -> tuple[list[str], dict[str, str]]:
    """The files of a folder that are published, and those that are not with the reason, as paths relative to it."""
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    wanted = (*PUBLISHED, *(TRAINING_STATE if with_training_state else ()))
    chosen, left_out = [], {}
    for name in names:
        if _matches(name, [pattern for pattern in wanted if pattern.count("/") == name.count("/")]):
            chosen.append(name)
        else:
            left_out[name] = next(why for pattern, why in LEFT_OUT.items() if _matches(name, [pattern]))
    return chosen, left_out


def find_problems(folder: Path, allow_tokens: bool = False) -> list[str]:
    """Every reason not to publish the files of a folder, each with the way out. With `allow_tokens`, texts may hold
    what looks like a token."""
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    if "config.json" not in names:
        return ["There is no config.json. Publish a folder that save_pretrained or `hf-video train` wrote."]
    try:
        config = read_part(folder, "config.json", Config)
    except PublishError as error:
        return [str(error)]
    problems = [
        f"config.json has no {name}; save the model again with save_pretrained."
        for name in ("model_type", "architectures")
        if not config.get(name)
    ]
    for name in names if not allow_tokens else ():
        if name.endswith(TEXT) or Path(name).name.startswith("LICENSE"):
            problems += find_tokens(folder / name, name)
    if not {SAFE_WEIGHTS_NAME, SAFE_WEIGHTS_INDEX_NAME} & {*names}:
        problems.append(
            f"There is no {SAFE_WEIGHTS_NAME} in the folder. Only safetensors are published: load the model where its "
            "file is trusted and write it with save_pretrained."
        )
    if not PROCESSORS.keys() & {*names}:
        problems.append(
            f"There is no processor ({VIDEO_PROCESSOR_NAME}), so nobody knows which frames the model takes. Save it "
            "beside the model: processor.save_pretrained(folder)."
        )
    if _lacks_class_names(config):
        problems.append(
            "The classes have no names, so predictions would read LABEL_0, LABEL_1, ... Name them with --labels FILE, "
            "one name a line in the order of the class ids."
        )
    return problems + (check_card((folder / CARD).read_text(encoding="utf-8")) if CARD in names else [])


def find_tokens(path: Path, name: str) -> list[str]:
    """A sentence for each line of a text that looks as if it had a token, which is not repeated."""
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    return [
        f"{name}, line {number}: this looks like a token. Remove and revoke it; if it is none, publish with "
        "--allow-tokens (from Python `allow_tokens=True`)."
        for number, line in enumerate(lines, 1)
        if TOKEN.search(line)
    ]


def check_card(text: str) -> list[str]:
    """A list of the faults in the text of a model card."""
    try:
        ModelCard(text)
    except Exception as error:  # the parser and the validator of metadata raise many kinds
        return [f"{CARD}: its metadata are invalid ({' '.join(str(error).split())})."]
    return []


def read_part(folder: Path, name: str, kind: type[BaseModel] | None = None) -> dict[str, Any]:
    """The content of a JSON file, see `io.read_object`. The `PublishError` names the file in the folder."""
    try:
        return read_object(folder / name, kind)
    except ValueError as error:
        raise PublishError(str(error).replace(str(folder / name), name)) from error


def _lacks_class_names(config: dict[str, Any]) -> bool:
    is_classifier = any("Classification" in name for name in config.get("architectures") or ())
    labels = config.get("id2label") or {"0": "LABEL_0"}
    is_unnamed = all(re.fullmatch(r"LABEL_\d+", str(label)) for label in labels.values())
    return is_classifier and is_unnamed and config.get("problem_type") != "regression"


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
