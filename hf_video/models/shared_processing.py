"""What processors of videos and texts share: a tokenizer may be left out."""

import copy
import os
from typing import Any

from transformers.processing_utils import ProcessorMixin
from transformers.utils import cached_file

HUB_OPTIONS = ("cache_dir", "force_download", "local_files_only", "token", "revision")


class OptionalTokenizerProcessor(ProcessorMixin):
    """A processor whose tokenizers may be None."""

    def check_argument_for_proper_class(self, argument_name: str, argument: Any) -> Any:
        """Does what the base class does, and allows a tokenizer to be None."""
        if argument is None and argument_name.endswith("tokenizer"):
            return type(None)
        return super().check_argument_for_proper_class(argument_name, argument)

    def save_pretrained(self, save_directory: str | os.PathLike, push_to_hub: bool = False, **kwargs: Any) -> Any:
        """Does what the base class does, without files for a tokenizer that is None."""
        # The base class saves every attribute that `get_attributes` lists. It is given a copy that lists fewer.
        present = [name for name in self.get_attributes() if getattr(self, name) is not None]
        processor: Any = copy.copy(self)
        processor.get_attributes = lambda: present
        return ProcessorMixin.save_pretrained(processor, save_directory, push_to_hub, **kwargs)

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
