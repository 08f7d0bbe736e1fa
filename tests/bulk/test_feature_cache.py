import os
import shutil

import pytest
import torch

from hf_video.bulk import extract_features, feature_cache
from hf_video.data import ClipTask, VideoDataset, load_video_dataset
from hf_video.demo import write_moving_digits
from hf_video.inference import weights_digest
from hf_video.processing import VideoClipProcessor
from tests.testing.trainers import make_model


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """16 videos of eight classes."""
    folder = tmp_path_factory.mktemp("data") / "digits"
    return write_moving_digits(folder, train_per_class=2, test_per_class=1, num_frames=8, image_size=32) / "train"


def make_processor(**options):
    sizes = {
        "num_frames": 2,
        "sampling_strategy": "uniform",
        "size": {"shortest_edge": 16},
        "crop_size": {"height": 16, "width": 16},
    }
    return VideoClipProcessor(**sizes | options)


class WatchedClips(VideoDataset):
    """Remembers which videos were read, and is interrupted at the one in `interrupt_at`."""

    def __init__(self, *args, interrupt_at=None, **kwargs):
        super().__init__(*args, training=False, **kwargs)
        self.read, self.interrupt_at = [], interrupt_at

    def __getitem__(self, index):
        if index == self.interrupt_at:
            raise KeyboardInterrupt
        self.read.append(index)
        return super().__getitem__(index)


def clips_of(data, processor=None, **options):
    return WatchedClips(load_video_dataset(data)["train"], ClipTask(processor or make_processor()), **options)


def extract(model, dataset, folder, **options):
    return extract_features(model, dataset, folder, batch_size=3, progress=False, **options)


def test_features_are_what_the_head_gets_of_every_view(digits, tmp_path):
    model, dataset = make_model(), clips_of(digits, make_processor(num_clips=2))
    pooled, rows = extract(model, dataset, tmp_path)
    assert pooled.shape == (16, 2, 24) and rows.tolist() == list(range(16))
    with torch.no_grad():
        expected = model(torch.cat([dataset[index]["pixel_values"] for index in range(16)])).logits
        torch.testing.assert_close(model.classifier(pooled).flatten(0, 1), expected)
        tokens = extract(model, dataset, tmp_path, pooling="none").values
        assert tokens.shape == (16, 2, 4, 24)
        torch.testing.assert_close(model.fc_norm(tokens.flatten(0, 1).mean(dim=1)), pooled.flatten(0, 1))


def test_an_interrupted_run_goes_on_where_it_was(digits, tmp_path, monkeypatch):
    monkeypatch.setattr(feature_cache, "SHARD_SIZE", 4)
    whole = extract(make_model(), clips_of(digits), tmp_path / "whole").values
    first = clips_of(digits, interrupt_at=10)
    with pytest.raises(KeyboardInterrupt, match="The features of 8 of 16 videos are kept in"):
        extract(make_model(), first, tmp_path / "parts")
    assert not list((tmp_path / "parts").rglob("*.partial"))
    second = clips_of(digits)
    torch.testing.assert_close(extract(make_model(), second, tmp_path / "parts").values, whole, rtol=0, atol=0)
    assert second.read == list(range(8, 16))


def test_another_model_processor_or_video_is_never_given_the_same_features(digits, tmp_path, monkeypatch):
    monkeypatch.setattr(feature_cache, "SHARD_SIZE", 4)
    data = tmp_path / "data"
    shutil.copytree(digits, data)
    folder = tmp_path / "features"
    extract(make_model(), clips_of(data), folder)

    def read_by(model=None, processor=None):
        dataset = clips_of(data, processor)
        extract(model or make_model(), dataset, folder)
        return len(dataset.read)

    assert read_by() == 0
    trained = make_model()
    with torch.no_grad():
        trained.videovit.layers[0].mlp.fc1.weight[0, 0] += 1e-6
    assert read_by(trained) == 16
    assert read_by(make_model(layer_norm_eps=1e-5)) == 16
    assert read_by(processor=make_processor(sampling_strategy="linspace")) == 16
    # Another file of the same size under the same name.
    video = sorted(data.rglob("*.mp4"))[5]
    os.utime(video, ns=(0, 0))
    assert read_by() == 4
    # Another segment of each video is another one.
    dataset = clips_of(data)
    dataset.rows = dataset.rows.map(lambda row: {"end": 0.5})
    extract(make_model(), dataset, folder)
    assert len(dataset.read) == 16
    # The head and the names of classes have no part in it.
    head = make_model()
    torch.nn.init.ones_(head.classifier.weight)
    head.config.id2label = {0: "one", 1: "two"}
    assert read_by(head) == 0 and read_by() == 0


def test_videos_that_cannot_be_read_are_left_out_where_that_is_wanted(digits, tmp_path, monkeypatch):
    monkeypatch.setattr(feature_cache, "SHARD_SIZE", 2)
    data = tmp_path / "data"
    shutil.copytree(digits, data)
    videos = sorted(data.rglob("*.mp4"))
    for index in (2, 3, 9):
        videos[index].write_bytes(b"not a video")
    for _ in range(2):  # computed, and from the files
        values, rows = extract(make_model(), clips_of(data, on_error="skip"), tmp_path / "features")
        assert rows.tolist() == [0, 1, 4, 5, 6, 7, 8, 10, 11, 12, 13, 14, 15] and len(values) == 13


def test_the_digest_tells_values_names_shapes_and_dtypes_apart():
    weights = {"a": torch.ones(2, 3), "b": torch.tensor(1.0)}
    others = [
        {"a": torch.ones(2, 3), "b": torch.tensor(1.5)},
        {"a": torch.ones(2, 3), "c": torch.tensor(1.0)},
        {"a": torch.ones(3, 2), "b": torch.tensor(1.0)},
        {"a": torch.ones(2, 3), "b": torch.tensor(1.0, dtype=torch.bfloat16)},
    ]
    assert len({weights_digest(each) for each in (weights, *others)}) == 5
    assert weights_digest({"b": weights["b"].clone(), "a": weights["a"].mT.contiguous().mT}) == weights_digest(weights)


def test_errors(digits, tmp_path):
    with pytest.raises(ValueError, match="make the data set with training=False"):
        dataset = VideoDataset(load_video_dataset(digits)["train"], ClipTask(make_processor()), training=True)
        extract_features(make_model(), dataset, tmp_path)
    assert not list(tmp_path.iterdir())
