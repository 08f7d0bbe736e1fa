"""Scores of videos: by hand, in our loop, by a Trainer and in the pipeline of Transformers; and their table."""

import datasets
import numpy as np
import pytest
import torch
from transformers import Trainer, pipeline
from transformers.modeling_outputs import ImageClassifierOutput

from hf_video.data import ClipTask, VideoDataset, collate_clips, load_video_dataset
from hf_video.evaluation import evaluate_dataset, write_predictions
from hf_video.inference import predict_scores
from hf_video.metrics import compute_metrics
from hf_video.reading import read_video
from hf_video.training import VideoTrainer
from tests.hub.conftest import TINY_CLASSIFIERS, make_model
from tests.testing.trainers import make_arguments
from tests.testing.trainers import make_model as make_plain_model

PROTOCOL = {"num_clips": 2, "num_crops": 3}


class MeanPixelClassifier(torch.nn.Module):
    """Logits are the mean of the first three frames; stands for a `PreTrainedModel`."""

    main_input_name = "pixel_values"

    def __init__(self, problem_type=None, dtype=torch.float32):
        super().__init__()
        self.config = type("Config", (), {"problem_type": problem_type, "num_labels": 3})
        self.device, self.dtype = torch.device("cpu"), dtype

    def forward(self, pixel_values):
        assert pixel_values.dtype == self.dtype
        return ImageClassifierOutput(logits=pixel_values[:, :3].mean((2, 3, 4)))


@pytest.fixture(scope="module", params=TINY_CLASSIFIERS)
def saved(request, digits, tmp_path_factory):
    """A folder with a tiny classifier and a processor that has a protocol; and the data it is for."""
    data = load_video_dataset(digits)["test"]
    model, processor = make_model(request.param, data.features["label"].names)
    # Longer than high, so that crops differ.
    processor.size = {"height": 32, "width": 48}
    for name, value in PROTOCOL.items():
        setattr(processor, name, value)
    folder = tmp_path_factory.mktemp("saved")
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder, data


def test_trainer_pipeline_and_loop_have_the_scores_of_a_loop_over_views_by_hand(saved, tmp_path):
    folder, data = saved
    classify = pipeline("video-classification", folder)
    model, processor = classify.model, classify.video_processor
    by_hand = []
    for video in data["video"]:
        clips, _ = read_video(video, processor.sample_frames)
        crops = [processor(clip, do_sample_frames=False, return_tensors="pt")["pixel_values"][0] for clip in clips]
        views = torch.cat(crops)
        assert len(views) == 6 and not torch.equal(views[0], views[1]) and not torch.equal(views[0], views[3])
        with torch.no_grad():
            by_hand.append(torch.stack([model(view[None]).logits.softmax(-1)[0] for view in views]).mean(0))
    expected = torch.stack(by_hand).numpy()

    names = [model.config.id2label[index] for index in range(model.config.num_labels)]
    for video, row in zip(data["video"], expected, strict=True):
        scores = {entry["label"]: entry["score"] for entry in classify(video, num_frames=4, top_k=8)}
        np.testing.assert_allclose([scores[name] for name in names], row, atol=1e-6)

    dataset = VideoDataset(data, ClipTask(processor), training=False)
    scores, labels = evaluate_dataset(model, dataset, batch_size=3, progress=False)
    np.testing.assert_allclose(scores, expected, atol=1e-6)
    loss = -np.log(expected[np.arange(len(labels)), labels]).mean()
    arguments = make_arguments(tmp_path, per_device_eval_batch_size=3, label_names=["labels"])
    own = {"data_collator": collate_clips, "compute_metrics": compute_metrics}
    for kind, options in ((VideoTrainer, {}), (Trainer, own)):
        trainer = kind(model, arguments, eval_dataset=dataset, **options)
        prediction = trainer.predict(dataset)
        logits = prediction.predictions[0] if isinstance(prediction.predictions, tuple) else prediction.predictions
        np.testing.assert_allclose(torch.from_numpy(logits).softmax(-1), expected, atol=1e-6)
        metrics = trainer.evaluate()
        assert metrics["eval_loss"] == pytest.approx(loss, rel=1e-4)
        assert metrics["eval_top1_accuracy"] == (expected.argmax(1) == labels).mean()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("problem_type", "function"),
    [(None, lambda logits: logits.softmax(-1)), ("multi_label_classification", torch.sigmoid), ("regression", None)],
)
def test_scores_are_float32_and_follow_the_problem_type(problem_type, function, dtype):
    pixel_values = torch.randn(2, 4, 3, 2, 2)
    logits = pixel_values[:, :3].to(dtype).mean((2, 3, 4)).float()
    scores = predict_scores(MeanPixelClassifier(problem_type, dtype), pixel_values)
    torch.testing.assert_close(scores, function(logits) if function else logits)


def test_scores_of_a_model_of_one_value_that_names_no_problem_type_are_its_values():
    model, clips = make_plain_model(num_labels=1).eval(), torch.randn(2, 2, 3, 16, 16)
    with torch.no_grad():
        torch.testing.assert_close(predict_scores(model, clips), model(clips).logits)


TABLE_SCORES = np.array([[0.9, 0.1], [0.3, 0.7], [0.2, 0.8], [0.6, 0.4]])
TABLE = {
    "videos": list("abcd"),
    "scores": TABLE_SCORES,
    "labels": np.array([0, 0, 0, 1]),
    "class_names": ["run", "sit"],
}


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_table_has_a_row_a_video_the_surest_mistakes_first(tmp_path, suffix):
    path = tmp_path / f"table.{suffix}"
    write_predictions(path, **TABLE, further={"camera": ["left", None, "right", "left"], "label": list("wxyz")})
    read = datasets.Dataset.from_csv if suffix == "csv" else datasets.Dataset.from_parquet
    table = read(str(path), cache_dir=str(tmp_path / "cache"))
    assert table["video"][:] == ["c", "b", "d", "a"]
    assert table["camera"][:] == ["right", None, "left", "left"]
    assert table["label"][:] == ["run", "run", "sit", "run"]
    assert table["prediction"][:] == ["sit", "sit", "run", "run"]
    assert table["is_right"][:] == [False, False, False, True]
    np.testing.assert_allclose(table["score"][:], [0.8, 0.7, 0.6, 0.9])
    np.testing.assert_allclose(table["label_score"][:], [0.2, 0.3, 0.4, 0.9])
    np.testing.assert_allclose(table["score: sit"][:], [0.8, 0.7, 0.4, 0.1])


def test_a_table_of_several_classes_a_video(tmp_path):
    labels = np.array([[1, 0], [1, 1], [0, 0], [0, 0]])
    write_predictions(tmp_path / "table.parquet", **TABLE | {"labels": labels})
    table = datasets.Dataset.from_parquet(str(tmp_path / "table.parquet"), cache_dir=str(tmp_path / "cache"))
    assert table["video"][:] == ["c", "b", "d", "a"]
    assert table["labels"][:] == ["", "run;sit", "", "run"]
    assert table["predictions"][:] == ["sit", "sit", "run", "run"]
    assert table["is_right"][:] == [False, False, False, True]
    np.testing.assert_allclose(table["error"][:], [0.8, 0.7, 0.6, 0.1])
    np.testing.assert_allclose(table["score: run"][:], [0.2, 0.3, 0.6, 0.9])


def test_a_table_is_csv_or_parquet(tmp_path):
    with pytest.raises(ValueError, match="table.xlsx is not a table: a name that ends in .csv or .parquet"):
        write_predictions(tmp_path / "table.xlsx", **TABLE)
