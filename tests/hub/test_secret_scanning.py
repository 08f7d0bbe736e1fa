"""Tokens and paths of the author's machine are found in every file that may go up, and little else is."""

import base64
import json
import random
import shutil
import string

import pytest
import torch
from PIL import Image
from PIL.PngImagePlugin import PngInfo
from safetensors.torch import load_file, save_file

from hf_video.cli.main import main
from hf_video.hub import PublishError, publishing, stage
from hf_video.hub.secret_scanning import SECRETS, scan

LETTERS = string.ascii_letters + string.digits
TOKEN = "hf_" + "".join(random.Random(0).choices(LETTERS, k=34))
TOKENS = {
    TOKEN: "a Hugging Face token",
    "api_org_" + "a" * 34: "a Hugging Face token",
    "AKIA" + "A" * 16: "an AWS key",
    "ghp_" + "a" * 36: "a GitHub token",
    "github_pat_" + "a" * 60: "a GitHub token",
    "glpat-" + "a" * 20: "a GitLab token",
    "xoxb-" + "1" * 20: "a Slack token",
    "AIza" + "a" * 35: "a Google key",
    "sk-" + "a" * 40: "an API key",
    "-----BEGIN RSA PRIVATE KEY-----": "a private key",
    '"hub_token": "secret"': "a token of the training's options",
    "hub_token: 'secret'": "a token of the training's options",
    "https://me:secret@example.org/x": "an address with a password",
    ".".join((f"eyJ{'a' * 20}", f"eyJ{'b' * 20}", "c" * 20)): "a signed token",
}
PATHS = [
    *(
        "/home/me/videos",
        "/data/k400/train.csv",
        "/nfs/team/videos",
        "/media/disk/x",
        "/gpfs/scratch/me",
        "/lustre/x1",
    ),
    *("/Volumes/Disk/x", "/storage/x", "/cluster/home/me", "/workspace/x", "/content/drive/MyDrive", "/kaggle/input"),
    *(
        "/mnt/c/Users",
        "/c/Users/me",
        "/u/me/x",
        "/dev/shm/me",
        "/etc/passwd",
        "/raid0/me",
        "/.config/me",
        "/données/x",
    ),
    *("~/videos", "~/.cache/x", "file:///home/me", "file:/tmp/x", "file://server/share"),
    *("C:\\videos", "c:\\users\\me", "D:/videos", "d:/videos/x", "\\\\server\\share", "\\\\nas01\\videos$\\x"),
]
HARMLESS = [
    *(
        "https://host/home/me",
        "s3://bucket/data/x",
        "//cdn.example.org/data/x",
        "hf://datasets/a/b",
        "a/b/c",
        "./data/x",
    ),
    *(
        "../data/x",
        "videos/data/x.mp4",
        "and/or",
        "N/A",
        "frames/s",
        "/m/s",
        "1/2",
        "2024/05/17",
        "on 17/05/2024",
        "/",
    ),
    *("24 /7", "/resolve/main/x.png", "/api/models/x", "/v1/chat/completions", "/blob/main/README.md", "/tree/main/x"),
    *("[a](/docs/transformers/index)", '<a href="/papers/2203.12602">', "<img src='/front/assets/x.svg'>", "</b>/x/y"),
    *(
        "$\\frac{a}{b}$",
        "$f:\\mathbb{R}\\to\\mathbb{R}$",
        "a \\\\ \\alpha\\beta",
        "1 & 0 \\\\ 0 & 1",
        "$x/\\sqrt{y}/z$",
    ),
    *("{root}/data/x", "$HOME/data/x", "<path>/data/x", "**/data/x", "/path/to/video.mp4", "> /dev/null", "(~10/20)"),
    *("#!/usr/bin/env python", "/usr/bin/env python", "[/INST] x", "<|/think|>", "/(?:\\w+)/x", "50%/25%/25%", "~"),
    *(
        "shelf_" + "a" * 40,
        "hf_",
        "task-" + "a" * 40,
        '"hub_token": null',
        '"hub_token": "<HUB_TOKEN>"',
        "hub_token=token",
    ),
    *(
        '"pad_token": "[PAD]"',
        '"unk_token": "<unk>"',
        "https://host:8080/@user",
        "me@example.org",
        "00:01:02",
        "x: /y",
    ),
]


@pytest.fixture
def scanned(tmp_path):
    """Writes a file and scans it."""

    def run(text, name="README.md"):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return scan(path, name)

    return run


def disguise_as_json(text):
    return {
        "plain": json.dumps({"x": text}),
        "unicode": '{"x": "' + "".join(f"\\u{ord(letter):04x}" for letter in text) + '"}',
        "after a line break": json.dumps({"x": f"source:\n{text}"}),
        "slashes": json.dumps({"x": text}).replace("/", "\\/"),
        "json in json": json.dumps({"x": json.dumps({"y": text})}),
    }


@pytest.mark.parametrize(("token", "kind"), TOKENS.items(), ids=TOKENS.values())
def test_tokens_are_found_and_not_repeated(scanned, token, kind):
    for text in (token, f"x {token}", f"a_{token}" if kind != "a private key" else token, f"key={token};"):
        assert scanned(f"# A\n{text}\n") == [f"README.md, line 2: this looks like {kind}. Remove it, and revoke it."]
    assert any(kind in problem for problem in scanned(f"# A\n{token}\n".encode("utf-16")))


@pytest.mark.parametrize("token", [token for token in TOKENS if '"' not in token and "'" not in token])
def test_tokens_are_found_through_escapes(scanned, token):
    for disguise, text in disguise_as_json(token).items():
        assert [TOKENS[token] in problem for problem in scanned(text, "config.json")] == [True], disguise


def test_a_path_with_a_token_in_it_does_not_repeat_it(scanned):
    problems = scanned(f"/home/me/{TOKEN}/x")
    assert len(problems) == 2 and not [problem for problem in problems if TOKEN in problem]


def test_ordinary_base64_is_no_token(scanned):
    for seed in range(50):
        data = base64.b64encode(random.Random(seed).randbytes(3000)).decode()
        assert scanned(data) == scanned(f"![](data:image/jpeg;base64,/9j/4AAQ{data})") == []


@pytest.mark.parametrize("path", PATHS)
def test_paths_of_a_machine_are_found(scanned, path):
    for text in (path, f"videos: {path}", f"--data={path}", f'"{path}"', f"({path})", f"`{path}` and more"):
        problems = scanned(text)
        assert len(problems) == 1 and "is a path on your machine" in problems[0], text
    for disguise, text in disguise_as_json(path).items():
        problems = scanned(text, "generation_config.json")
        assert len(problems) == 1 and "is a path on your machine" in problems[0], disguise


@pytest.mark.parametrize("text", HARMLESS)
def test_what_only_looks_like_one_passes(scanned, text):
    for line in (text, f"see {text} there", f"| {text} |"):
        assert scanned(line) == []


def test_vocabularies_hold_parts_of_paths(scanned):
    for name in ("vocab.json", "tokenizer.json"):
        assert scanned('{"/usr/local": 1, "Ġ/home/me": 2, "://": 3}', name) == []
        assert len(scanned(f'{{"{TOKEN}": 1}}', name)) == 1
    assert len(scanned('{"name_or_path": "/models/bert"}', "tokenizer_config.json")) == 1


def test_metadata_and_names_of_tensors_are_looked_through(tmp_path):
    path = tmp_path / "model.safetensors"
    weights = {"weight": torch.zeros(2)}
    save_file(weights, path, metadata={"format": "pt"})
    assert scan(path, path.name) == []
    save_file(weights, path, metadata={"format": "pt", "args": json.dumps({"root": "/nfs/me", "key": TOKEN})})
    assert [problem.split(":")[0] for problem in scan(path, path.name)] == ["model.safetensors, metadata 'args'"] * 2
    save_file({f"{TOKEN}.weight": torch.zeros(2)}, path)
    assert "a tensor's name: this looks like a Hugging Face token" in scan(path, path.name)[0]


@pytest.mark.parametrize("compressed", [False, True])
def test_texts_in_pictures_are_looked_through(tmp_path, compressed):
    path, picture = tmp_path / "curves.png", Image.effect_noise((64, 64), 50)
    picture.save(path, pnginfo=PngInfo())
    assert scan(path, "report/curves.png") == []
    for key, value in (("Author", TOKEN), ("Source", "/home/me/run.py"), ("XML:com.adobe.xmp", f"<x>{TOKEN}</x>")):
        info = PngInfo()
        info.add_itxt(key, value, zip=compressed)
        picture.save(path, pnginfo=info)
        assert len(scan(path, "report/curves.png")) == 1, key
    exif = Image.Exif()
    exif[0x013B] = TOKEN
    picture.save(path, exif=exif)
    assert len(scan(path, "report/curves.png")) == 1
    path.write_bytes(f"no picture {TOKEN}".encode())
    assert len(scan(path, "report/curves.png")) == 1


@pytest.mark.parametrize("old_format", [False, True])
def test_training_states_and_other_files_are_looked_through(tmp_path, old_format):
    path = tmp_path / "optimizer.pt"
    torch.save({"state": torch.rand(10_000)}, path, _use_new_zipfile_serialization=not old_format)
    assert scan(path, path.name) == []
    torch.save({"state": torch.rand(10), "note": TOKEN}, path, _use_new_zipfile_serialization=not old_format)
    assert len(scan(path, path.name)) == 1
    path = tmp_path / "tokenizer.model"
    path.write_bytes(b"\n\x0c\xff" + TOKEN.encode() + b"\x15\0")
    assert len(scan(path, path.name)) == 1


@pytest.mark.parametrize("name", [f"LICENSE.{TOKEN}", "LICENSE\n.txt", "LICENSE\udcff", "LICENSE\\x"])
def test_names_of_files_are_looked_through(tmp_path, name):
    (tmp_path / name).write_text("free")
    problems = scan(tmp_path / name, name)
    assert len(problems) == 1 and "Rename it" in problems[0] and TOKEN not in problems[0]
    problems[0].encode()


def test_every_kind_of_secret_is_tried():
    assert set(TOKENS.values()) == set(SECRETS)


@pytest.fixture
def folder(trained_videovit, tmp_path, monkeypatch):
    """A copy of a trained model's folder; loading it in another process is tested elsewhere."""
    monkeypatch.setattr(publishing, "verify", lambda *arguments, **options: {})
    copy = shutil.copytree(trained_videovit, tmp_path / "folder")
    (copy / "LICENSE").write_text("free")
    for name in ("tokenizer_config.json", "qformer_tokenizer/vocab.txt", "report/curves.png", "tokenizer.model"):
        (copy / name).parent.mkdir(exist_ok=True)
        (copy / name).write_bytes(b"{}")
    shutil.copy(copy / "checkpoint-1" / "optimizer.pt", copy / "optimizer.pt")
    shutil.copy(copy / "checkpoint-1" / "trainer_state.json", copy / "trainer_state.json")
    return copy


def test_a_token_in_any_published_file_stops_everything(hub, folder, tmp_path, capsys):
    (tmp_path / "staging").mkdir()
    publication = stage(folder, tmp_path / "staging", "alice/model", with_training_state=True)
    names = {name for name in publication.files if not name.endswith(".py") and (folder / name).is_file()}
    assert {"LICENSE", "optimizer.pt", "tokenizer.model", "report/curves.png", "model.safetensors"} <= names
    for name in sorted(names):
        content = (folder / name).read_bytes()
        if name.endswith(".safetensors"):
            save_file(load_file(folder / name), folder / name, metadata={"format": "pt", "note": TOKEN})
        elif name.endswith(".pt"):
            torch.save({"note": TOKEN}, folder / name)
        elif name.endswith(".json"):
            (folder / name).write_text(json.dumps(json.loads(content) | {"hub_token": TOKEN}))
        else:
            (folder / name).write_bytes(content + b"\n" + TOKEN.encode())
        assert main(["publish", str(folder), "alice/model", "--with-training-state"]) == 2
        message = capsys.readouterr().err
        assert f"- {name}" in message and "looks like a Hugging Face token" in message and TOKEN not in message, name
        (folder / name).write_bytes(content)
    assert hub.requests == []


def test_what_training_records_of_its_options_holds_no_token(folder, tmp_path):
    shutil.rmtree(folder / "report")
    (tmp_path / "staging").mkdir()
    (folder / "training_facts.json").write_text(json.dumps({"source": {"name": "https://me:secret@example.org/x"}}))
    with pytest.raises(PublishError, match="training_facts.json, line 1: this looks like an address with a password"):
        stage(folder, tmp_path / "staging", "alice/model")
