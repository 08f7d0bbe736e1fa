"""Publishes a model folder as a repository on the Hub that anyone can load: stage, check, push, verify."""

import logging
import os
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from huggingface_hub import (
    CommitInfo,
    CommitOperationAdd,
    CommitOperationDelete,
    HfApi,
    ModelInfo,
    constants,
    get_token,
)
from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError
from huggingface_hub.utils import httpx, validate_repo_id
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME

from hf_video.io import sha256_of

from .connection import PublishError, explained
from .custom_code import add_code, write_json
from .folder_checks import (
    ADAPTER_CONFIG,
    CARD,
    TEXT,
    TRAINER_STATE_NAME,
    find_problems,
    read_config,
    read_part,
    select_files,
)
from .loading_check import verify
from .model_card import is_repository, write_card, write_evaluation_results
from .self_test import write_self_test
from .training_facts import read_facts

logger = logging.getLogger(__name__)

# Bytes. Smaller files are copied, so that they cannot change between the checks and the upload. Copies of weights
# would fill a disk.
LINKED_FROM = 10 * 2**20


@dataclass
class Publication:
    """A complete repository in a folder, checked and ready for the upload.

    Attributes:
        folder: holds exactly the files of the repository.
        left_out: files of the model folder that are not published, with the reason.
        card_is_generated: whether the card was written here. Such a card does not replace one on the Hub.
        hashes: SHA-256 by file name, for files that are links into the model folder.
        repo_id: `user/name`.
    """

    folder: Path
    left_out: dict[str, str] = field(default_factory=dict)
    card_is_generated: bool = False
    hashes: dict[str, str] = field(default_factory=dict)
    repo_id: str = ""

    @property
    def files(self) -> dict[str, int]:
        """The size in bytes of every file, by its path in the repository."""
        paths = (path for path in sorted(self.folder.rglob("*")) if path.is_file())
        return {path.relative_to(self.folder).as_posix(): path.stat().st_size for path in paths}


def publish(
    folder: str | os.PathLike,
    repo_id: str,
    *,
    labels: Sequence[str] | None = None,
    with_training_state: bool = False,
    allow_tokens: bool = False,
    facts: dict[str, Any] | None = None,
    api: HfApi | None = None,
    **options: Any,
) -> CommitInfo:
    """Publish a model folder as one commit that loads with `trust_remote_code=True` and nothing of ours installed.

    Args:
        folder: a folder that `save_pretrained` of model and processor, or `hf-video train`, wrote. It is not changed.
        repo_id: `user/name`; made if it does not exist.
        labels: names of the classes in the order of their ids, in place of those in the folder.
        with_training_state: whether to publish the state of the optimizer and of all else that resumes training.
        allow_tokens: whether to publish texts in which something looks like a token.
        facts: facts for the card, in place of those that training recorded in the folder.
        api: the Hub and the token to use; those of huggingface_hub by default.
        options: passed to [`push`].

    Raises:
        PublishError: the folder has problems, which are all listed, or the Hub refused; see [`stage`] and [`push`].
    """
    with tempfile.TemporaryDirectory() as staging:
        publication = stage(
            folder,
            staging,
            repo_id,
            labels=labels,
            with_training_state=with_training_state,
            allow_tokens=allow_tokens,
            facts=facts,
            api=api,
        )
        return push(publication, repo_id, api=api, **options)


def stage(
    folder: str | os.PathLike,
    staging: str | os.PathLike,
    repo_id: str,
    *,
    labels: Sequence[str] | None = None,
    with_training_state: bool = False,
    allow_tokens: bool = False,
    facts: dict[str, Any] | None = None,
    api: HfApi | None = None,
) -> Publication:
    """Build the repository in an empty folder and check it: text, weights, labels, card, and that it loads.

    The code of the family, and of those that it is built around, is put beside the weights, every class goes into
    `auto_map`, and a self-test is made, with which [`verify_model`] compares. If the folder has no model card, one is
    written from the facts that training recorded. Large files are linked, not copied, and the hash of what was checked
    is kept.

    Args:
        folder: the model folder; it is not changed.
        staging: an empty folder, to be kept until the push.
        repo_id: the name that the card's example loads. If it has no user, the owner of the token is put before it.
        labels, with_training_state, allow_tokens, facts: see [`publish`].
        api: the Hub on which the owner is looked up, and the licence of the model that was fine-tuned.

    Raises:
        PublishError: there is no such folder, or it has problems, which are all listed. Nothing was sent anywhere.
    """
    folder, staging = Path(folder), Path(staging)
    if not folder.is_dir():
        raise PublishError(f"There is no folder {folder}.")
    api = api or HfApi()
    with explained(repo_id):
        validate_repo_id(repo_id)
        if "/" not in repo_id:
            repo_id = f"{api.whoami()['name']}/{repo_id}"
    chosen, left_out = select_files(folder, with_training_state)
    hashes = {}
    for name in chosen:
        (staging / name).parent.mkdir(exist_ok=True)
        if (folder / name).stat().st_size < LINKED_FROM or not _link(folder / name, staging / name):
            shutil.copyfile(folder / name, staging / name)
        else:
            hashes[name] = sha256_of(staging / name)
    if (state := staging / TRAINER_STATE_NAME).is_file():
        content = read_part(staging, TRAINER_STATE_NAME)
        # The path is one of this machine, which a resumed run elsewhere could not use.
        write_json(state, content | {"best_model_checkpoint": None})
    if (staging / ADAPTER_CONFIG).is_file():
        # PEFT writes where the adapted model was, which may be a folder of this machine.
        adapter = read_part(staging, ADAPTER_CONFIG)
        if os.path.isabs(adapted := adapter.get("base_model_name_or_path") or ""):
            write_json(staging / ADAPTER_CONFIG, adapter | {"base_model_name_or_path": Path(adapted).name})
    config, problems = read_config(staging)
    _refuse(folder, problems)
    if labels is not None:
        _set_labels(config, labels)
    add_code(staging, config)
    publication = Publication(staging, left_out, CARD not in chosen, hashes, repo_id)
    try:
        facts = read_facts(folder) if facts is None else facts
    except ValueError as error:
        raise PublishError(f"{folder} cannot be published as it is: {error}") from error
    _complete_license(facts.get("source") or {}, api)
    _refuse(folder, find_problems(staging, allow_tokens))
    write_self_test(staging)
    if publication.card_is_generated:
        write_card(staging, repo_id, facts)
    write_evaluation_results(staging, facts)
    _refuse(folder, find_problems(staging, allow_tokens))
    verify(str(staging))
    return publication


def remote_files(publication: Publication, revision: str | None = None, api: HfApi | None = None) -> set[str]:
    """The files of the branch that [`push`] commits to; none if the repository does not exist. It is a `PublishError`
    if the Hub refuses or cannot be reached."""
    api = api or HfApi()
    with explained(publication.repo_id), suppress(RepositoryNotFoundError):
        try:
            info = api.model_info(publication.repo_id, revision=revision)
        except RevisionNotFoundError:  # a new branch begins as `main`
            info = api.model_info(publication.repo_id)
        return {file.rfilename for file in info.siblings or []}
    return set()


def plan(publication: Publication, remote: set[str]) -> tuple[dict[str, int], list[str]]:
    """What [`push`] uploads, with the sizes in bytes, and what it deletes, where a branch has the files `remote`."""
    files = publication.files
    if publication.card_is_generated and CARD in remote:
        files.pop(CARD)
    stale = {name for name in remote if "/" not in name and name.endswith((".safetensors", SAFE_WEIGHTS_INDEX_NAME))}
    return files, sorted(stale - files.keys())


def push(
    publication: Publication,
    repo_id: str,
    *,
    private: bool | None = None,
    revision: str | None = None,
    tag: str | None = None,
    commit_message: str = "Upload model",
    check_download: bool = True,
    api: HfApi | None = None,
) -> CommitInfo:
    """Upload a publication as one commit, load it back in a fresh process, then tag it.

    A generated card does not replace one on the Hub. Weight files of an earlier upload that are not in this one are
    deleted, because Transformers might prefer them; the history keeps them. What an interrupted upload has already
    sent is not sent again.

    Args:
        publication: from [`stage`].
        repo_id: `user/name`; made if it does not exist.
        private: whether a new repository is private. True also refuses a repository that exists and is public.
        revision: the branch to commit to, made if it does not exist; `main` by default.
        tag: a tag for the commit, set after the model was loaded from it.
        commit_message: first line of the commit.
        check_download: whether to load the result from the Hub, in a process without hf_video and with an empty cache.
        api: the Hub and the token to use; those of huggingface_hub by default.

    Raises:
        PublishError: the Hub refused, the connection broke, somebody else committed meanwhile, the tag exists, or
            what was uploaded does not load.
    """
    api = api or HfApi()
    with explained(repo_id):
        validate_repo_id(repo_id)
        repo_id = api.create_repo(repo_id, private=private, exist_ok=True).repo_id
        head = _prepare_branch(api, repo_id, private, revision, tag)
        operations = _operations(publication, {file.rfilename for file in head.siblings or []})
        for operation in operations:
            # One file at a time: several would be sent by threads, for which Ctrl-C waits.
            if isinstance(operation, CommitOperationAdd) and not operation.path_in_repo.endswith((*TEXT, ".py")):
                api.preupload_lfs_files(repo_id, additions=[operation], revision=revision, free_memory=False)
    with explained(repo_id, partial(_describe_outcome, api, repo_id, revision, head.sha)):
        commit = api.create_commit(
            repo_id, operations, commit_message=commit_message, revision=revision, parent_commit=head.sha
        )
    if check_download:
        access = {"endpoint": api.endpoint, "token": api.token if isinstance(api.token, str) else get_token()}
        try:
            verify(repo_id, revision=commit.oid, **access)
        except PublishError as error:
            raise PublishError(f"{repo_id} was uploaded as commit {commit.oid}, but: {error}") from error
        except KeyboardInterrupt:
            untagged = f" and not tagged {tag}" if tag else ""
            raise KeyboardInterrupt(
                f"{repo_id} was uploaded as commit {commit.oid}, but not looked at{untagged}."
            ) from None
    if tag is not None:
        with explained(repo_id, lambda: f"Commit {commit.oid} was published, but has no tag"):
            api.create_tag(repo_id, tag=tag, revision=commit.oid)
    return commit


def _prepare_branch(
    api: HfApi, repo_id: str, private: bool | None, revision: str | None, tag: str | None
) -> ModelInfo:
    """The state of the branch to commit to, which is made if it does not exist."""
    info = api.model_info(repo_id)
    if private and not info.private:
        raise PublishError(f"{repo_id} exists and is public. Make it private in its settings, or choose another name.")
    references = api.list_repo_refs(repo_id)
    if tag in {reference.name for reference in references.tags}:
        raise PublishError(f"{repo_id} already has a tag {tag!r}; choose another one.")
    if revision is None:
        return info
    if revision in {reference.name for reference in references.tags}:
        raise PublishError(f"{revision!r} is a tag of {repo_id}; only a branch can be committed to.")
    api.create_branch(repo_id, branch=revision, exist_ok=True)
    return api.model_info(repo_id, revision=revision)


def _describe_outcome(api: HfApi, repo_id: str, revision: str | None, before: str | None) -> str:
    """Says whether a commit was made to which no answer came."""
    try:
        now = api.model_info(repo_id, revision=revision, timeout=constants.HF_HUB_ETAG_TIMEOUT).sha
    except (OSError, httpx.HTTPError):
        return "Whether it was published is unknown"
    return "Nothing was published" if now == before else f"{repo_id} has a new commit {now}"


def _operations(publication: Publication, remote: set[str]) -> list[CommitOperationAdd | CommitOperationDelete]:
    files, stale = plan(publication, remote)
    additions = [CommitOperationAdd(name, publication.folder / name) for name in files]
    sent = {addition.path_in_repo: addition.upload_info.sha256.hex() for addition in additions}
    for name, checked in publication.hashes.items():
        if sent.get(name) != checked:
            raise PublishError(f"{name} has changed since it was checked; nothing was published. Publish again.")
    return [*additions, *map(CommitOperationDelete, stale)]


def _complete_license(source: dict[str, Any], api: HfApi) -> None:
    if not is_repository(source) or "license" in source:
        return
    try:
        card = api.model_info(source["name"], timeout=constants.HF_HUB_ETAG_TIMEOUT).card_data
    except (OSError, httpx.HTTPError) as error:
        logger.warning(f"The card states no licence: that of {source['name']} cannot be looked up ({error}).")
        return
    if card is not None and card.license:
        source["license"] = card.license


def _set_labels(config: dict[str, Any], labels: Sequence[str]) -> None:
    known = config.get("id2label")
    if known is not None and len(known) != len(labels):
        raise PublishError(f"There are {len(labels)} labels, but the model has {len(known)} classes.")
    if len(set(labels)) != len(labels):
        raise PublishError("Two labels are the same; every class needs a name of its own.")
    renamed = dict(zip((known or {}).values(), labels, strict=False))
    if config.get("background_label") in renamed:
        config["background_label"] = renamed[config["background_label"]]
    config["id2label"] = {str(index): label for index, label in enumerate(labels)}
    config["label2id"] = {label: index for index, label in enumerate(labels)}


def _refuse(folder: Path, problems: Sequence[str]) -> None:
    """Raises `PublishError` if there are any problems."""
    if problems:
        raise PublishError("\n  - ".join([f"{folder} cannot be published as it is:", *problems]))


def _link(source: Path, target: Path) -> bool:
    """Makes a symbolic link. False if the file system, or the Windows account, has none."""
    try:
        target.symlink_to(source.resolve())
    except OSError:
        return False
    return True
