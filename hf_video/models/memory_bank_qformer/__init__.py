"""MemoryBankQFormer: the long-video Q-Former of MA-LMM, with an explicit memory of constant size."""

from .configuration_memory_bank_qformer import MemoryBankQFormerConfig
from .memory_bank import MemoryBank
from .modeling_memory_bank_qformer import (
    MemoryBankQFormerForVideoClassification,
    MemoryBankQFormerModel,
    MemoryBankQFormerPreTrainedModel,
)

__all__ = [
    "MemoryBank",
    "MemoryBankQFormerConfig",
    "MemoryBankQFormerForVideoClassification",
    "MemoryBankQFormerModel",
    "MemoryBankQFormerPreTrainedModel",
]
