"""Tokenizers of whole words, made in code."""

from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

WORDS = "what which digit came first is shown in the video zero one two three four five six seven eight nine".split()


def word_tokenizer(bos: str | None = "<s>", eos: str = "</s>", words=WORDS) -> PreTrainedTokenizerFast:
    """Puts `bos` before a text. If that is None, it puts `eos` after a text, as the tokenizers of T5 and BERT do."""
    specials = ["<pad>", *([] if bos is None else [bos]), eos, "<unk>"]
    vocabulary = {word: index for index, word in enumerate([*specials, *words])}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = Whitespace()
    single = f"{bos} $A" if bos else f"$A {eos}"
    tokenizer.post_processor = TemplateProcessing(single=single, special_tokens=[(s, vocabulary[s]) for s in specials])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=bos, eos_token=eos, unk_token="<unk>", pad_token="<pad>"
    )
