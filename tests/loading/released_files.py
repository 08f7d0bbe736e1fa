"""Files with the names of released ones and random weights, on the Hub of the tests."""

import io
import json

import torch
from huggingface_hub import HfApi

from conversion.helpers.videomamba import read_variant
from hf_video.loading.released import released_models
from tests.testing.goldens import FIXTURES

from ..conversion.videomamba_original import random_weights

TINY, SMALL = "videomamba_t16_k400_f8_res224", "vit_s_k710_dl_from_giant"
ALIGNED = {"clip_output_dim": 512, "num_frames": 8}


def original_weights(name):
    """Of the released size, but for the ViTs: they have one layer."""
    if name.startswith("videomamba"):
        pre_trains = ALIGNED if "num_classes" not in (stated := read_variant(name)) else {}
        weights = random_weights(**{"num_frames": 32} | pre_trains | stated if "_in1k_" not in name else stated)
        if not name.split("_")[2].endswith("M"):
            return weights
        return {f"vision_encoder.{key}": value for key, value in weights.items()} | {"temp": torch.zeros(1)}
    backbone = {"vit_s": "ViT-S", "vit_b": "ViT-B"}[name[:5]]
    shapes = json.loads((FIXTURES / "videovit" / "full_size_keys.json").read_text())["videomae_v2_finetune"]
    keys = shapes[backbone]["keys"]
    torch.manual_seed(0)
    return {
        key: 0.02 * torch.randn(shape)
        for key, shape in keys.items()
        if not key.startswith("blocks.") or key.startswith("blocks.0.")
    }


def write_original(name, file):
    torch.save({"model": original_weights(name)}, file)
    return file


def upload(name, content):
    """Puts bytes, or the content of a file, where the authors put theirs."""
    model, api = released_models()[name], HfApi()
    api.create_repo(model.repository, exist_ok=True)
    data = content if isinstance(content, bytes) else content.read_bytes()
    api.upload_file(path_or_fileobj=io.BytesIO(data), path_in_repo=model.file, repo_id=model.repository)
