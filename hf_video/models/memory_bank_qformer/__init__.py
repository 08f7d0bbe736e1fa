"""MemoryBankQFormer: the long-video Q-Former of MA-LMM, with an explicit memory of constant size."""

from .configuration_memory_bank_qformer import MemoryBankQFormerConfig
from .memory_bank import MemoryBank
from .modeling_memory_bank_qformer import (
    MemoryBankQFormerForVideoClassification,
    MemoryBankQFormerModel,
    MemoryBankQFormerPreTrainedModel,
)
from .modeling_memory_bank_qformer_generation import MemoryBankQFormerForConditionalGeneration
from .processing_memory_bank_qformer import MemoryBankQFormerProcessor

__all__ = [
    "MemoryBank",
    "MemoryBankQFormerConfig",
    "MemoryBankQFormerForConditionalGeneration",
    "MemoryBankQFormerForVideoClassification",
    "MemoryBankQFormerModel",
    "MemoryBankQFormerPreTrainedModel",
    "MemoryBankQFormerProcessor",
]
