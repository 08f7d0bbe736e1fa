"""A model of every family, trained for a moment on a few videos."""

import json
import shutil
from types import SimpleNamespace

import pytest

import hf_video
from hf_video.data import ClipTask, VideoDataset, load_video_dataset
from hf_video.demo import write_moving_digits
from hf_video.hub import loading_check
from hf_video.training import VideoTrainer, VideoTrainingArguments
from tests.hub_server.fixtures import hub, run_as_stranger, unverified  # noqa: F401

SIZES = {"image_size": 32, "num_frames": 4, "hidden_size": 24, "num_hidden_layers": 1}
TINY_CLASSIFIERS = {
    "VideoViT": {**SIZES, "patch_size": 16, "num_attention_heads": 2, "intermediate_size": 32},
    "VideoMamba": {**SIZES, "patch_size": 16},
    "MemoryBankQFormer": {
        "vision_config": {
            **{"model_type": "instructblip_vision_model", "image_size": 32, "patch_size": 16, "hidden_size": 16},
            **{"intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2},
        },
        "qformer_config": {
            **{"vocab_size": 8, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2},
            **{"intermediate_size": 16, "max_position_embeddings": 4},
        },
        "num_query_tokens": 2,
        "memory_bank_length": 2,
        "max_num_frames": 4,
    },
}


@pytest.fixture(scope="session", autouse=True)
def forked_loading():
    """Models are loaded in a process that is forked off; that of a command is another interpreter."""

    def run(command, env, cwd, **options):
        program = f"import runpy; sys.argv = {command[2:]!r}; runpy.run_path(sys.argv[0], run_name='__main__')"
        return run_as_stranger(program, env, cwd)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loading_check, "subprocess", SimpleNamespace(run=run))
        yield


@pytest.fixture(scope="session")
def digits(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data") / "digits"
    return write_moving_digits(folder, train_per_class=1, test_per_class=1, num_frames=8, image_size=32)


def make_model(family, names):
    """An untrained tiny classifier of some classes, and its processor."""
    labels = {"id2label": dict(enumerate(names)), "label2id": {name: index for index, name in enumerate(names)}}
    config = getattr(hf_video, f"{family}Config")(**TINY_CLASSIFIERS[family], **labels)
    return getattr(hf_video, f"{family}ForVideoClassification")(config), make_processor()


def make_processor():
    size = {"shortest_edge": 32}
    crop_size = {"height": 32, "width": 32}
    return hf_video.VideoClipProcessor(num_frames=4, sampling_strategy="uniform", size=size, crop_size=crop_size)


def train(family, digits, folder):
    data = load_video_dataset(digits)
    model, processor = make_model(family, data["train"].features["label"].names)
    trainer = VideoTrainer(
        model,
        VideoTrainingArguments(str(folder), use_cpu=True, disable_tqdm=True, num_train_epochs=1),
        train_dataset=VideoDataset(data["train"], ClipTask(processor), training=True),
        eval_dataset=VideoDataset(data["test"], ClipTask(processor), training=False),
        processing_class=processor,
    )
    trainer.train()
    trainer.save_model()
    return folder


@pytest.fixture(scope="session", params=TINY_CLASSIFIERS)
def trained(request, digits, tmp_path_factory):
    """The folder of a tiny classifier of each family, as `VideoTrainer` leaves it."""
    return train(request.param, digits, tmp_path_factory.mktemp("trained") / request.param)


def edit(path, **changes):
    """Changes keys of a JSON file."""
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.fixture
def folder(trained_videovit, tmp_path):
    """A copy of a trained model's folder, to be spoilt."""
    return shutil.copytree(trained_videovit, tmp_path / "folder", ignore=shutil.ignore_patterns("checkpoint-*"))


@pytest.fixture
def staging(tmp_path):
    """An empty folder."""
    (tmp_path / "staging").mkdir()
    return tmp_path / "staging"


@pytest.fixture(scope="session")
def trained_videovit(digits, tmp_path_factory):
    return train("VideoViT", digits, tmp_path_factory.mktemp("trained") / "VideoViT")
