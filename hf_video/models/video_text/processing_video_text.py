"""Processor of VideoTextDualEncoder: videos, and the texts that describe or look for them."""

import copy
import os
import re
from collections.abc import Sequence
from typing import Any

from transformers.feature_extraction_utils import BatchFeature
from transformers.processing_utils import ProcessorMixin
from transformers.utils import TensorType, cached_file
from transformers.video_utils import VideoInput

# Options of `from_pretrained` that tell where a file is.
HUB_OPTIONS = ("cache_dir", "force_download", "local_files_only", "token", "revision")
_REMOVED = re.compile(r"[,.'!?\"()*#:;~]")


def clean_caption(text: str) -> str:
    """
    A text as VideoMamba reads it: in lower case, without the characters , . ' ! ? " ( ) * # : ; ~, with a blank for
    each - and /, and with `person` for `<person>`. Runs of white space become one blank.
    """
    text = _REMOVED.sub("", text.lower()).replace("-", " ").replace("/", " ").replace("<person>", "person")
    return re.sub(r"\s{2,}", " ", text).rstrip("\n").strip(" ")


class VideoTextDualEncoderProcessor(ProcessorMixin):
    r"""
    Constructs a processor for videos and texts, as VideoMamba (https://arxiv.org/abs/2403.06977) prepares them.

    Args:
        video_processor ([`VideoClipProcessor`]): samples and prepares frames.
        tokenizer (`PreTrainedTokenizerBase`, *optional*): tokenizer of the text encoder. Without one the processor
            takes videos only.
        max_length (`int`, defaults to 32): most tokens of a text; the rest is cut off.
        clean_text (`bool`, defaults to `True`): whether texts go through [`clean_caption`].

    Example:

    ```python
    >>> from transformers import AutoProcessor

    >>> processor = AutoProcessor.from_pretrained("my_model")
    >>> inputs = processor(["kitchen.mp4", "street.mp4"], ["Somebody is cooking.", "A car."], return_tensors="pt")
    >>> sorted(inputs)
    ['attention_mask', 'input_ids', 'pixel_values']
    ```
    """

    def __init__(self, video_processor: Any, tokenizer: Any = None, max_length: int = 32, clean_text: bool = True):
        self.max_length = max_length
        self.clean_text = clean_text
        super().__init__(video_processor, tokenizer)

    @property
    def model_input_names(self) -> list[str]:
        names = list(self.video_processor.model_input_names)
        return names if self.tokenizer is None else [*names, "input_ids", "attention_mask"]

    def __call__(
        self,
        videos: VideoInput | None = None,
        text: str | Sequence[str] | None = None,
        max_length: int | None = None,
        padding: bool | str = True,
        return_tensors: str | TensorType | None = None,
        **kwargs: Any,
    ) -> BatchFeature:
        """
        Prepare videos, texts or both, which need not be as many.

        Args:
            videos (*optional*): a video or a batch, see [`VideoClipProcessor`]. An image is a video of one frame, with
                `do_sample_frames=False`.
            text (`str` or `Sequence[str]`, *optional*): a text or several.
            max_length (`int`, *optional*): most tokens of a text; by default that of the processor.
            padding (`bool` or `str`, defaults to `True`): see the tokenizer; `True` pads to the longest text.
            return_tensors (`str`, *optional*): "pt" for tensors.
            kwargs ([`VideoClipProcessorKwargs`]): options of the video processor.

        Returns:
            `BatchFeature`: of videos `pixel_values` (num_videos, num_frames, num_channels, height, width), under the
            name that the video processor gives them; of texts `input_ids` and `attention_mask` (num_texts,
            sequence_length) int64.

        Raises:
            ValueError: if there are neither videos nor texts, or texts and no tokenizer.
        """
        if videos is None and text is None:
            raise ValueError("Pass `videos`, `text` or both.")
        data: dict[str, Any] = {}
        if videos is not None:
            data |= self.video_processor(videos, return_tensors=return_tensors, **kwargs)
        if text is not None:
            if self.tokenizer is None:
                raise ValueError(
                    "There is no tokenizer for texts. Convert the checkpoint with `--tokenizer DIR_OR_ID`, or set "
                    "`processor.tokenizer`."
                )
            texts = [text] if isinstance(text, str) else list(text)
            data |= self.tokenizer(
                [clean_caption(each) for each in texts] if self.clean_text else texts,
                max_length=max_length or self.max_length,
                padding=padding,
                truncation=True,
                return_token_type_ids=False,
                return_attention_mask=True,
                return_tensors=return_tensors,
            )
        return BatchFeature(data, skip_tensor_conversion=self.skip_tensor_conversion)

    # Copied from hf_video.models.memory_bank_qformer.processing_memory_bank_qformer.MemoryBankQFormerProcessor.check_argument_for_proper_class  # noqa: E501
    def check_argument_for_proper_class(self, argument_name: str, argument: Any) -> Any:
        """Does what the base class does, and allows a tokenizer to be None."""
        if argument is None and argument_name.endswith("tokenizer"):
            return type(None)
        return super().check_argument_for_proper_class(argument_name, argument)

    # Copied from hf_video.models.memory_bank_qformer.processing_memory_bank_qformer.MemoryBankQFormerProcessor.save_pretrained  # noqa: E501
    def save_pretrained(self, save_directory: str | os.PathLike, push_to_hub: bool = False, **kwargs: Any) -> Any:
        """Does what the base class does, without files for a tokenizer that is None."""
        # The base class saves every attribute that `get_attributes` lists. It is given a copy that lists fewer.
        present = [name for name in self.get_attributes() if getattr(self, name) is not None]
        processor: Any = copy.copy(self)
        processor.get_attributes = lambda: present
        return ProcessorMixin.save_pretrained(processor, save_directory, push_to_hub, **kwargs)

    # Copied from hf_video.models.memory_bank_qformer.processing_memory_bank_qformer.MemoryBankQFormerProcessor._load_tokenizer_from_pretrained  # noqa: E501
    @classmethod
    def _load_tokenizer_from_pretrained(
        cls, sub_processor_type: str, pretrained_model_name_or_path: Any, subfolder: str = "", **kwargs: Any
    ) -> Any:
        """Does what the base class does, and returns None if there are no files."""
        folder = subfolder if sub_processor_type == "tokenizer" else os.path.join(subfolder, sub_processor_type)
        config = cached_file(
            pretrained_model_name_or_path,
            "tokenizer_config.json",
            subfolder=folder,
            _raise_exceptions_for_missing_entries=False,
            **{name: kwargs[name] for name in HUB_OPTIONS if name in kwargs},
        )
        if config is None:
            return None
        return super()._load_tokenizer_from_pretrained(
            sub_processor_type, pretrained_model_name_or_path, subfolder=subfolder, **kwargs
        )


__all__ = ["VideoTextDualEncoderProcessor", "clean_caption"]
