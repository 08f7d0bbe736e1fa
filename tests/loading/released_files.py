"""Files with the names of released ones and random weights, on the Hub of the tests."""

import io
import json
import re

import torch
from huggingface_hub import HfApi

from conversion.helpers.videomamba import read_variant
from hf_video.loading.released import released_models
from tests.models.memory_bank_qformer.tokenizers_testing import word_tokenizer
from tests.testing.goldens import FIXTURES

from ..conversion.videomamba_original import random_weights

TINY, SMALL = "videomamba_t16_k400_f8_res224", "vit_s_k710_dl_from_giant"
ALIGNED = {"clip_output_dim": 512, "num_frames": 8}


def original_weights(name):
    """Of the released size, but for the ViTs: they have one layer."""
    if name.startswith("videomamba"):
        pre_trains = ALIGNED if "num_classes" not in (stated := read_variant(name)) else {}
        return random_weights(**{"num_frames": 32} | pre_trains | stated if "_in1k_" not in name else stated)
    backbone = {"vit_s": "ViT-S", "vit_b": "ViT-B"}[name[:5]]
    shapes = json.loads((FIXTURES / "videovit" / "full_size_keys.json").read_text())["videomae_v2_finetune"]
    keys = shapes[backbone]["keys"]
    torch.manual_seed(0)
    return {
        key: 0.02 * torch.randn(shape)
        for key, shape in keys.items()
        if not key.startswith("blocks.") or key.startswith("blocks.0.")
    }


def reads_text(name):
    """Whether a model compares videos with texts: it has its number of training pairs in its name."""
    return re.search(r"_\d+M_", name) is not None


def text_model_weights():
    """Of the released size, but with one layer of text, one of fusion, and few words."""
    shapes = json.loads((FIXTURES / "video_text" / "full_size_keys.json").read_text())[
        "retrieval_model_is_pretrain_False"
    ]
    shapes["text_encoder.embeddings.word_embeddings.weight"][0] = 100
    kept = {name: shape for name, shape in shapes.items() if re.search(r"encoder\.layer\.([1-8]|1\d)\.", name) is None}
    torch.manual_seed(0)
    return {name.replace(".layer.9.", ".layer.1."): 0.02 * torch.randn(shape) for name, shape in kept.items()}


def write_original(name, file):
    torch.save({"model": text_model_weights() if reads_text(name) else original_weights(name)}, file)
    return file


def upload_tokenizer(folder):
    """Puts a small tokenizer where that of the released models that read texts is, and gives its name."""
    name, api = "google-bert/bert-base-uncased", HfApi()
    word_tokenizer().save_pretrained(folder)
    api.create_repo(name, exist_ok=True)
    api.upload_folder(folder_path=folder, repo_id=name)
    return name


def upload(name, content):
    """Puts bytes, or the content of a file, where the authors put theirs."""
    model, api = released_models()[name], HfApi()
    api.create_repo(model.repository, exist_ok=True)
    data = content if isinstance(content, bytes) else content.read_bytes()
    api.upload_file(path_or_fileobj=io.BytesIO(data), path_in_repo=model.file, repo_id=model.repository)
