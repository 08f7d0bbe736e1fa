"""Finds secrets in files that are to be published: tokens, and paths of the author's machine.

Texts are scanned line by line: as they are, and with escapes undone. In other files the scan covers what may hold
words of the author: names and metadata of tensors, texts in pictures, readable strings.
"""

import json
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path

from PIL import Image
from safetensors import SafetensorError, safe_open

TEXT = (".json", ".md", ".txt", ".yaml", ".jinja")
# They list words and parts of words, some of which look like paths.
VOCABULARIES = ("vocab.json", "vocab.txt", "merges.txt", "tokenizer.json")
# Bytes. What follows in a file other than a text is the data of tensors.
MAX_BINARY_SIZE = 2**26

SECRETS = {
    "a Hugging Face token": r"(?<![A-Za-z0-9])(?:hf_|api_org_)[A-Za-z0-9]{30,}",
    "a token of the training's options": r"hub_token[\"']?\s*[:=]\s*[\"'](?!<|\$|\{)[^\"'\s]{4,}",
    "a private key": r"-----BEGIN [A-Z ]*PRIVATE KEY-----",
    "an AWS key": r"(?<![A-Za-z0-9])A[KS]IA[0-9A-Z]{16}(?![A-Za-z0-9])",
    "a GitHub token": r"(?<![A-Za-z0-9])(?:gh[pousr]_[A-Za-z0-9]{36}|github_pat_\w{50,})",
    "a GitLab token": r"(?<![A-Za-z0-9])glpat-[\w-]{20,}",
    "a Slack token": r"(?<![A-Za-z0-9])xox[abeoprs]-[\w-]{10,}",
    "a Google key": r"(?<![A-Za-z0-9])AIza[\w-]{35}",
    "an API key": r"(?<![A-Za-z0-9])sk-[A-Za-z0-9_-]{32,}",
    "a signed token": r"(?<![A-Za-z0-9])eyJ[\w-]{10,}\.eyJ[\w-]{10,}\.[\w-]{10,}",
    "an address with a password": r"://[^/\s:@\"'<>]+:[^/\s:@\"'<>{$]+@",
}
# No path begins after these characters: they stand inside paths, addresses, markup or fractions.
_NO_BEGIN = r"(?<![\w.:/\\<>~)}\]*?%@#+&-])"
# The target of a link is a route of the page's own site.
_NO_LINK = r"(?<!\]\()(?<!href=[\"'])(?<!src=[\"'])"
_ROUTES = r"(?!(?:api|resolve|blob|tree|raw|commit|discussions|papers)/)(?!v\d+/)"
_OF_EVERY_MACHINE = r"(?!path/to/)(?!dev/(?:null|std\w+)\b)(?!(?:usr/)?s?bin/)"
_NAME = r"[\w.@+~-]"
PATH_OF_A_MACHINE = "|".join(
    (
        # /nfs/videos or /c/Users: two names, the first of which has a letter; /m/s is a unit
        rf"{_NO_BEGIN}{_NO_LINK}/{_ROUTES}{_OF_EVERY_MACHINE}"
        rf"(?:(?=[\d.@+~-]*[^\W\d_])\.?\w{_NAME}+/\.?\w|[A-Za-z]/\w{{2}})[^\s\"'`<>)]*",
        rf"{_NO_BEGIN}~/\.?\w[^\s\"'`<>)]*",
        r"\bfile:/+\w[^\s\"'`<>)]*",
        # C:\videos or c:\users\me, C:/videos; \frac of a formula follows small letters, too
        r"(?<![A-Za-z])(?:[A-Z]:(?:\\+|/)\w|[a-z]:\\+[\w.-]+\\|[a-z]:/\w[\w.-]*/)[^\s\"'`<>]*",
        # \\server\share, in a JSON file \\\\server\\share
        r"(?<![\\\w])(?:\\\\|\\{4})\w[\w.-]+(?:\\|\\\\)\w[\w.$-]*",
    )
)
# Data such as a picture: no path is so long without another character.
_DATA = r"[A-Za-z0-9+/]{200,}"
_STRING = rb"[\t\x20-\x7e]{6,}"


def scan(path: Path, name: str) -> list[str]:
    """A sentence with the way out for each line of a regular file that has a secret or a path, which must not be
    published, and for its name in the repository. The secret is not repeated."""
    problems = []
    if not name.isprintable() or "\\" in name:
        problems.append(f"{name!a} is not a plain name for a file. Rename it.")
    if kinds := _find(name, with_paths=False):
        problems.append(f"The name of a file looks like {kinds[0]}. Rename it.")
    # In other files random bytes would look like paths.
    holds_words = _is_text(path) or path.suffix in (".safetensors", ".png")
    with_paths = holds_words and path.name not in VOCABULARIES
    for place, text in _texts(path):
        for kind in _find(text, with_paths, is_json=name.endswith(".json")):
            where = f"{name}, {place}" if place else name
            if kind in SECRETS:
                problems.append(f"{where}: this looks like {kind}. Remove it, and revoke it.")
            else:
                problems.append(f"{where}: {kind!r} is a path on your machine; remove it.")
    return problems


def _find(text: str, with_paths: bool, is_json: bool = False) -> list[str]:
    """The kinds of secrets in a line, and its first path."""
    readings = [text]
    # A string in JSON may hold JSON, whose escapes are undone in turn.
    while is_json and len(readings) < 4 and (plain := _without_escapes(readings[-1])) != readings[-1]:
        readings.append(plain)
    kinds = [kind for kind, pattern in SECRETS.items() if any(re.search(pattern, each) for each in readings)]
    if with_paths:
        without_data = (re.sub(_DATA, "", each) for each in readings)
        paths = [match[0] for each in without_data if (match := re.search(PATH_OF_A_MACHINE, each))]
        kinds += [re.sub("|".join(SECRETS.values()), "***", path) for path in paths[:1]]
    return kinds


def _without_escapes(text: str) -> str:
    def character(match: re.Match[str]) -> str:
        code = match[1]
        if code[0] == "u":
            return chr(int(code[1:], 16))
        return " " if code in "bfnrt" else code

    return re.sub(r"\\(u[0-9a-fA-F]{4}|[bfnrt\"\\/])", character, text)


def _is_text(path: Path) -> bool:
    return path.name.endswith(TEXT) or path.name.startswith("LICENSE")


def _texts(path: Path) -> Iterator[tuple[str, str]]:
    """Pieces of text in a file, and where each is."""
    if _is_text(path):
        # UTF-16 has a zero byte beside each Latin letter.
        content = path.read_bytes().replace(b"\0", b"").decode("utf-8", errors="replace")
        yield from ((f"line {number}", line) for number, line in enumerate(content.splitlines(), 1))
    elif path.suffix == ".safetensors":
        yield from _texts_of_weights(path)
    elif path.suffix == ".png":
        yield from _texts_of_picture(path)
    elif zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            for member in archive.infolist():
                # torch.save puts everything but tensors here.
                if member.filename.endswith("/data.pkl") and member.file_size <= MAX_BINARY_SIZE:
                    yield from (("", text) for text in _strings(archive.read(member)))
    else:
        with path.open("rb") as file:
            yield from (("", text) for text in _strings(file.read(MAX_BINARY_SIZE)))


def _texts_of_weights(path: Path) -> Iterator[tuple[str, str]]:
    try:
        with safe_open(path, framework="pt") as weights:
            metadata, names = weights.metadata() or {}, list(weights.keys())
    except SafetensorError:
        return  # the check of the weights reports it
    yield from ((f"metadata {key!a}", f"{key}: {json.dumps(value)}") for key, value in metadata.items())
    yield from (("a tensor's name", name) for name in names)


def _texts_of_picture(path: Path) -> Iterator[tuple[str, str]]:
    try:
        with Image.open(path) as picture:
            picture.load()
            entries = {**picture.info, **getattr(picture, "text", {})}
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        # Not a picture, or a damaged one: scan the strings in its bytes.
        entries = {"": path.read_bytes()[:MAX_BINARY_SIZE]}
    entries.pop("xmp", None)  # the same as "XML:com.adobe.xmp"
    for key, value in entries.items():
        texts = _strings(value) if isinstance(value, bytes) else [f"{key}: {value}"]
        yield from ((f"text {key!a}" if key else "", text) for text in texts)


def _strings(data: bytes) -> Iterator[str]:
    yield from (match[0].decode("ascii") for match in re.finditer(_STRING, data))
