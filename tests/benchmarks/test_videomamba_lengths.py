"""What `benchmarks/videomamba_lengths.py` concludes from its figures."""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

from videomamba_lengths import Figure, compare, conclude, count_tokens, predict_memory  # noqa: E402

from hf_video import VideoMambaConfig, VideoViTConfig  # noqa: E402


@pytest.mark.parametrize(
    ("ratios", "sentence"),
    [
        ([1.9, 1.2, 0.8], "is faster than VideoViT-B from 32 frames on, and slower at 16"),
        ([1.9, 1.2, 1.0], "is not faster than VideoViT-B at 32 frames, the longest that was measured"),
        ([0.9, 1.2, 0.8], "is faster than VideoViT-B from 32 frames on, and slower at 16"),
        ([0.9, 0.8, 0.7], "is faster than VideoViT-B at all lengths, 8 to 32 frames"),
    ],
)
def test_it_says_from_which_length_videomamba_is_faster(ratios, sentence):
    said = conclude("forward", "frames", list(zip((8, 16, 32), ratios, strict=True)))
    assert said == f"forward, at equal numbers of frames: VideoMamba-M {sentence}"


def test_equal_numbers_of_tokens_are_other_numbers_of_frames(capsys):
    ours = [Figure(8, 1568, 2.0, 1.0), Figure(16, 3136, 4.0, 1.0)]
    theirs = [Figure(8, 784, 1.0, 1.0), Figure(16, 1568, 2.5, 1.0)]
    compare({("videomamba", "forward"): ours, ("videovit", "forward"): theirs}, "forward", "tokens")
    said = capsys.readouterr().out
    assert "1568 tokens | time | peer VideoViT-B | 0.800" in said and "784" not in said and "3136" not in said


def test_videovit_makes_half_the_tokens_of_videomamba():
    configs = VideoMambaConfig.preset("middle", num_frames=16), VideoViTConfig(num_frames=16)
    assert [count_tokens(config, 16) for config in configs] == [3136, 1568]


def test_memory_of_a_longer_clip_grows_as_that_of_the_shorter_ones():
    figures = [Figure(8, 0, 0.0, 2.0), Figure(16, 0, 0.0, 3.0)]
    assert predict_memory(figures, 32) == pytest.approx(5.0)
    assert predict_memory(figures[:1], 32) == 0
