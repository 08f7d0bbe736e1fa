"""Publishes a model folder as a repository on the Hub that anyone can load: stage, check, push."""

import logging
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from huggingface_hub import CommitInfo, HfApi, constants
from huggingface_hub.errors import (
    HfHubHTTPError,
    HFValidationError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import httpx, validate_repo_id
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME

from hf_video.io import hub_or_cache

from .custom_code import add_code, write_json
from .folder_checks import (
    ADAPTER_CONFIG,
    CARD,
    TRAINER_STATE_NAME,
    PublishError,
    find_problems,
    read_part,
    select_files,
)
from .model_card import is_repository, read_facts, write_card
from .self_test import write_self_test

logger = logging.getLogger(__name__)

# Transformers might prefer such files of an earlier upload to those of this one.
STALE = ("model*.safetensors", SAFE_WEIGHTS_INDEX_NAME)
REFUSALS = {
    401: "The Hub does not accept your token. Log in with `hf auth login`, or set HF_TOKEN to a write token.",
    403: "Your token may not write to {}. Use a write token of its owner, or a name of your own.",
    412: "Somebody else committed to {} meanwhile. Look at what changed, and publish again.",
}


@dataclass
class Publication:
    """A complete repository in a folder, checked and ready for the upload to `user/name`; the files of the model
    folder that are left out, with the reason; and whether its card was written here, which replaces none on the Hub.
    """

    folder: Path
    left_out: dict[str, str]
    card_is_generated: bool
    repo_id: str

    @property
    def files(self) -> dict[str, int]:
        """The size in bytes of every file, by its path in the repository."""
        paths = (path for path in sorted(self.folder.rglob("*")) if path.is_file())
        return {path.relative_to(self.folder).as_posix(): path.stat().st_size for path in paths}


def publish(
    folder: str | os.PathLike,
    repo_id: str,
    *,
    private: bool | None = None,
    revision: str | None = None,
    tag: str | None = None,
    commit_message: str = "Upload model",
    api: HfApi | None = None,
    **options: Any,
) -> CommitInfo:
    """Publish a model folder as one commit that loads with `trust_remote_code=True` and nothing of ours installed.

    Args:
        folder: a folder that `save_pretrained` of model and processor, or `hf-video train`, wrote. It is not changed.
        repo_id: `user/name`; made if it does not exist.
        private, revision, tag, commit_message, api: see [`push`].
        options: those of [`stage`].

    Raises:
        PublishError: the folder has problems, which are all listed, or the Hub refused.
    """
    with tempfile.TemporaryDirectory() as staging:
        publication = stage(folder, staging, repo_id, api=api, **options)
        place: dict[str, Any] = {"private": private, "revision": revision, "tag": tag, "api": api}
        return push(publication, repo_id, commit_message=commit_message, **place)


def stage(
    folder: str | os.PathLike,
    staging: str | os.PathLike,
    repo_id: str,
    *,
    labels: Sequence[str] | None = None,
    license: str | None = None,
    with_training_state: bool = False,
    allow_tokens: bool = False,
    facts: dict[str, Any] | None = None,
    api: HfApi | None = None,
) -> Publication:
    """Build the repository in an empty folder and check it: texts, labels, and that it loads without hf_video.

    The code of the family, and of those that it is built around, is put beside the weights, every class goes into
    `auto_map`, and a self-test is made, with which [`verify_model`] compares. If the folder has no model card, one is
    written from the facts that training recorded. Weights are linked, not copied.

    Args:
        folder: the model folder; it is not changed.
        staging: an empty folder, to be kept until the push.
        repo_id: the name that the card's example loads. If it has no user, the owner of the token is put before it;
            `./name` is a folder.
        labels: names of the classes in the order of their ids, in place of those in the folder.
        license: the licence that the card states, such as "mit"; by default that of the model that was fine-tuned.
        with_training_state: whether to publish the state of the optimizer and of all else that resumes training.
        allow_tokens: whether to publish texts in which something looks like a token.
        facts: facts for the card, in place of those that training recorded in the folder.
        api: the Hub on which the owner is looked up, and the licence of the model that was fine-tuned.

    Raises:
        PublishError: there is no such folder, or it has problems, which are all listed. Nothing was sent anywhere.
    """
    folder, staging, api = Path(folder), Path(staging), api or HfApi()
    if not folder.is_dir():
        raise PublishError(f"There is no folder {folder}.")
    if not repo_id.startswith("./"):
        with explained(repo_id):
            validate_repo_id(repo_id)
            repo_id = repo_id if "/" in repo_id else f"{api.whoami()['name']}/{repo_id}"
    chosen, left_out = select_files(folder, with_training_state)
    for name in chosen:
        (staging / name).parent.mkdir(exist_ok=True)
        # Copies of weights would fill a disk. All else is copied, so that what was checked is what goes up.
        if name.endswith(".safetensors"):
            with suppress(OSError):  # Windows allows links to few users
                (staging / name).symlink_to((folder / name).resolve())
        if not (staging / name).exists():
            shutil.copyfile(folder / name, staging / name)
    if labels is not None and "config.json" in chosen:
        _set_labels(staging, labels)
    if problems := find_problems(staging, allow_tokens):
        raise PublishError("\n  - ".join([f"{folder} cannot be published as it is:", *problems]))
    _remove_paths(staging)
    add_code(staging)
    facts = read_facts(folder) if facts is None else facts
    write_self_test(staging)
    if CARD not in chosen:
        write_card(staging, repo_id, facts, license or _license_of(facts.get("source") or {}, api))
    return Publication(staging, left_out, CARD not in chosen, repo_id)


def plan(
    publication: Publication, revision: str | None = None, api: HfApi | None = None
) -> tuple[dict[str, int], list[str]]:
    """What [`push`] uploads to a branch, with the sizes in bytes, and what it deletes there. It is a `PublishError` if
    the Hub refuses or cannot be reached."""
    files, remote = publication.files, set[str]()
    with explained(publication.repo_id), hub_or_cache():
        for branch in dict.fromkeys((None, revision)):  # a new branch begins as `main`
            with suppress(RepositoryNotFoundError, RevisionNotFoundError):
                remote = {*(api or HfApi()).list_repo_files(publication.repo_id, revision=branch)}
    if publication.card_is_generated and CARD in remote:
        files.pop(CARD)
    stale = {name for name in remote if any(fnmatch(name, pattern) for pattern in STALE)}
    return files, sorted(stale - files.keys())


def push(
    publication: Publication,
    repo_id: str,
    *,
    private: bool | None = None,
    revision: str | None = None,
    tag: str | None = None,
    commit_message: str = "Upload model",
    api: HfApi | None = None,
) -> CommitInfo:
    """Upload a publication as one commit, and tag it.

    A generated card does not replace one on the Hub. Weight files of an earlier upload that are not in this one are
    deleted, because Transformers might prefer them; the history keeps them. What an interrupted upload has already
    sent is not sent again.

    Args:
        publication: from [`stage`].
        repo_id: `user/name`; made if it does not exist.
        private: whether a new repository is private. True also refuses a repository that exists and is public.
        revision: the branch to commit to, made if it does not exist; `main` by default.
        tag: a tag for the commit.
        commit_message: first line of the commit.
        api: the Hub and the token to use; those of huggingface_hub by default.

    Raises:
        PublishError: the Hub refused, the connection broke, somebody else committed meanwhile, or the tag exists.
    """
    api = api or HfApi()
    with explained(repo_id):
        repo_id = api.create_repo(repo_id, private=private, exist_ok=True).repo_id
        if private and not api.model_info(repo_id).private:
            raise PublishError(f"{repo_id} exists and is public. Make it private, or choose another name.")
        if tag in {reference.name for reference in api.list_repo_refs(repo_id).tags}:
            raise PublishError(f"{repo_id} already has a tag {tag!r}; choose another one.")
        if revision is not None:
            api.create_branch(repo_id, branch=revision, exist_ok=True)
        head = api.model_info(repo_id, revision=revision).sha
        uploaded, _ = plan(publication, revision, api)
        commit = api.upload_folder(
            repo_id=repo_id,
            folder_path=publication.folder,
            commit_message=commit_message,
            revision=revision,
            parent_commit=head,
            ignore_patterns=None if CARD in uploaded else [CARD],
            delete_patterns=[*STALE],
        )
        if tag is not None:
            api.create_tag(repo_id, tag=tag, revision=commit.oid)
    return commit


@contextmanager
def explained(repo_id: str) -> Iterator[None]:
    """Turns errors of the Hub's client within the context into a `PublishError` with the way out; others pass."""
    try:
        yield
    except (HFValidationError, HfHubHTTPError, httpx.HTTPError, httpx.InvalidURL, OfflineModeIsEnabled) as error:
        status = getattr(getattr(error, "response", None), "status_code", 0)
        reason = getattr(error, "server_message", None) or str(error).strip().partition("\n")[0]
        if status in REFUSALS:
            raise PublishError(REFUSALS[status].format(repo_id)) from error
        text = f"{repo_id} could not be published: {reason or type(error).__name__}."
        if not isinstance(error, HFValidationError):
            text += " Run the same command again when the Hub answers; what has been sent is not sent twice."
        raise PublishError(text) from error


def _set_labels(staging: Path, labels: Sequence[str]) -> None:
    config = read_part(staging, "config.json")
    known = config.get("id2label") or {}
    if len({*labels}) != len(labels) or (known and len(known) != len(labels)):
        raise PublishError(f"There are {len({*labels})} different labels, but the model has {len(known)} classes.")
    renamed = dict(zip(known.values(), labels, strict=False))
    if (background := config.get("background_label")) in renamed:
        config["background_label"] = renamed[background]
    if points := config.get("point_labels"):
        config["point_labels"] = [renamed.get(each, each) for each in points]
    config["id2label"] = {str(index): label for index, label in enumerate(labels)}
    config["label2id"] = {label: index for index, label in enumerate(labels)}
    write_json(staging / "config.json", config)


def _remove_paths(staging: Path) -> None:
    """Paths of this machine, which nobody elsewhere could use, leave the state of a training and its adapters."""
    if (state := staging / TRAINER_STATE_NAME).is_file():
        write_json(state, read_part(staging, TRAINER_STATE_NAME) | {"best_model_checkpoint": None})
    if (staging / ADAPTER_CONFIG).is_file():
        adapter = read_part(staging, ADAPTER_CONFIG)
        if os.path.isabs(adapted := adapter.get("base_model_name_or_path") or ""):
            write_json(staging / ADAPTER_CONFIG, adapter | {"base_model_name_or_path": Path(adapted).name})


def _license_of(source: dict[str, Any], api: HfApi) -> str | None:
    """The licence of the model that was fine-tuned, if it is known."""
    if "license" not in source and is_repository(source):
        with suppress(OSError, httpx.HTTPError):
            card = api.model_info(source["name"], timeout=constants.HF_HUB_ETAG_TIMEOUT).card_data
            source["license"] = card.license if card is not None else None
    if not source.get("license"):
        logger.warning(
            "The card states no licence. The model is published all the same, but nobody may use it: name one with "
            "--license."
        )
    return source.get("license")
