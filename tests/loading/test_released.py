"""Released models by name, from a Hub on the loopback with random weights under the real names."""

import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from huggingface_hub import HfApi, constants
from transformers import VideoMAEConfig, VideoMAEForVideoClassification, VideoMAEImageProcessor

import conversion.hf_videomae
import conversion.videomae
import conversion.videomamba
import conversion.videomamba_text
import hf_video
from hf_video.cli.main import main
from hf_video.loading import locate_model
from hf_video.loading.released import fetch_released, released_models
from tests.testing.files import files_of
from tests.testing.processes import ROOT, Program, run_fresh

from ..hub_server.fixtures import client_environment
from .released_files import SMALL, TINY, reads_text, upload, upload_tokenizer, write_original

VIDEOMAE = "MCG-NJU/videomae-base-finetuned-kinetics"


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A file of one layer under the name of VideoMAE V2's smallest."""
    return write_original(SMALL, tmp_path_factory.mktemp("small") / f"{SMALL}.pth")


@pytest.fixture
def released(hub, small):
    upload(SMALL, small)
    return released_models()[SMALL]


def downloads(hub):
    return [path for method, path, status in hub.requests if method == "GET" and re.fullmatch("/[0-9a-f]{64}", path)]


def sha256(file):
    return hashlib.sha256(file.read_bytes()).hexdigest()


def test_a_videomamba_is_fetched_and_converted_once(hub, tmp_path, capsys):
    file = write_original(TINY, tmp_path / f"{TINY}.pth")
    upload(TINY, file)
    found = locate_model(TINY)
    said = capsys.readouterr()
    size = f"{file.stat().st_size / 1e6:.1f} MB"
    assert f"{TINY}: fetching {TINY}.pth of OpenGVLab/VideoMamba, {size}, licence apache-2.0.\n" in said.err
    assert f"{TINY}: the released model, converted in {found}, licence apache-2.0.\n" in said.err and not said.out
    hub.requests.clear()
    assert locate_model(TINY) == found and not hub.requests
    assert not capsys.readouterr().err  # the choice is said once

    conversion.videomamba.main([str(file), str(tmp_path / "by_hand"), "--variant", TINY])
    assert files_of(found) == files_of(tmp_path / "by_hand")
    source = json.loads(Path(found, "training_facts.json").read_text())["source"]
    digest = sha256(file)
    assert source == {"how": "converted from", "name": f"{TINY}.pth", "sha256": digest, "license": "apache-2.0"}


def test_a_released_model_loads_in_python(released):
    torch.manual_seed(0)
    model, processor = hf_video.load_released(SMALL)
    assert type(model).__name__ == "VideoViTForVideoClassification" and not model.training
    assert (model.config.num_labels, processor.num_frames, processor.size["shortest_edge"]) == (710, 16, 224)
    assert hf_video.load_released(SMALL, dtype=torch.bfloat16)[0].dtype is torch.bfloat16
    with pytest.raises(ValueError, match=f"no released model 'vit_s'. .*{SMALL}|`hf-video models` lists"):
        hf_video.load_released("vit_s")


def test_commands_take_the_name_of_a_released_model(released, digits, tmp_path, capsys):
    video = next((digits / "test").rglob("*.mp4"))
    assert main(["predict", str(video), "--model", SMALL, "--device", "cpu", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["predictions"]) == 5
    sizes = ["--num-frames", "4", "--image-size", "32", "--epochs", "1", "--batch-size", "16", "--device", "cpu"]
    words = ["train", str(digits), "--model", SMALL, "--output-dir", str(tmp_path / "out"), *sizes]
    assert main(words) == 0
    facts = json.loads((tmp_path / "out" / "training_facts.json").read_text())
    assert facts["source"]["name"] == SMALL


def test_convert_takes_a_name_instead_of_a_source_and_a_file(released, small, tmp_path, fails):
    assert main(["convert", SMALL, str(tmp_path / "by_name")]) == 0
    conversion.videomae.main([str(small), str(tmp_path / "by_hand")])
    assert files_of(tmp_path / "by_name") == files_of(tmp_path / "by_hand")
    assert f"hf-video convert {SMALL} OUTPUT_DIR: name the folder" in fails("convert", SMALL)
    assert "exists and is not an empty folder" in fails("convert", SMALL, tmp_path / "by_name")


def test_a_local_folder_comes_before_a_released_name(released, hub, small, tmp_path, fails, capsys):
    conversion.videomae.main([str(small), SMALL])
    hub.requests.clear()
    assert locate_model(SMALL) == SMALL and not hub.requests
    assert f"{SMALL} is a folder or file here, which comes before the released model" in capsys.readouterr().err
    assert f"There is no source '{SMALL}'" in fails("convert", SMALL, tmp_path / "out")


def test_models_in_the_format_of_transformers_are_used_as_they_are(hub, tmp_path, capsys):
    config = VideoMAEConfig(
        image_size=32, num_frames=4, hidden_size=24, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32
    )
    VideoMAEForVideoClassification(config).save_pretrained(tmp_path / "original")
    VideoMAEImageProcessor(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32}).save_pretrained(
        tmp_path / "original"
    )
    HfApi().create_repo(VIDEOMAE)
    HfApi().upload_folder(repo_id=VIDEOMAE, folder_path=tmp_path / "original")
    assert locate_model(VIDEOMAE) == VIDEOMAE
    assert "released in Transformers' format, ~346 MB, licence cc-by-nc-4.0." in capsys.readouterr().err
    model, processor = hf_video.load_released(VIDEOMAE)
    assert isinstance(model, VideoMAEForVideoClassification) and processor.num_frames == 4

    assert main(["convert", VIDEOMAE, str(tmp_path / "by_name")]) == 0
    conversion.hf_videomae.main([str(tmp_path / "original"), str(tmp_path / "by_hand")])
    by_name, by_hand = (files_of(tmp_path / name) for name in ("by_name", "by_hand"))
    facts = [json.loads(files.pop("training_facts.json"))["source"] for files in (by_name, by_hand)]
    assert by_name == by_hand and [each["name"] for each in facts] == [VIDEOMAE, "original"]


def test_what_is_not_on_the_hub_says_where_it_is(hub):
    for name, link, command in (
        (
            "videomae-vit-s-kinetics-400-1600-epochs",
            "https://drive.google.com/file/d/",
            "convert videomae checkpoint.pth",
        ),
        (
            "vit_g_hybrid_pt_1200e_k710_it_k400_ft",
            "https://github.com/OpenGVLab/VideoMAEv2",
            "convert videomae vit_g_",
        ),
        ("malmm-breakfast", "https://drive.google.com/file/d/", " > original.json && hf-video convert malmm "),
    ):
        with pytest.raises(ValueError, match="is released, but not on the Hub: get its file from ") as error:
            locate_model(name)
        assert link in str(error.value) and command in str(error.value) and "\n" not in str(error.value)
    assert not hub.requests


def test_every_name_leads_to_its_file_and_a_conversion_that_knows_it(hub, tmp_path, capsys):
    """The files hold nothing; `test_every_file_is_converted` is the slow half."""
    models = [model for model in released_models().values() if model.file]
    assert len(models) == 62
    for model in models:
        upload(model.name, model.name.encode())
        assert main(["convert", model.name, str(tmp_path / "out")]) == 2
        error = capsys.readouterr().err.splitlines()[-1]
        assert f"{model.file} is no checkpoint of PyTorch" in error
        assert Path(fetch_released(model)).read_bytes() == model.name.encode()
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.parametrize("name", [model.name for model in released_models().values() if model.file])
def test_every_file_is_converted(hub, name, tmp_path):
    file = write_original(name, tmp_path / Path(released_models()[name].file).name)
    upload(name, file)
    source, words = conversion.videomae, []
    if reads_text(name):
        source, words = conversion.videomamba_text, ["--tokenizer", upload_tokenizer(tmp_path / "tokenizer")]
    elif name.startswith("videomamba"):
        source, words = conversion.videomamba, ["--variant", name]
    found = locate_model(name)
    source.main([str(file), str(tmp_path / "out"), *words])
    assert files_of(found) == files_of(tmp_path / "out")


def test_a_conversion_that_is_killed_leaves_nothing_half(released, hub, capsys):
    program = (
        "import os\nfrom transformers import PreTrainedModel\nfrom hf_video.processing import VideoClipProcessor\n"
        "VideoClipProcessor.save_pretrained = lambda self, folder: os._exit(9)\n"
        f"from hf_video.loading import locate_model\nlocate_model({SMALL!r})"
    )
    environment = os.environ | client_environment(hub, None) | caches()
    process = run_fresh(Program(["-c", program], environment, str(Path.cwd())))[0]
    assert process.returncode == 9 and "fetching" in process.stderr
    (begun,) = (path for path in released.folder.parent.iterdir() if path.name.endswith(".partial"))
    assert any(begun.rglob("model.safetensors")) and not released.folder.exists()

    hub.requests.clear()
    assert locate_model(SMALL) == str(released.folder)
    assert {"config.json", "model.safetensors", "training_facts.json"} <= set(files_of(released.folder))
    assert not begun.exists() and not downloads(hub)


def caches():
    return {
        "HF_HUB_CACHE": constants.HF_HUB_CACHE,
        "HF_ASSETS_CACHE": constants.HF_ASSETS_CACHE,
        "OMP_NUM_THREADS": "1",
    }


def test_two_processes_fetch_and_convert_once(released, hub):
    program = Program(
        ["-c", f"from hf_video.loading import locate_model\nprint(locate_model({SMALL!r}))"],
        os.environ | client_environment(hub, None) | caches(),
        str(Path.cwd()),
    )
    hub.requests.clear()
    processes = run_fresh(program, program)
    assert [process.stdout.strip() for process in processes] == [str(released.folder)] * 2
    assert len(downloads(hub)) == 1
    assert sum("fetching" in process.stderr for process in processes) == 1


def test_a_damaged_download_is_an_error_and_is_not_kept(released, hub, small):
    content = hub.large_file_path(sha256(small))
    whole = content.read_bytes()
    content.write_bytes(bytes([whole[0] ^ 1]) + whole[1:])
    with pytest.raises(ValueError, match=f"and the Hub announces {sha256(small)}. It is removed") as error:
        locate_model(SMALL)
    assert sha256(content) in str(error.value) and not released.folder.exists() and released.cached_file is None
    content.write_bytes(whole)
    assert locate_model(SMALL) == str(released.folder) and released.sha256 == sha256(small)


def test_a_file_that_its_authors_replaced_is_not_taken_for_the_first(released, small, tmp_path, fails):
    folder = locate_model(SMALL)
    other = write_original(SMALL, tmp_path / "other.pth")
    weights = torch.load(other)
    weights["model"]["head.bias"] += 1
    torch.save(weights, other)
    upload(SMALL, other)
    assert locate_model(SMALL) == folder  # nobody asks the Hub
    message = fails("convert", SMALL, tmp_path / "out")
    assert sha256(other) in message and f"before had {sha256(small)}" in message and f"remove {folder}" in message
    Path("a.mp4").touch()
    assert f"remove {folder}" in fails("predict", "a.mp4", "--model", SMALL)


def test_a_file_that_is_not_there_is_named(hub, fails, tmp_path):
    HfApi().create_repo(released_models()[SMALL].repository)
    message = fails("convert", SMALL, tmp_path / "out")
    assert f"there is no distill/{SMALL}.pth of OpenGVLab/VideoMAE2 on the Hub" in message
    assert f"`hf-video convert videomae {SMALL}.pth {SMALL}`" in message


def test_without_a_network_the_way_out_is_said(released, hub, fails, monkeypatch, tmp_path):
    with monkeypatch.context() as offline:
        offline.setattr(constants, "HF_HUB_OFFLINE", True)
        message = fails("convert", SMALL, tmp_path / "out")
        assert "cannot be fetched from the Hub (HF_HUB_OFFLINE is set)" in message and "file elsewhere" in message
    with monkeypatch.context() as cut:
        cut.setattr("time.sleep", lambda seconds: None)  # between the attempts of huggingface_hub
        cut.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", "http://127.0.0.1:9/{repo_id}/{revision}/{filename}")
        message = fails("convert", SMALL, tmp_path / "out")
        assert "cannot be fetched from the Hub (" in message and "Check the connection" in message
    folder = locate_model(SMALL)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    hub.requests.clear()
    assert locate_model(SMALL) == folder
    assert main(["convert", SMALL, str(tmp_path / "out")]) == 0
    assert not hub.requests


def test_the_list_of_models_needs_neither_network_nor_torch(tmp_path):
    program = (
        "import sys\nfrom hf_video.cli.main import main\ncode = main(['models'])\n"
        "assert not {'torch', 'transformers'} & set(sys.modules)\nsys.exit(code)"
    )
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    process = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment)
    assert process.returncode == 0, process.stderr
    rows = {line.split()[0]: re.split("  +", line) for line in process.stdout.splitlines()}
    assert rows[TINY] == [TINY, "7.0 M", "76.9 Kinetics-400", "apache-2.0", "~28 MB", "on the Hub"]
    assert rows["vit_g_hybrid_pt_1200e"][3:] == ["-", "~4,105 MB", "manual"]


def test_the_list_of_models_says_what_is_here(released, small, capsys):
    def row():
        assert main(["models", "--json"]) == 0
        return json.loads(capsys.readouterr().out)[SMALL]

    assert (row()["size"], row()["cached_file"], row()["converted"]) == (None, None, None)
    folder = locate_model(SMALL)
    found = row()
    assert (found["converted"], found["sha256"]) == (folder, sha256(small))
    assert found["size"] == small.stat().st_size == Path(found["cached_file"]).stat().st_size
    assert main(["models"]) == 0
    (line,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith(SMALL))
    assert line.endswith("converted")
