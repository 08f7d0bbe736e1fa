"""Video classifiers of Transformers on the Hub, with our processor."""

import numpy as np
import pytest
import torch
from huggingface_hub import HfApi, ModelCard
from transformers import AutoModelForVideoClassification, AutoVideoProcessor

from hf_video.hub import publish
from hf_video.loading.classifiers import load_trained_classifier
from hf_video.loading.processors import load_processor
from tests.training.transformers_families import FAMILIES, NUM_FRAMES, save_family

REPO = "alice/model"


@pytest.mark.parametrize(
    "family", [name if name == "vjepa2" else pytest.param(name, marks=pytest.mark.slow) for name in FAMILIES]
)
def test_a_stranger_calls_the_model_with_what_its_processor_gives(family, tmp_path, hub):
    folder = save_family(family, tmp_path / "model", ["clap", "jump"])
    model = load_trained_classifier(folder).eval()
    processor = load_processor(folder, model.config)
    for file in folder.glob("*preprocessor_config.json"):
        file.unlink()
    processor.save_pretrained(folder)
    publish(folder, REPO, check_download=False)
    assert type(model).__name__ in ModelCard.load(REPO).text
    assert "video_processing_clip.py" in HfApi().list_repo_files(REPO)

    frames = np.random.default_rng(0).integers(0, 256, (NUM_FRAMES, 48, 64, 3), dtype=np.uint8)
    found = AutoVideoProcessor.from_pretrained(REPO, trust_remote_code=True)
    inputs = found(frames, do_sample_frames=False, return_tensors="pt")
    loaded = AutoModelForVideoClassification.from_pretrained(REPO).eval()
    with torch.inference_mode():
        logits = loaded(**inputs).logits.reshape(1, 2)
        expected = model(**processor(frames, do_sample_frames=False, return_tensors="pt")).logits
    torch.testing.assert_close(logits, expected)
