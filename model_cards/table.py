"""
The tables of released models in docs/models.md, and in the package, which finds models by their names:
`python model_cards/generate.py` writes them.

Parameters and GFLOPs are counted on models without weights, accuracies are facts of the original model zoos.
"""

import json
import re
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import torch
from released import ANSWERS, DETECTOR, SOURCES, VIDEO, Released, Result
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from hf_video import (
    MemoryBankQFormerConfig,
    MemoryBankQFormerModel,
    STMixerConfig,
    STMixerForActionDetection,
    VideoMambaConfig,
    VideoMambaForVideoClassification,
    VideoViTConfig,
    VideoViTForVideoClassification,
)

ROOT = Path(__file__).parents[1]
PACKAGE_TABLE = ROOT / "hf_video" / "loading" / "released_models.json"
BEGIN, END = "<!-- written by model_cards/generate.py -->", "<!-- end of the table -->"
NUM_CLASSES = {"Kinetics-400": 400, "Something-Something V2": 174, "UCF101": 101, "Breakfast": 10, "COIN": 180}
SIZE_NAMES = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "patch_size")
VIDEOVIT_SIZES = {
    "ViT-S": (384, 12, 6, 1536, 16),
    "ViT-B": (768, 12, 12, 3072, 16),
    "ViT-L": (1024, 24, 16, 4096, 16),
    "ViT-H": (1280, 32, 16, 5120, 16),
    "ViT-g": (1408, 40, 16, 6144, 14),
}
# Those with classifiers.
VJEPA2_SIZES = {
    "ViT-L/16": (1024, 24, 16, 4096, 16),
    "ViT-g/16": (1408, 40, 22, 6144, 16),
}
VIDEOMAMBA_SIZES = {"VideoMamba-Ti": "tiny", "VideoMamba-S": "small", "VideoMamba-M": "middle"}
FAMILIES = {"videovit": "VideoViT", "videomamba": "VideoMamba", "memory_bank_qformer": "MemoryBankQFormer"}
PAPERS = {"videomae": "VideoMAE", "videomae_v2": "VideoMAE V2", "vjepa2": "V-JEPA 2"} | {
    "videomamba": "VideoMamba",
    "malmm": "MA-LMM",
}
SHORT_TABLE = (
    "videomae-vit-s-kinetics-400-1600-epochs",
    "videomae-vit-b-kinetics-400-1600-epochs",
    "videomae-vit-l-kinetics-400-1600-epochs",
    "vit_g_hybrid_pt_1200e_k710_it_k400_ft",
    "videomae-vit-b-something-something-v2-2400-epochs",
    "videomamba_t16_k400_f8_res224",
    "videomamba_s16_k400_f16_res224",
    "videomamba_m16_k400_mask_ft_f32_res224",
    "videomamba_m16_k400_mask_ft_f64_res224to384",
    "malmm-breakfast",
)


def write_tables(cards: list[Released]) -> dict[Path, str]:
    """The text of docs/models.md with the table of these cards, and the package's table, by path."""
    page = ROOT / "docs" / "models.md"
    listed = table([card for card in cards if card.auto_class in (VIDEO, ANSWERS) and card.results])
    rows = ",\n".join(json.dumps(table_row(card)) for card in cards)
    return {page: _between_marks(page.read_text(encoding="utf-8"), listed), PACKAGE_TABLE: f"[\n{rows}\n]\n"}


def table_row(card: Released) -> dict[str, Any]:
    """The fields of the package's `ReleasedModel`."""
    name, repository, file = place(card)
    return {
        "name": name,
        "auto_class": card.auto_class,
        "parameters": num_parameters(card),
        "results": [asdict(result) for result in card.results],
        "license": SOURCES[card.source]["license"],
        "repository": repository,
        "file": file,
        "link": card.link or SOURCES[card.source]["repository"],
        "command": card.command,
    }


def place(card: Released) -> tuple[str, str | None, str | None]:
    """The name for commands, and the repository and the file on the Hub, if it is there."""
    on_hub = re.fullmatch(r"https://huggingface\.co/([^/]+/[^/]+)(?:/resolve/main/(.+))?", card.link or "")
    repository, file = on_hub.groups() if on_hub else (None, None)
    return card.name if file else repository or card.name, repository, file


def num_parameters(card: Released) -> int | None:
    """The parameters of a whole model, counted by the facts or here; None if neither can count them."""
    facts = card.facts
    counted = (facts.get(name) for name in ("params computed", "params computed with decoder", "parameters"))
    if found := next(filter(None, counted), None):
        return found
    if card.auto_class == DETECTOR:
        return _stmixer_parameters()
    is_sized = card.family == "videovit" and card.auto_class == VIDEO
    return _videovit(facts["backbone"], NUM_CLASSES[facts["dataset"]])[0] if is_sized else None


def table(cards: list[Released]) -> str:
    """A Markdown table with a row for each card."""
    titles = ["model", "parameters", "GFLOPs", "clip", "top-1 accuracy, as reported", "name"]
    rows = [titles, ["---"] * len(titles)]
    for card in cards:
        model = f"{FAMILIES[card.family]} {size_name(card)}"
        rows.append([model, *sizes(card), clip(card), accuracy(card), f"`{card.name}`"])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def size_name(card: Released) -> str:
    if card.family == "memory_bank_qformer":
        return "MA-LMM"
    return card.facts.get("backbone") or card.facts["model"].removeprefix("VideoMamba-")


def clip(card: Released) -> str:
    """Frames, pixels and views of the reported figure."""
    facts = card.facts
    frames, views = facts.get("frames") or facts["num frames"], card.results[0].views
    pixels = facts.get("resolution", 224)
    return f"{frames} x {pixels}²" + (f", {views.replace(' x ', ', ')}" if views else "")


def accuracy(card: Released) -> str:
    """The first figure of the authors, linked to their paper."""
    result: Result = card.results[0]
    metric = "" if result.metric == "top-1 accuracy" else f"{result.metric} "
    return f"{metric}{result.value:g} {result.data} ([{PAPERS[card.source]}]({SOURCES[card.source]['paper']}))"


def sizes(card: Released) -> tuple[str, str]:
    """Millions of parameters, and billions of multiply-adds a clip."""
    if card.family == "memory_bank_qformer":
        return f"{_memory_bank_qformer_parameters() / 1e6:.0f} M + tower and language model", "-"
    facts = card.facts
    num_labels = facts.get("num classes") or NUM_CLASSES[facts["dataset"]]
    if card.source == "vjepa2":
        parameters, products = _vjepa2(facts)
    elif card.family == "videovit":
        parameters, products = _videovit(facts["backbone"], num_labels)
    else:
        parameters, products = _videomamba(
            VIDEOMAMBA_SIZES[facts["model"]], facts["num frames"], facts["resolution"], num_labels
        )
    return f"{parameters / 1e6:.1f} M", f"{products / 1e9:,.0f}"


def _videovit(backbone: str, num_labels: int) -> tuple[int, int]:
    """Parameters and multiply-adds. More classes are more rows of the classifier, each with a bias."""
    parameters, products = _videovit_of_a_class(backbone)
    width, more = VIDEOVIT_SIZES[backbone][0], num_labels - 1
    return parameters + more * (width + 1), products + more * width


@cache
def _videovit_of_a_class(backbone: str) -> tuple[int, int]:
    return _count(VideoViTConfig(**dict(zip(SIZE_NAMES, VIDEOVIT_SIZES[backbone], strict=True)), num_labels=1))


def _count(config: VideoViTConfig) -> tuple[int, int]:
    """Parameters of a classifier, and multiply-adds of one clip."""
    with torch.device("meta"):
        model = VideoViTForVideoClassification(config).requires_grad_(False)
        clips = torch.empty(1, config.num_frames, config.num_channels, config.image_size, config.image_size)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(clips)
    return _num_parameters(model), counter.get_total_flops() // 2


def _vjepa2(facts: dict[str, Any]) -> tuple[int, int]:
    """Parameters and multiply-adds of an attentive classifier and its encoder."""
    sizes = dict(zip(SIZE_NAMES, VJEPA2_SIZES[facts["backbone"]], strict=True))
    clip = {"num_frames": facts["frames"], "image_size": facts["resolution"], "num_labels": facts["num classes"]}
    options = {"key_bias": True, "position_embedding_type": "rope", "rope_layout": "vjepa2"}
    config = VideoViTConfig(**sizes, **clip, **options, pooler_type="attentive")
    return _count(config)


@cache
def _videomamba(size: str, num_frames: int, image_size: int, num_labels: int) -> tuple[int, int]:
    """Each token passes through each linear layer and convolution once. The scan itself has no products."""
    config = VideoMambaConfig.preset(size, num_frames=num_frames, image_size=image_size, num_labels=num_labels)
    with torch.device("meta"):
        model = VideoMambaForVideoClassification(config)
    num_patches = num_frames // config.tubelet_size * (image_size // config.patch_size) ** 2
    products = num_patches * model.videomamba.embeddings.patch_embeddings.projection.weight.numel()
    for layer in model.videomamba.layers.modules():
        if isinstance(layer, nn.Linear | nn.Conv1d):
            products += (num_patches + 1) * layer.weight.numel()
    return _num_parameters(model), products + model.classifier.weight.numel()


@cache
def _memory_bank_qformer_parameters() -> int:
    with torch.device("meta"):
        return _num_parameters(MemoryBankQFormerModel(MemoryBankQFormerConfig()))


@cache
def _stmixer_parameters() -> int:
    """Of both released detectors, which differ in their weights alone."""
    backbone = VideoViTConfig(use_mean_pooling=False)
    with torch.device("meta"):
        return _num_parameters(STMixerForActionDetection(STMixerConfig(backbone_config=backbone, num_labels=80)))


def _num_parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def _between_marks(text: str, table: str) -> str:
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"There is no table between {BEGIN} and {END}.")
    return f"{before}{begin}\n\n{table}\n\n{end}{after}"
