"""The video classifiers of Transformers with our processor, trainer and commands."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoImageProcessor, AutoModelForVideoClassification, AutoVideoProcessor

from hf_video.inference import predict_scores
from hf_video.training import VideoTrainer
from hf_video.training.loading import clip_size, load_classifier, load_processor, load_trained_classifier

from .tiny import make_arguments
from .transformers_families import FAMILIES, IMAGE_SIZE, NUM_FRAMES, save_family

NAMES = ["clap", "jump", "wave"]


@pytest.fixture(scope="module", params=FAMILIES)
def saved(request, tmp_path_factory):
    """The name of a family, and the folder of a tiny classifier with the processor of its family."""
    return request.param, save_family(request.param, tmp_path_factory.mktemp("families") / request.param, NAMES)


class Clips(torch.utils.data.Dataset):
    """Clips whose class shows in their brightness."""

    def __init__(self, length=6):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        clips = torch.randn(1, NUM_FRAMES, 3, IMAGE_SIZE, IMAGE_SIZE, generator=generator) + index % len(NAMES)
        return {"pixel_values": clips, "labels": index % len(NAMES)}


def own_inputs(family, folder, frames):
    """The input that the processor of the family itself makes of frames."""
    auto = AutoImageProcessor if (folder / "preprocessor_config.json").is_file() else AutoVideoProcessor
    processor = auto.from_pretrained(folder)
    assert type(processor) is type(FAMILIES[family].processor())
    videos = list(frames) if auto is AutoImageProcessor else [frames]
    (values,) = processor(videos, return_tensors="pt").values()
    return values


def test_our_processor_and_scores_are_those_of_the_family(saved):
    family, folder = saved
    model = load_trained_classifier(folder).eval()
    processor = load_processor(folder, model.config)
    assert clip_size(model.config) == (NUM_FRAMES, IMAGE_SIZE) and processor.num_frames == NUM_FRAMES
    frames = np.random.default_rng(0).integers(0, 256, (NUM_FRAMES, 48, 64, 3), dtype=np.uint8)
    ours = processor(frames, do_sample_frames=False, return_tensors="pt")["pixel_values"]
    theirs = own_inputs(family, folder, frames)

    torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=0)

    plain = AutoModelForVideoClassification.from_pretrained(folder).eval()
    with torch.inference_mode():
        expected = plain(**{plain.main_input_name: theirs}).logits.reshape(1, len(NAMES)).softmax(-1)
    torch.testing.assert_close(predict_scores(model, theirs), expected, atol=1e-5, rtol=0)
    assert abs(predict_scores(model, ours) - expected).max() < 1e-5


def test_training_keeps_and_loads_the_best_weights_by_their_names(saved, tmp_path):
    _, folder = saved
    model = load_classifier(folder, NAMES)
    arguments = make_arguments(
        tmp_path / "run",
        gradient_accumulation_steps=2,
        per_device_train_batch_size=1,
        eval_strategy="epoch",
        save_strategy="epoch",
        load_best_model_at_end=True,
        metric_for_best_model="loss",
    )
    trainer = VideoTrainer(model=model, args=arguments, train_dataset=Clips(), eval_dataset=Clips(3))
    trainer.train()
    # As if the last epoch had been worse.
    trainer.state.best_model_checkpoint = str(min((tmp_path / "run").glob("checkpoint-*"), key=lambda path: path.name))
    trainer._load_best_model()
    best = load_file(trainer.state.best_model_checkpoint + "/model.safetensors")
    torch.testing.assert_close(dict(trainer.model.state_dict()), best, rtol=0, atol=0)
    loaded = load_trained_classifier(trainer.state.best_model_checkpoint)
    torch.testing.assert_close(dict(loaded.state_dict()), best, rtol=0, atol=0)
