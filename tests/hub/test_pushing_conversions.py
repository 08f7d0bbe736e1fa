"""`--push-to-hub` of the converters."""

import hashlib

import pytest
from huggingface_hub import HfApi, ModelCard

from conversion.videomae import main
from tests.testing.goldens import load_golden, write_original_config


def convert(case, tmp_path):
    golden = load_golden("videovit", case)
    checkpoint = golden.folder / "checkpoint.pth"
    config = write_original_config(golden, tmp_path)
    words = [str(checkpoint), str(tmp_path / "model"), "--original-config", str(config)]
    main([*words, "--push-to-hub", "alice/converted"])
    return checkpoint


def test_a_converted_model_names_its_original_in_the_card(hub, tmp_path, unverified, capsys):
    checkpoint = convert("videomae_pretrain", tmp_path)
    text = ModelCard.load("alice/converted").text
    digest = hashlib.sha256(checkpoint.read_bytes()).hexdigest()
    assert "converted from `checkpoint.pth`" in text and f"| sha256 | {digest} |" in text
    assert {"modeling_videovit.py", "model.safetensors"} <= set(HfApi().list_repo_files("alice/converted"))
    assert "/alice/converted/commit/" in capsys.readouterr().out


def test_a_classifier_without_names_is_converted_but_not_pushed(hub, tmp_path, capsys):
    with pytest.raises(SystemExit) as exit_request:
        convert("videomae_finetune", tmp_path)
    assert exit_request.value.code == 2
    assert "Name them with --labels FILE" in capsys.readouterr().err
    assert (tmp_path / "model" / "model.safetensors").is_file() and hub.requests == []
