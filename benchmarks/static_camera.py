"""VideoViT without the patches that show what a static camera showed before, against all patches.

The time is that of VideoViT-B on a clip of 16 x 224 x 224 in which a tenth of the patches change from one token frame
to the next. It is printed only if a mask that hides nothing gives the logits without a mask. With `--model` and
`--data` it also prints how many videos a trained classifier answers as it does from all patches: `hf-video demo`
trains one and writes its videos. It takes about a minute on 2 cores.

    python benchmarks/static_camera.py [--rounds 5] [--threads 2] [--smoke]
    python benchmarks/static_camera.py --model hf_video_demo/model --data hf_video_demo/digits
"""

import math
import sys

import torch
from helpers.measurement import GOAL_MISSED, fastest, make_parser, print_machine, print_ratio, require_agreement

from hf_video.data import ClipTask, VideoDataset, load_video_dataset
from hf_video.loading.class_names import class_names_of
from hf_video.loading.heads import load_trained_classifier
from hf_video.loading.processors import load_processor
from hf_video.models.videovit import VideoViTConfig, VideoViTForVideoClassification
from hf_video.models.videovit.masking_videovit import still_patches

GOAL, TOLERANCE = 0.35, 1e-4
CHANGING = 0.1
SMALL = {"image_size": 32, "hidden_size": 24, "num_attention_heads": 2, "num_hidden_layers": 2}


def make_clip(config: VideoViTConfig) -> torch.Tensor:
    """A clip in which a share of the patches has other values in every token frame after the first."""
    generator = torch.Generator().manual_seed(0)
    t, h, w = config.token_grid
    frames = [torch.randn(3, *config.image_shape, generator=generator)]
    for _ in range(t - 1):
        changed = torch.zeros(h * w, dtype=torch.bool)
        changed[torch.randperm(h * w, generator=generator)[: round(CHANGING * h * w)]] = True
        pixels = changed.view(h, w).repeat_interleave(config.patch_shape[1], 0)
        pixels = pixels.repeat_interleave(config.patch_shape[2], 1)
        frames.append(torch.where(pixels, torch.randn(frames[-1].shape, generator=generator), frames[-1]))
    return torch.stack(frames).repeat_interleave(config.tubelet_size, 0)[None]


@torch.inference_mode()
def compare_time(sizes: dict[str, int], rounds: int) -> bool:
    """Whether the goal is met."""
    torch.manual_seed(0)
    model = VideoViTForVideoClassification(VideoViTConfig(num_labels=400, **sizes)).eval()
    clip, patch_shape = make_clip(model.config), model.config.patch_shape
    logits, nothing = model(clip).logits, still_patches(clip, patch_shape, threshold=-1.0)
    error = (model(clip, bool_masked_pos=nothing).logits - logits).abs().max() / logits.abs().max()
    require_agreement("The logits with and without a mask that hides nothing", error.item(), TOLERANCE)

    def run_changing() -> None:
        model(clip, bool_masked_pos=still_patches(clip, patch_shape, threshold=0.0))

    seconds = fastest({"all": lambda: model(clip), "changing": run_changing}, rounds=rounds)
    ratio, kept = seconds["changing"] / seconds["all"], (~still_patches(clip, patch_shape, threshold=0.0)).float()
    print(
        f"static camera: {kept.mean():.0%} of the patches kept, {seconds['all']:.3f} s with all, "
        f"{seconds['changing']:.3f} s without the others, ratio {ratio:.3f} (goal {GOAL})"
    )
    print_ratio("static camera, forward", ratio, "all patches")
    return ratio <= GOAL


@torch.inference_mode()
def compare_answers(folder: str, data: str) -> None:
    """How often a classifier answers right, and as it does from all patches, by the share of them that it sees."""
    model = load_trained_classifier(folder, dtype="float32").eval()
    videos = load_video_dataset(data, labels=class_names_of(model.config))["test"]
    dataset = VideoDataset(videos, ClipTask(load_processor(folder, model.config)), training=False)
    items = [dataset[index] for index in range(len(dataset))]
    clips, labels = torch.cat([item["pixel_values"] for item in items]), torch.tensor([i["labels"] for i in items])
    num_patches, answers = math.prod(model.config.token_grid), {}
    for share in (1.0, 0.75, 0.5, 0.35):
        mask = still_patches(clips, model.config.patch_shape, num_kept=round(share * num_patches))
        pairs = zip(clips.split(16), mask.split(16), strict=True)
        found = torch.cat([model(some, bool_masked_pos=hidden).logits for some, hidden in pairs]).argmax(-1)
        right, same = ((found == each).float().mean() for each in (labels, answers.setdefault("all", found)))
        print(f"{share:4.0%} of the patches: {right:.1%} of {len(clips)} videos right, {same:.1%} as from all patches")


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--model", help="folder of a trained VideoViT")
    parser.add_argument("--data", help="labelled videos, as `hf-video evaluate` takes them")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    print_machine("torch", threads=arguments.threads)
    is_met = compare_time(SMALL if arguments.smoke else {}, 1 if arguments.smoke else arguments.rounds)
    if arguments.model and arguments.data:
        compare_answers(arguments.model, arguments.data)
    return 0 if is_met or arguments.smoke else GOAL_MISSED


if __name__ == "__main__":
    sys.exit(main())
