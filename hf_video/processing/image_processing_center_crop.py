"""Image processor for image classifiers whose originals crop with torchvision."""

from typing import Any

import torch
from torchvision.transforms.v2 import functional as F
from transformers import CLIPImageProcessor
from transformers.image_utils import SizeDict

from .option_checks import check_statistics


class CenterCropImageProcessor(CLIPImageProcessor):
    """
    Constructs an image processor with the options and defaults of `CLIPImageProcessor` and the centre crop of
    torchvision, which rounds half a pixel to the even one; that of Transformers rounds it down.

    Raises:
        `ValueError`: for a mean or a standard deviation that cannot normalise images.
    """

    def __init__(self, **kwargs: Any):
        super().__init__(**kwargs)
        if self.do_normalize:
            check_statistics(self.image_mean, self.image_std)

    def preprocess(self, images: Any, *args: Any, **kwargs: Any) -> Any:
        """As in the base class. For an option that is `None`, that of the processor counts."""
        options = self.valid_kwargs.__annotations__
        given = {name: value for name, value in kwargs.items() if value is not None or name not in options}
        if given.get("do_normalize", self.do_normalize):
            check_statistics(given.get("image_mean", self.image_mean), given.get("image_std", self.image_std))
        return super().preprocess(images, *args, **given)

    def center_crop(self, image: torch.Tensor, size: SizeDict, **kwargs: Any) -> torch.Tensor:
        """
        The centre of images (..., height, width). Small images are padded with zeros. Raises `ValueError` for a size
        without height and width.
        """
        if size.height is None or size.width is None:
            raise ValueError(f"crop_size={dict(size)} must have height and width.")
        return F.center_crop(image, [size.height, size.width])


__all__ = ["CenterCropImageProcessor"]
