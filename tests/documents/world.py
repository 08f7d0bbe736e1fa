"""The files that the examples in documents speak of, small ones, and a Hub on the loopback that has them."""

import contextlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from itertools import cycle
from pathlib import Path
from unittest.mock import patch

import torch
from huggingface_hub import HfApi, constants
from transformers import AutoModelForVideoClassification, BlipImageProcessor, InstructBlipVisionConfig

from hf_video import VideoViTBackbone, VideoViTForPreTraining
from hf_video.cli.main import main
from hf_video.demo import write_moving_digits

from ..conversion.test_instructblip import PLACE, make_original
from ..data.detection_files import OWN, write_annotations, write_videos
from ..goldens import FIXTURES
from ..hub_server.fixtures import client_environment
from ..hub_server.server import HubServer, User
from ..inference.search_models import save_dual_encoder
from ..models.memory_bank_qformer.memory_bank_qformer_testing import tiny_model
from ..models.memory_bank_qformer.tokenizers_testing import word_tokenizer
from ..models.memory_bank_qformer.watching_testing import IMAGE_SIZE, tiny_pair
from ..models.stmixer.detector import write_detector
from ..models.video_text.retrieval_model import write_retrieval_model
from ..video_files import encode_video, make_frames
from .blocks import ROOT

TOKEN = "hf_user"
CLASS = "pouring water"
INSTRUCTBLIP = "Salesforce/instructblip-flan-t5-xl"
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
    write_moving_digits(videos, train_per_class=2, test_per_class=1, num_frames=16, image_size=48)
    (videos / "test").rename(videos / "validation")
    for split in ("train", "validation"):
        (videos / split / "up-right").rename(videos / split / CLASS)
    _make_videos(folder, sorted((videos / "validation").glob("*/*.mp4")))
    people = zip(sorted((videos / "train").glob("*/*.mp4")), cycle(("anna", "ben")), strict=False)
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
    captions = {"a_video.mp4": "A digit moves.", "match.mp4": ["A ball game.", "Two teams play."]}
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
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
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
    with tempfile.TemporaryDirectory() as converted, contextlib.redirect_stdout(sys.stderr):
        shutil.copytree(write_retrieval_model(Path(converted)), folder / "my_video_text")
        shutil.copytree(write_detector(Path(converted)), folder / "my_detector")
    for each in tiny_pair(memory_bank_length=20, max_num_frames=200):
        each.save_pretrained(folder / "my_blip")


def fill_hub(server: HubServer, folder: Path) -> None:
    """Uploads a small random InstructBLIP under the name of a released one."""
    make_original("instructblip", "t5").save_pretrained(folder)
    tokenizer = word_tokenizer(bos=None)
    tokenizer.add_special_tokens({"additional_special_tokens": [f"<{i}>" for i in range(len(tokenizer), PLACE)]})
    tokenizer.add_special_tokens({"extra_special_tokens": ["<image>"]}, replace_extra_special_tokens=False)
    tokenizer.save_pretrained(folder)
    word_tokenizer(None, "[SEP]").save_pretrained(folder / "qformer_tokenizer")
    BlipImageProcessor(size={"height": IMAGE_SIZE, "width": IMAGE_SIZE}).save_pretrained(folder)
    hub = HfApi(server.endpoint, TOKEN)
    hub.create_repo(INSTRUCTBLIP)
    with patch.object(constants, "HF_HUB_DISABLE_XET", True):
        hub.upload_folder(repo_id=INSTRUCTBLIP, folder_path=folder)


def hub_tokens() -> dict[str, User]:
    return {TOKEN: User("user", namespaces=(INSTRUCTBLIP.partition("/")[0],))}


def environment(server: HubServer, folder: Path, programs: Path | None = None) -> Mapping[str, str]:
    """Variables for the commands: the Hub is `server`, GitHub's address leads to this clone.

    Args:
        server: the Hub.
        folder: where the caches are.
        programs: the folder of `python`; by default that of this process.
    """
    path = [str(programs or Path(sys.executable).parent), os.environ["PATH"]]
    clone = {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": f"url.{ROOT}.insteadOf"}
    clone["GIT_CONFIG_VALUE_0"] = "https://github.com/hf-video/hf-video"
    caches = {
        "HF_HOME": str(folder / "home"),
        "MPLBACKEND": "Agg",
        "PIP_REQUIRE_VIRTUALENV": "1",
        "PATH": os.pathsep.join(path),
    }
    left = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "PYTEST_", "PYTHONPATH"))}
    return left | client_environment(server, TOKEN) | clone | caches
