"""Small random MemoryBankQFormer models and inputs."""

import torch

from hf_video import MemoryBankQFormerConfig, MemoryBankQFormerModel

QFORMER = {
    "vocab_size": 61,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 24,
    "encoder_hidden_size": 40,
}
SIZES = {"num_query_tokens": 4, "memory_bank_length": 3, "max_num_frames": 16}
NUM_TOKENS = 5


def tiny_config(**settings) -> MemoryBankQFormerConfig:
    return MemoryBankQFormerConfig(**{**SIZES, "qformer_config": dict(QFORMER), **settings})


def tiny_model(model_class=MemoryBankQFormerModel, **settings):
    """A model with large weights, so that everything a query sees has an effect on the output."""
    torch.manual_seed(0)
    model = model_class(tiny_config(**settings)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" not in name.lower():
                parameter.normal_(std=0.3)
    return model


def random_frames(batch_size: int = 2, num_frames: int = 9, seed: int = 0) -> torch.Tensor:
    """Random `vision_embeds`."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch_size, num_frames, NUM_TOKENS, QFORMER["encoder_hidden_size"], generator=generator)


def random_text(batch_size: int = 2, length: int = 6) -> dict[str, torch.Tensor]:
    """Texts of different lengths, padded on the right."""
    ids = torch.randint(1, QFORMER["vocab_size"], (batch_size, length), generator=torch.Generator().manual_seed(1))
    lengths = length - torch.arange(batch_size) % 3
    mask = (torch.arange(length) < lengths[:, None]).long()
    return {"qformer_input_ids": ids * mask, "qformer_attention_mask": mask}
