"""Processor of VideoTextDualEncoder: videos, and the texts that describe or look for them."""

import re
from collections.abc import Sequence
from typing import Any

from transformers.feature_extraction_utils import BatchFeature
from transformers.utils import TensorType
from transformers.video_utils import VideoInput

from ..shared_processing import OptionalTokenizerProcessor

_REMOVED = re.compile(r"[,.'!?\"()*#:;~]")


def clean_caption(text: str) -> str:
    """
    A text as VideoMamba reads it: in lower case, without the characters , . ' ! ? " ( ) * # : ; ~, with a blank for
    each - and /, and with `person` for `<person>`. Runs of white space become one blank.
    """
    text = _REMOVED.sub("", text.lower()).replace("-", " ").replace("/", " ").replace("<person>", "person")
    return re.sub(r"\s{2,}", " ", text).rstrip("\n").strip(" ")


class VideoTextDualEncoderProcessor(OptionalTokenizerProcessor):
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


__all__ = ["VideoTextDualEncoderProcessor", "clean_caption"]
