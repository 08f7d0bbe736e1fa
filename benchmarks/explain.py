"""
Whether the heat maps of `explain` show what decides: the demo's small VideoViT on 100 test videos of moving digits.

For each seed, videos are written and a model is trained, as `hf-video demo` does. Then, for the class that the model
predicts:

- Deletion and insertion curves (RISE, https://arxiv.org/abs/1806.07421, section 4.3). The patches of a video are
  removed, or inserted into an empty one, in the order that a map gives them. The figure is the mean probability of the
  class along the way: low for deletion and high for insertion if the first patches matter. A removed patch has the
  median of the video's pixels. The peers are a random map, a Gaussian in the middle of the video, and one that looks
  at no model: the difference of a patch from the background. Margins have 95% confidence intervals over the videos.
- The share of a map on the box around the digit in the frames of a token, and the share that the box has of the area.
- The same share where the weights of the head are drawn at random, and where all weights are, with the rank
  correlation of the patches with the map of the trained model ("Sanity checks for saliency maps",
  https://arxiv.org/abs/1810.03292). Random weights must lose the digit. A random head alone does not: only the digit
  tells videos apart, so whatever a head looks for in the tokens of a trained encoder is there.

The script fails if the random map or the Gaussian is better on a curve of a seed, if less than 60% is on the box, or
if the maps of random weights have more than 5 percentage points above the box's share of the area. It takes about six
minutes for a seed on 2 idle CPU cores.

    python benchmarks/explain.py [--seeds 3] [--threads 2] [--smoke]
"""

import contextlib
import copy
import io
import sys
import tempfile
from pathlib import Path

import torch
import torch.nn.functional as F
from helpers.measurement import GOAL_MISSED, make_parser, print_machine
from transformers import AutoModelForVideoClassification, AutoVideoProcessor, PreTrainedModel, set_seed

from hf_video import training
from hf_video.cli.demo import TRAINING, VIDEOVIT
from hf_video.data import ClipTask, VideoDataset, load_video_dataset
from hf_video.demo import write_moving_digits
from hf_video.inference import explain, predict_scores
from hf_video.inference.explanation import find_patch_shape

MASS_GOAL, CHANCE_LIMIT = 0.6, 0.05
PEERS = ("random", "Gaussian")
STEPS = 18
# Pixels of a digit differ from the background by this many standard deviations of the processor's normalisation.
CONTRAST = 0.25


def train(folder: Path, seed: int, smoke: bool) -> None:
    """Writes videos to `folder/digits` and trains the demo's model into `folder/model`."""
    counts = {"train_per_class": 2, "test_per_class": 1} if smoke else {}
    write_moving_digits(folder / "digits", seed=seed, **counts)
    places = {"data": str(folder / "digits"), "output_dir": str(folder / "model")}
    options = TRAINING | VIDEOVIT | {"num_train_epochs": 1 if smoke else 16, "seed": seed}
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        training.train(training.TrainSettings(**places, **options))


def read_clips(videos: Path, model: Path, count: int) -> torch.Tensor:
    """Test clips (count, num_frames, num_channels, height, width), evenly over all classes."""
    dataset = VideoDataset(
        load_video_dataset(videos)["test"], ClipTask(AutoVideoProcessor.from_pretrained(model)), training=False
    )
    rows = torch.linspace(0, len(dataset) - 1, min(count, len(dataset))).long().tolist()
    return torch.cat([dataset[row]["pixel_values"] for row in rows])


def background_of(clips: torch.Tensor) -> torch.Tensor:
    """The median of each channel, (num_clips, 1, num_channels, 1, 1)."""
    return clips.transpose(1, 2).flatten(2).median(-1).values[:, None, :, None, None]


def boxes_of(clips: torch.Tensor) -> torch.Tensor:
    """The smallest box around the digit in each frame: bool (num_clips, num_frames, height, width)."""
    is_digit = (clips - background_of(clips)).abs().amax(2) > CONTRAST

    def span(line: torch.Tensor) -> torch.Tensor:
        return line.cummax(-1).values.bool() & line.flip(-1).cummax(-1).values.flip(-1).bool()

    return span(is_digit.any(-1).int())[..., None] & span(is_digit.any(-2).int())[..., None, :]


class Patches:
    """The patches of the clips of a model."""

    def __init__(self, model: PreTrainedModel, clips: torch.Tensor):
        self.shape = find_patch_shape(model)
        sizes = clips.shape[1], *clips.shape[3:]
        self.grid = [size // patch for size, patch in zip(sizes, self.shape, strict=True)]

    def mean(self, maps: torch.Tensor) -> torch.Tensor:
        """Maps (num_clips, num_frames, height, width) to a mean for each patch, (num_clips, t, h, w)."""
        return F.avg_pool3d(maps[:, None].float(), self.shape)[:, 0]

    def spread(self, values: torch.Tensor) -> torch.Tensor:
        """The opposite: each pixel has the value of its patch."""
        for dim, size in enumerate(self.shape, 1):
            values = values.repeat_interleave(size, dim)
        return values

    def random(self, num_clips: int) -> torch.Tensor:
        return torch.rand(num_clips, *self.grid)

    def gaussian(self, num_clips: int) -> torch.Tensor:
        """In the middle of all axes; its standard deviation is a quarter of each."""
        lines = [((torch.arange(size) + 0.5) / size - 0.5) / 0.25 for size in self.grid]
        t, h, w = torch.meshgrid(*lines, indexing="ij")
        return torch.exp(-(t**2 + h**2 + w**2) / 2).expand(num_clips, -1, -1, -1)


def curves(
    model: PreTrainedModel, patches: Patches, clips: torch.Tensor, targets: torch.Tensor, values: torch.Tensor
) -> dict[str, torch.Tensor]:
    """The areas under the deletion and the insertion curve of each clip, for a value of each patch."""
    rank = values.flatten(1).argsort(1, descending=True).argsort(1).view_as(values)
    background = background_of(clips)
    probabilities: dict[str, list[torch.Tensor]] = {"deletion": [], "insertion": []}
    for count in torch.linspace(0, values[0].numel(), STEPS + 1).round().tolist():
        is_first = patches.spread(rank < count)[:, :, None]
        for name, kept in (("deletion", ~is_first), ("insertion", is_first)):
            scores = predict_scores(model, torch.where(kept, clips, background))
            probabilities[name].append(scores.gather(1, targets[:, None])[:, 0])
    return {name: torch.trapezoid(torch.stack(each, 1), dx=1 / STEPS) for name, each in probabilities.items()}


def share(maps: torch.Tensor, boxes: torch.Tensor) -> float:
    """The mean share of a map that is in the boxes."""
    total = maps.sum((1, 2, 3))
    return float(((maps * boxes).sum((1, 2, 3)) / total)[total > 0].mean())


def rank_correlation(first: torch.Tensor, second: torch.Tensor) -> float:
    """Mean over clips of Spearman's correlation between the values of patches."""
    ranks = [values.flatten(1).argsort(1).argsort(1).double() for values in (first, second)]
    ranks = [F.normalize(rank - rank.mean(1, keepdim=True), dim=1) for rank in ranks]
    return float((ranks[0] * ranks[1]).sum(1).mean())


def with_random_head(model: PreTrainedModel) -> PreTrainedModel:
    """A copy whose head has random weights, as large as those of the trained head."""
    model = copy.deepcopy(model)
    with torch.no_grad():
        model.classifier.weight.normal_(std=float(model.classifier.weight.std()))
    return model


def measure(model: PreTrainedModel, clips: torch.Tensor) -> bool:
    """Prints the figures of a model; returns whether they meet the goals."""
    model.eval()
    patches, boxes = Patches(model, clips), boxes_of(clips)
    tubelets = F.max_pool3d(boxes[:, None].float(), (patches.shape[0], 1, 1))[:, 0]
    tubelets = tubelets.repeat_interleave(patches.shape[0], 1).bool()
    targets = predict_scores(model, clips).argmax(-1)
    maps = explain(model, clips, targets)
    of_patches = {
        "explain": patches.mean(maps),
        "random": patches.random(len(clips)),
        "Gaussian": patches.gaussian(len(clips)),
        "difference": patches.mean((clips - background_of(clips)).abs().mean(2)),
    }
    found = {name: curves(model, patches, clips, targets, values) for name, values in of_patches.items()}
    is_good = True
    for curve, sign in (("deletion", 1), ("insertion", -1)):
        means = ", ".join(f"{name} {found[name][curve].mean():.3f}" for name in found)
        print(f"  {curve}: {means}")
        for peer in list(found)[1:]:
            margins = sign * (found[peer][curve] - found["explain"][curve])
            error = 1.96 * margins.std() / len(margins) ** 0.5
            print(f"    better than {peer} by {margins.mean():.3f} +- {error:.3f}")
            is_good &= peer not in PEERS or bool(margins.mean() > 0)
    area, mass = float(tubelets.float().mean()), share(maps, tubelets)
    print(f"  on the digit's box: {mass:.1%} of the map, {area:.1%} of the area; wanted: {MASS_GOAL:.0%}")
    others = {"head": with_random_head(model), "weights": type(model)(copy.deepcopy(model.config))}
    for name, other in others.items():
        other_maps = explain(other, clips, targets)
        correlation = rank_correlation(of_patches["explain"], patches.mean(other_maps))
        mass_of_other = share(other_maps, tubelets)
        print(f"  random {name}: {mass_of_other:.1%} on the digit's box, rank correlation {correlation:+.2f}")
    return is_good and mass >= MASS_GOAL and mass_of_other <= area + CHANCE_LIMIT


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    print_machine("torch", "transformers", threads=arguments.threads)
    count, are_good = 4 if arguments.smoke else 100, []
    for seed in range(1 if arguments.smoke else arguments.seeds):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            train(folder, seed, arguments.smoke)
            set_seed(seed)
            model = AutoModelForVideoClassification.from_pretrained(folder / "model")
            clips = read_clips(folder / "digits", folder / "model", count)
        print(f"seed {seed}: {len(clips)} videos", flush=True)
        are_good.append(measure(model, clips))
    return 0 if all(are_good) or arguments.smoke else GOAL_MISSED


if __name__ == "__main__":
    sys.exit(main())
