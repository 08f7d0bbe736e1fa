"""What the server answers: accounts, repositories, references, uploads and downloads."""

import base64
import hashlib
import hmac
import json
import re
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import yaml

from .handler import Handler, Refusal, route
from .storage import File, Repository

if TYPE_CHECKING:
    from .server import HubServer

# What goes to the storage of large files whatever its size.
LARGE_FILES = (".safetensors", ".bin", ".pt", ".pth", ".zip")


def find_commit(repository: Repository, revision: str) -> str:
    commit = repository.resolve(revision)
    if commit is None:
        raise Refusal(404, f"Invalid rev id: {revision}", "RevisionNotFound")
    return commit


def card_metadata(content: str) -> dict[str, Any]:
    """The front matter of a model card; one that is no mapping is refused."""
    front_matter = re.match(r"---\s*\n(.*?\n)---\s*(\n|$)", content, re.DOTALL)
    try:
        metadata = yaml.safe_load(front_matter[1]) if front_matter else {}
    except yaml.YAMLError as error:
        raise Refusal(400, f"YAML: {error}".splitlines()[0]) from error
    if not isinstance(metadata, dict):
        raise Refusal(400, "metadata must be a mapping")
    return metadata


@route("GET", "/api/whoami-v2")
def whoami(request: Handler) -> None:
    if request.user is None:
        raise Refusal(401, "Invalid username or password.")
    token = {"displayName": "test", "role": request.user.role}
    request.send(content={"type": "user", "name": request.user.name, "auth": {"accessToken": token}, "orgs": []})


@route("POST", "/api/validate-yaml")
def validate_card(request: Handler) -> None:
    try:
        card_metadata(request.json()["content"])
    except Refusal as refusal:
        return request.send(400, {"errors": [{"message": refusal.message}], "warnings": []})
    request.send(content={"errors": [], "warnings": []})


@route("POST", "/api/repos/create")
def create_repository(request: Handler) -> None:
    wanted = request.json()
    namespace = wanted.get("organization") or (request.user.name if request.user else "")
    request.require_write(namespace)
    repo_id = f"{namespace}/{wanted['name']}"
    link = {"url": f"{request.hub.endpoint}/{repo_id}"}
    with request.hub.lock:
        if repo_id in request.hub.repositories:
            # The clients read the address from here when they may find the repository there already.
            return request.send(409, link | {"error": "You already created this model repo"})
        private = wanted.get("visibility") == "private" or wanted.get("private", False)
        request.hub.repositories[repo_id] = Repository(private)
    request.send(content=link)


@route("GET", "/api/models/{repo}(/revision/{revision})?")
def repository_info(request: Handler, repo_id: str, revision: str) -> None:
    repository = request.find(repo_id)
    oid = find_commit(repository, revision or "main")
    files = repository.commits[oid]
    metadata = card_metadata(files["README.md"].content.decode()) if "README.md" in files else {}
    request.send(
        content={
            "id": repo_id,
            "sha": oid,
            "private": repository.private,
            "tags": metadata.get("tags", []),
            "cardData": metadata,
            "pipeline_tag": metadata.get("pipeline_tag"),
            "library_name": metadata.get("library_name"),
            "siblings": [{"rfilename": path} for path in sorted(files)],
        }
    )


@route("GET", "/api/models/{repo}/tree/{revision}(/{path})?")
def list_files(request: Handler, repo_id: str, revision: str, path: str) -> None:
    repository = request.find(repo_id)
    entries = _entries(repository.commits[find_commit(repository, revision)])
    folder, is_recursive = (f"{path}/" if path else ""), "recursive=true" in request.path.lower()
    request.send(
        content=[
            entry
            for name, entry in sorted(entries.items())
            if name.startswith(folder) and (is_recursive or "/" not in name.removeprefix(folder))
        ]
    )


@route("POST", "/api/models/{repo}/paths-info/{revision}")
def describe_paths(request: Handler, repo_id: str, revision: str) -> None:
    repository = request.find(repo_id)
    entries = _entries(repository.commits[find_commit(repository, revision)])
    try:
        paths = request.json()["paths"]
    except ValueError:
        paths = parse_qs(request.body.decode()).get("paths", [])
    request.send(content=[entries[path] for path in paths if path in entries])


def _entries(files: dict[str, File]) -> dict[str, dict[str, Any]]:
    """What a listing has of files and of the folders that they lie in, by path."""
    folders = {str(parent) for path in files for parent in PurePosixPath(path).parents} - {"."}
    entries = {path: {"type": "directory", "path": path, "oid": "0" * 40, "size": 0} for path in folders}
    return entries | {path: _describe(path, file) for path, file in files.items()}


def _describe(path: str, file: File) -> dict[str, Any]:
    large = {"lfs": {"oid": file.sha256, "size": file.size, "pointerSize": 134}} if file.sha256 else {}
    return {"type": "file", "path": path, "oid": file.oid, "size": file.size} | large


@route("GET", "/api/models/{repo}/refs")
def list_references(request: Handler, repo_id: str) -> None:
    repository = request.find(repo_id)
    request.send(
        content={
            kind: [{"name": name, "ref": f"refs/{name}", "targetCommit": oid} for name, oid in table.items()]
            for kind, table in (("branches", repository.branches), ("tags", repository.tags), ("converts", {}))
        }
    )


@route("POST", "/api/models/{repo}/branch/{name}")
def create_branch(request: Handler, repo_id: str, name: str) -> None:
    repository = request.find(repo_id, write=True)
    if name in repository.branches:
        raise Refusal(409, f"Reference already exists: {name}")
    repository.branches[name] = find_commit(repository, request.json().get("startingPoint", "main"))
    request.send()


@route("POST", "/api/models/{repo}/tag/{revision}")
def create_tag(request: Handler, repo_id: str, revision: str) -> None:
    repository, name = request.find(repo_id, write=True), request.json()["tag"]
    if name in repository.tags:
        raise Refusal(409, f"Tag reference exists already: {name}")
    repository.tags[name] = find_commit(repository, revision)
    request.send()


@route("POST", "/api/models/{repo}/preupload/{revision}")
def choose_upload_modes(request: Handler, repo_id: str, revision: str) -> None:
    repository = request.find(repo_id, write=True)
    known = repository.commits[find_commit(repository, revision)]
    answers = []
    for path in (file["path"] for file in request.json()["files"]):
        mode = "lfs" if path.endswith(LARGE_FILES) else "regular"
        present = {"oid": known[path].etag} if path in known else {}
        answers.append({"path": path, "uploadMode": mode, "shouldIgnore": False} | present)
    request.send(content={"files": answers})


@route("POST", r"/{repo}\.git/info/lfs/objects/batch")
def offer_large_uploads(request: Handler, repo_id: str) -> None:
    request.find(repo_id, write=True)
    answers = []
    for wanted in request.json()["objects"]:
        answer = {"oid": wanted["oid"], "size": wanted["size"]}
        if not request.hub.large_file_path(wanted["oid"]).exists():
            # Without an action the client knows that the content is there already.
            answer["actions"] = {"upload": {"href": request.hub.signed_link(wanted["oid"])}}
        answers.append(answer)
    request.send(content={"transfer": "basic", "objects": answers})


@route("PUT GET HEAD", "/(?P<sha256>[0-9a-f]{64})")
def large_file_content(request: Handler, sha256: str) -> None:
    if "Authorization" in request.headers:
        request.hub.errors.append(f"A token was sent to the storage of large files: {request.command}")
    if not hmac.compare_digest(urlsplit(request.path).query, f"signature={request.hub.signature(sha256)}"):
        raise Refusal(403, "SignatureDoesNotMatch")
    path = request.hub.large_file_path(sha256)
    if request.command != "PUT":
        return request.send(content=path.read_bytes(), headers={"ETag": f'"{sha256}"'})
    if hashlib.sha256(request.body).hexdigest() != sha256:
        raise Refusal(400, "The content does not have the announced SHA-256.")
    path.write_bytes(request.body)
    request.send()


@route("POST", "/api/models/{repo}/commit/{revision}")
def commit(request: Handler, repo_id: str, revision: str) -> None:
    header, *changes = [json.loads(line) for line in request.body.splitlines()]
    with request.hub.lock:
        repository = request.find(repo_id, write=True)
        if revision not in repository.branches:
            raise Refusal(404, f"{revision} is not a branch", "RevisionNotFound")
        parent = repository.branches[revision]
        if header["value"].get("parentCommit", parent) != parent:
            raise Refusal(412, "A commit has happened since. Please refresh and try again.")
        files = dict(repository.commits[parent])
        for change in changes:
            _apply(request.hub, files, change["key"], change["value"])
        oid = repository.commit(revision, files)
    request.send(content={"commitOid": oid, "commitUrl": f"{request.hub.endpoint}/{repo_id}/commit/{oid}"})


def _apply(hub: "HubServer", files: dict[str, File], kind: str, value: dict[str, Any]) -> None:
    path = value["path"]
    if kind == "file":
        content = base64.b64decode(value["content"])
        if path == "README.md":
            card_metadata(content.decode())
        files[path] = File.make(content)
    elif kind == "lfsFile":
        stored = hub.large_file_path(value["oid"])
        if not stored.exists():
            raise Refusal(400, f"LFS pointer pointed to a file that does not exist: {path}")
        files[path] = File(value["oid"][:40], stored.stat().st_size, sha256=value["oid"])
    elif files.pop(path, None) is None:  # deletedFile
        raise Refusal(404, f"A file with this name doesn't exist: {path}", "EntryNotFound")


@route("GET HEAD", "/{repo}/resolve/{revision}/{path}")
def download(request: Handler, repo_id: str, revision: str, path: str) -> None:
    repository = request.find(repo_id)
    oid = find_commit(repository, revision)
    file = repository.commits[oid].get(path)
    if file is None:
        raise Refusal(404, "Entry not found", "EntryNotFound", oid)
    headers = {"X-Repo-Commit": oid, "ETag": f'"{file.etag}"'}
    if file.sha256 is None:
        return request.send(content=file.content, headers=headers)
    headers |= {"X-Linked-Etag": headers["ETag"], "X-Linked-Size": str(file.size)}
    request.send(302, headers=headers | {"Location": request.hub.signed_link(file.sha256)})
