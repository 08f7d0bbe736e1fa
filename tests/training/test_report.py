import json
import re
import sys

import numpy as np
import pytest
from scipy.stats import binomtest

from hf_video.data import ClipTask, VideoDataset, load_video_dataset
from hf_video.metrics import chance_accuracy, wilson_interval
from hf_video.processing import VideoClipProcessor
from hf_video.training import assess, measure_classes, write_report
from hf_video.training.report import clip_reader
from hf_video.training.report_pictures import plot_clips, plot_curves

NAMES = ["left", "right", "up"]
SCORES = np.eye(3)[[0, 1, 2, 2]]
LABELS = np.array([0, 1, 2, 1])
HISTORY = [
    {"loss": 1.0, "epoch": 0.5, "step": 1},
    {"eval_loss": 0.9, "eval_top1_accuracy": 0.5, "epoch": 1.0, "step": 2},
    {"loss": 0.7, "epoch": 1.5, "step": 3},
    {"eval_loss": 0.6, "eval_top1_accuracy": 0.75, "epoch": 2.0, "step": 4},
]


@pytest.fixture(autouse=True)
def undrawn_reports():
    """Here they are drawn."""


def clip_of(row):
    return f"video {row}", np.full((8, 12, 16, 3), row / 4)


def write(folder, scores=SCORES, labels=LABELS, names=NAMES, clip_of=None, training_counts=None, **options):
    measured = measure_classes(scores, labels, names, clip_of=clip_of, training_counts=training_counts)
    return write_report(folder, measured, **options)


def test_everything_is_written(tmp_path):
    steps = [
        {"loss": 1.0, "epoch": 1.0, "clips_per_second": speed, "data_wait_fraction": speed / 100}
        for speed in (10, 30, 20)
    ]
    result = write(
        tmp_path,
        log_history=HISTORY + [step | {"peak_memory_gib": 1.5} for step in steps],
        split="test",
        details={"seed": 5},
        clip_of=clip_of,
        training_counts=np.array([100, 10, 3]),
        training_metrics={"top1_accuracy": 1.0, "mean_class_accuracy": 1.0},
    )
    pictures = ["confusion_matrix.png", "curves.png", "worst_clips.png"]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["metrics.json", "report.md", *pictures])
    assert json.loads((tmp_path / "metrics.json").read_text()) == result
    assert result["top1_accuracy"] == 0.75 and result["num_videos"] == 4 and result["seed"] == 5
    assert result["chance"] == 0.5 and result["training_top1_accuracy"] == 1.0
    assert result["top1_interval"] == pytest.approx(wilson_interval(0.75, 4))
    assert (result["clips_per_second"], result["data_wait_fraction"], result["peak_memory_gib"]) == (20, 0.2, 1.5)
    summary = (tmp_path / "report.md").read_text()
    for row in (
        "- top-1 accuracy 75.0% on 4 test videos",
        "| id | class | training videos | support | recall |",
        "| right | up | 1 of 2 |",
        "| top-1 accuracy by chance | 50.00% |",
        "| top-1 accuracy on training clips | 100.00% |",
    ):
        assert row in summary
    first, last = "| 1 | right | 10 | 2 | 50.0% |", "| 0 | left | 100 | 1 | 100.0% |"
    assert summary.index(first) < summary.index(last)
    for name in pictures:
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
        assert f"({name})" in summary


def test_the_clips_with_the_highest_loss_are_shown_worst_first(tmp_path, monkeypatch):
    scores = np.array([[9.0, 0, 0], [0, 1, 0], [0, 5, 0], [0, 0, 0]])
    labels = np.array([0, 1, 0, 1])
    drawn = []
    monkeypatch.setattr(
        "hf_video.training.report.plot_clips", lambda *given: drawn.append(given) or plot_clips(*given)
    )
    write(tmp_path, scores, labels, clip_of=clip_of)
    ((clips, _),) = drawn
    assert [clip.caption[2].partition(", ")[2] for clip in clips] == ["video 2", "video 3"]
    assert clips[0].caption == ("true: left (0.7%)", "predicted: right (98.7%)", "loss 5.01, video 2")
    summary = (tmp_path / "report.md").read_text()
    assert "| loss 5.01, video 2 | predicted: right (98.7%) | true: left (0.7%) |" in summary
    figure = plot_clips(clips, "Worst")
    assert [len(axes.images) for axes in figure.axes] == [1, 1]
    strip = figure.axes[0].images[0].get_array()
    assert strip.shape == (12, 6 * 17 - 1, 3)  # six frames of the eight, a white line between two
    assert (strip[:, 16] == 1).all() and (strip[:, :16] == 0.5).all()
    drawn.clear()
    write(tmp_path, scores, scores.argmax(1), clip_of=clip_of)
    assert [clip.caption[2].partition(", ")[2] for clip in drawn[0][0]] == ["video 3", "video 1", "video 2", "video 0"]


def test_clips_are_shown_as_the_model_sees_them(digits):
    processor = VideoClipProcessor(num_frames=4, sampling_strategy="uniform", size=16, crop_size=16, num_clips=2)
    dataset = VideoDataset(load_video_dataset(digits)["test"], ClipTask(processor), training=False)
    videos = dataset.rows["video"]
    name, frames = clip_reader(dataset, 7, broken=[videos[2]])(3)
    assert name == "right-down/0000.mp4" and videos[4].endswith(name)
    expected = processor(videos[4], do_normalize=False, return_tensors="pt")["pixel_values"][0, 0]
    np.testing.assert_allclose(frames, expected.movedim(1, -1).numpy(), atol=1e-6)
    assert clip_reader(dataset, 6, broken=[videos[2]]) is None
    # Clips of one video have titles of their own.
    dataset.rows = dataset.rows.remove_columns(["start", "end"])
    for name, seconds in (("start", 0.0), ("end", 63.0)):
        dataset.rows = dataset.rows.add_column(name, [seconds] * len(dataset.rows))
    assert clip_reader(dataset, 8)(3)[0].endswith("/0000.mp4 00:00-01:03")


def test_a_report_of_several_labels_a_video(tmp_path):
    labels = np.array([[1.0, 1, 0], [0, 1, 0], [0, 0, 0], [0, 1, 1]])
    result = write(tmp_path, 2 * SCORES - 1, labels, clip_of=clip_of)
    assert "confusion_matrix" not in result and (tmp_path / "worst_clips.png").exists()
    summary = (tmp_path / "report.md").read_text()
    assert "| mean average precision | " in summary
    # Of the three videos with "right" one has the higher score, the others share the lower one with one without.
    assert "| 1 | right | 3 | " in summary and "| 0 | left | 1 | 100.0% | 100.0% |" in summary
    # The logit of one of the three is positive.
    assert re.search(r"\| 1 \| right \| 3 \| [\d.]+% \| 33.3% \|", summary)


def test_without_matplotlib_the_rest_is_written_with_one_warning(tmp_path, monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    write(tmp_path, log_history=HISTORY)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["metrics.json", "report.md"]
    assert [record.getMessage() for record in caplog.records] == [
        "No pictures in the report: matplotlib is missing (pip install 'hf-video-models[demo]')."
    ]


def measured(right, number=240, training=None, **changes):
    """What a report holds of balanced classes, of whose videos the first `right` are recognised."""
    share = right / number
    low, high = wilson_interval(share, number)
    metrics = {"top1_accuracy": share, "mean_class_accuracy": share, "num_videos": number, "split": "test"}
    metrics |= {"chance": 0.25, "top1_interval": [low, high], "class_names": ["left", "right", "up", "down"]}
    return metrics | ({} if training is None else {"training_top1_accuracy": training}) | changes


@pytest.mark.parametrize(("right", "number"), [(186, 240), (0, 10), (10, 10), (1, 3)])
def test_the_interval_is_wilsons(right, number):
    expected = binomtest(right, number).proportion_ci(method="wilson")
    np.testing.assert_allclose(wilson_interval(right / number, number), expected, atol=1e-6)


def test_chance_is_the_share_of_the_most_frequent_class():
    assert chance_accuracy(np.array([0, 1, 1, 2, 1])) == 0.6


def test_the_figure_comes_with_chance_interval_and_gap():
    first, second, third = assess(measured(186, training=0.975))
    assert first == "top-1 accuracy 77.5% on 240 test videos (chance 25.0%, 95% interval 71.8% to 82.3%)"
    assert second == "on clips that it was trained on 97.5%, 20.0 points more than on the test split"
    assert third.startswith("next     it is much better on its training clips than on others: more clips")


@pytest.mark.parametrize(
    ("kept", "text"),
    [
        ({"kept_by": "top1_accuracy"}, "epoch 5, the best on the validation split by top-1 accuracy"),
        ({"kept_by": "last epoch"}, "epoch 5, the last"),
        ({"kept_by": "last epoch", "model": "the bundled model"}, "epoch 5, the last: on few clips"),
    ],
)
def test_the_epoch_whose_model_is_kept_is_told(kept, text):
    assert assess(measured(186, training=0.975, kept_epoch=5.0, **kept))[2].startswith(f"kept     {text}")


def test_the_report_does_not_name_itself(tmp_path):
    logits = np.eye(2).repeat(50, axis=0)
    write(tmp_path, logits, np.append(logits[:-1].argmax(1), 0), ["run", "jump"])
    assert "- next     the mistakes, in the tables below\n" in (tmp_path / "report.md").read_text()


@pytest.mark.parametrize(
    ("metrics", "advice"),
    [
        (measured(66, training=0.3), "no better than chance: another --model, more --epochs, or more clips"),
        (measured(66, training=1.0), "no better than chance, but it knows its own clips by heart"),
        (measured(150, training=0.7), "it does not know its own clips yet: more --epochs"),
        (measured(66, training=0.3, lora_rank=8), "adapters learn little in few steps: --epochs 40"),
        (measured(16, 20, training=0.92), "the interval of 20 videos is wide"),
        # Frames of one video, nearly all of which are right: they cannot be told from chance, but do not look like it.
        (measured(19, 20, training=1.0, chance=0.6, top1_interval=[0.5, 1.0], class_names=[]), "the interval of 20"),
        (measured(236, training=1.0), "the mistakes, in report/report.md"),
        (measured(240, training=1.0), "new videos"),
        # Nine of ten videos are of one class, and the others are recognised as well.
        (measured(216, training=0.95, chance=0.9, mean_class_accuracy=0.9), "the mistakes"),
    ],
)
def test_the_next_thing_to_try(metrics, advice):
    if not metrics["class_names"]:
        del metrics["mean_class_accuracy"]
    assert assess(metrics)[-1].startswith(f"next     {advice}")


def test_a_result_of_several_labels_has_neither_chance_nor_interval(tmp_path):
    scores, labels = np.array([[2.0, -1], [-1, 2]]), np.array([[1.0, 0], [0, 1]])
    training = {"mean_average_precision": 1.0}
    metrics = write(tmp_path, scores, labels, ["run", "jump"], training_metrics=training)
    assert "chance" not in metrics and "top1_interval" not in metrics
    first, second, _ = assess(metrics)
    assert first == "mean average precision 100.0% on 2 validation videos"
    assert second == "on clips that it was trained on 100.0%, no more than on others"


def test_waiting_for_videos_is_told_with_what_helps():
    assert assess(measured(236, training=1.0, data_wait_fraction=0.951))[-1].startswith(
        "speed    95.1% of the training waited for videos: more --num-workers"
    )
    assert not any("waited" in line for line in assess(measured(236, training=1.0, data_wait_fraction=0.2)))


def test_the_curves_name_the_figure_of_the_model_that_is_kept():
    for kept, figure, epoch in ((2, "50.0%", "epoch 1,"), (4, "75.0%", "epoch 2,"), (None, "75.0%", "epoch 2,")):
        (legend,) = plot_curves(HISTORY, kept_step=kept).legends
        assert [text.get_text() for text in legend.get_texts()] == [f"top-1 accuracy {figure}"]
        assert epoch in legend.get_title().get_text()


def test_equal_curves_and_the_legend_hide_nothing():
    history = [entry | {"eval_mean_class_accuracy": entry.get("eval_top1_accuracy")} for entry in HISTORY]
    figure = plot_curves([entry for entry in history if "eval_loss" in entry], chance=0.1)
    first, second, chance = figure.axes[1].lines
    assert first.get_linewidth() > second.get_linewidth() and first.get_zorder() <= second.get_zorder()
    assert first.get_linestyle() == "-" and second.get_linestyle() != "-"
    assert figure.axes[1].get_legend() is None and chance.get_label() == "top-1 accuracy by chance 10.0%"
    assert len(figure.legends) == 1
