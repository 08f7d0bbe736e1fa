import pytest
import torch
from torchvision.transforms.v2 import functional as F

from hf_video.processing.uint8_resize import resize_bilinear


def test_halving_averages_four_pixels():
    video = torch.randint(0, 256, (2, 3, 10, 14), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    blocks = video.reshape(2, 3, 5, 2, 7, 2).int().sum(dim=(3, 5))
    assert torch.equal(resize_bilinear(video, 5, 7), ((blocks + 2) // 4).to(torch.uint8))


def test_same_size_changes_nothing():
    video = torch.arange(256, dtype=torch.uint8).reshape(1, 1, 16, 16)
    assert torch.equal(resize_bilinear(video, 16, 16), video)


@pytest.mark.parametrize("height, width", [(17, 23), (1, 1), (40, 90), (100, 3)])
def test_is_within_a_grey_level_of_exact_arithmetic(height, width):
    video = torch.randint(0, 256, (2, 3, 30, 50), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    exact = F.resize(video.double(), [height, width], antialias=False)
    resized = resize_bilinear(video, height, width)
    assert resized.dtype == torch.uint8 and resized.shape == (2, 3, height, width)
    assert (resized - exact).abs().max() < 1


def test_matches_opencv():
    cv2 = pytest.importorskip("cv2", reason="OpenCV is not installed; the golden of the processor covers it as well")
    frame = torch.randint(0, 256, (90, 130, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    expected = cv2.resize(frame.numpy(), (75, 52), interpolation=cv2.INTER_LINEAR)
    resized = resize_bilinear(frame.permute(2, 0, 1), 52, 75).permute(1, 2, 0)
    assert torch.equal(resized, torch.from_numpy(expected))
