"""The files that the examples in documents speak of, small ones."""

import contextlib
import io
import itertools
import json
import shutil
import tempfile
from pathlib import Path

import torch
from transformers import AutoModelForVideoClassification, InstructBlipVisionConfig

from hf_video import VideoViTBackbone, VideoViTForPreTraining
from hf_video.cli.main import main
from hf_video.demo import write_moving_digits
from tests.testing.answering import IMAGE_SIZE, tiny_pair
from tests.testing.goldens import FIXTURES
from tests.testing.search_models import save_dual_encoder
from tests.testing.videos import encode_video, make_frames

from ..data.detection_files import OWN, write_annotations, write_videos
from ..models.memory_bank_qformer.memory_bank_qformer_testing import tiny_model
from ..models.stmixer.detector import write_detector
from ..models.video_text.retrieval_model import write_retrieval_model

CLASS = "pouring water"
SIZES = ["--num-frames", "8", "--image-size", "32", "--hidden-size", "24", "--num-hidden-layers", "1"]
SIZES += ["--num-attention-heads", "2", "--epochs", "1", "--batch-size", "16", "--device", "cpu"]
# What an example has at hand without saying where from: tensors of the reader, by the page.
AT_HAND = """
import torch
frames = torch.rand(3, 1, 1, 3, 14, 14).unbind()
pixel_values = torch.rand(1, 8, 3, 32, 32)
"""


def make_files(folder: Path) -> Path:
    """Writes everything that stands ready, under the names of the documents."""
    videos = folder / "my_videos"
    write_moving_digits(videos, train_per_class=4, test_per_class=1, num_frames=16, image_size=48)
    (videos / "test").rename(videos / "validation")
    for split in ("train", "validation"):
        (videos / split / "up-right").rename(videos / split / CLASS)
    _make_videos(folder, sorted((videos / "validation").glob("*/*.mp4")))
    people = zip(sorted((videos / "train").glob("*/*.mp4")), itertools.cycle(("anna", "ben")), strict=False)
    rows = [f"{video},{video.parent.name},{person}" for video, person in people]
    (folder / "people.csv").write_text("\n".join(["path,label,person", *rows]))
    _make_models(folder)
    save_dual_encoder(folder / "my_dual_encoder")
    original = FIXTURES / "videovit" / "videomae_finetune"
    shutil.copy(original / "checkpoint.pth", folder)
    settings = json.loads((original / "config.json").read_text())["kwargs"]
    (folder / "constructor.json").write_text(json.dumps(settings))
    return folder


def _make_videos(folder: Path, digits: list[Path]) -> None:
    for name in ("a_video.mp4", "pouring.mp4"):
        shutil.copy(digits[0], folder / name)
    encode_video(folder / "match.mp4", make_frames(120, 48, 48), fps=12)
    encode_video(folder / "lecture.mp4", make_frames(130, 48, 48), fps=2)
    event = {"label": CLASS, "segment": [2.0, 6.0]}
    captions = {
        "a_video.mp4": "A digit moves.",
        "match.mp4": ["A ball game.", "Two teams play."],
        "lecture.mp4": "A talk.",
    }
    rows = [{"video": video, "caption": caption} for video, caption in captions.items()]
    (folder / "captions.json").write_text(json.dumps(rows))
    persons = folder / "my_persons"
    persons.mkdir()
    actions = {"walk": "action 1", '"talk, loudly"': "action 2", "turn left": "action 3"}
    annotations = OWN
    for name, known in actions.items():
        annotations = annotations.replace(name, known)
    write_annotations(write_videos(persons), train=annotations, validation=annotations)
    truth = {"database": {"match": {"subset": "validation", "annotations": [event]}}}
    (folder / "truth.json").write_text(json.dumps(truth))


def _make_models(folder: Path) -> None:
    words = ["train", str(folder / "my_videos"), "--output-dir", str(folder / "my_model"), *SIZES]
    with contextlib.redirect_stdout(io.StringIO()):
        code = main([*words, "--disable-tqdm"])
    if code:
        raise RuntimeError(f"hf-video train ended with exit code {code}.")
    shutil.copytree(folder / "my_model", folder / "another_model")
    config = AutoModelForVideoClassification.from_pretrained(folder / "my_model").config
    torch.manual_seed(0)
    VideoViTBackbone(config).save_pretrained(folder / "my_backbone")
    sizes = {"decoder_hidden_size": 24, "decoder_num_hidden_layers": 1, "decoder_num_attention_heads": 2}
    VideoViTForPreTraining(type(config)(**config.to_diff_dict() | sizes)).save_pretrained(folder / "pretrained")
    vision = InstructBlipVisionConfig(
        hidden_size=40,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=4,
        image_size=IMAGE_SIZE,
        patch_size=7,
    )
    tiny_model(vision_config=vision).save_pretrained(folder / "my_qformer")
    with tempfile.TemporaryDirectory() as converted, contextlib.redirect_stdout(io.StringIO()):
        shutil.copytree(write_retrieval_model(Path(converted)), folder / "my_video_text")
        shutil.copytree(write_detector(Path(converted)), folder / "my_detector")
    for each in tiny_pair(memory_bank_length=20, max_num_frames=200):
        each.save_pretrained(folder / "my_blip")


def remove_outputs(words: list[str], folder: Path) -> None:
    """Removes what an earlier example wrote where this command writes, as each example stands by itself."""
    named = [after for word, after in itertools.pairwise(words) if word in ("--output", "--output-dir")]
    if words[1] == "convert":
        named.append(words[4])
    if "--resume" in words and "auto" not in words:
        return
    for path in (folder / name for name in named):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
