"""A model that answers about videos, with two tokenizers, published and loaded where hf_video is not installed."""

import json

import numpy as np
import torch

from hf_video.hub import publish, stage
from tests.hub_server.fixtures import run_in_fresh_process
from tests.models.memory_bank_qformer.watching_testing import random_images, tiny_pair

REPO = "alice/answers"


def test_it_answers_the_same_where_hf_video_is_not_installed(hub, tmp_path):
    model, processor = tiny_pair()
    model.save_pretrained(tmp_path / "model")
    processor.save_pretrained(tmp_path / "model")
    images = random_images(6)
    np.save(tmp_path / "images.npy", images)
    inputs = processor(videos=images, text="what is shown", return_tensors="pt")
    with torch.no_grad():
        expected = model.generate(**inputs, max_new_tokens=5, do_sample=False)

    publish(tmp_path / "model", REPO, check_download=False)
    program = f"""
        import json
        import numpy as np
        from transformers import AutoModelForImageTextToText, AutoProcessor, AutoVideoProcessor

        trusted = {{"trust_remote_code": True}}
        model = AutoModelForImageTextToText.from_pretrained({REPO!r}, **trusted)
        processor = AutoProcessor.from_pretrained({REPO!r}, **trusted)
        images = np.load({str(tmp_path / "images.npy")!r})
        inputs = processor(videos=images, text="what is shown", return_tensors="pt")
        found = model.generate(**inputs, max_new_tokens=5, do_sample=False).tolist()
        alone = type(AutoVideoProcessor.from_pretrained({REPO!r}, **trusted)).__name__
        print(json.dumps([found, type(processor).__name__, alone]))
    """
    process = run_in_fresh_process(hub, program, token="hf_write")
    assert process.returncode == 0, process.stderr
    found, *names = json.loads(process.stdout.splitlines()[-1])
    assert found == expected.tolist()
    assert names == ["MemoryBankQFormerProcessor", "VideoClipProcessor"]


def test_the_tokenizer_of_the_qformer_goes_along(tmp_path, monkeypatch):
    monkeypatch.setattr("hf_video.hub.publishing.verify", lambda *arguments, **options: {})
    for name, part in zip(("model", "processor"), tiny_pair(), strict=True):
        assert part.save_pretrained(tmp_path / "folder") is not False, name
    (tmp_path / "staging").mkdir()
    publication = stage(tmp_path / "folder", tmp_path / "staging", REPO)
    assert {"tokenizer.json", "qformer_tokenizer/tokenizer.json"} <= publication.files.keys()
    assert not publication.left_out
