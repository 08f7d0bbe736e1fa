"""Clips that threads read ahead, streams, and an accumulated batch, which has the gradients of the whole batch for
every head, loss and trainer."""

import copy
import threading

import pytest
import torch
from torch import nn
from torch.utils.data import IterableDataset
from transformers import Trainer, default_data_collator, set_seed

import hf_video
from hf_video.data import ClipAugmentation, ClipTask, VideoDataset, load_video_dataset
from hf_video.hub.model_card import read_facts
from hf_video.processing import VideoClipProcessor
from hf_video.training import VideoTrainer, VideoTrainingArguments
from hf_video.training.answers import AnswerTrainer, AnswerTrainingArguments
from tests.hub.conftest import TINY_CLASSIFIERS
from tests.models.memory_bank_qformer.memory_bank_qformer_testing import QFORMER, SIZES
from tests.models.memory_bank_qformer.test_generation import KINDS, PLACE
from tests.models.memory_bank_qformer.test_generation import make_model as make_answering_model
from tests.testing.trainers import LAST_WEIGHTS, RandomClips, RecordGradients, make_model, make_trainer, weights_of

NUM_CLIPS = 4
CLASSES = torch.tensor([0, 2, 1, 2])
TARGETS = torch.tensor([[1.0, 0, 1], [0, 1, 0], [0, 0, 0], [1, 1, 1]])
VALUES = torch.tensor([[0.5], [-2.0], [3.0], [1.0]])
# The problem type that the configuration names, and labels; without one their dtype decides.
PROBLEMS = {
    "single label": ("single_label_classification", CLASSES),
    "single label unsaid": (None, CLASSES),
    "multi-label": ("multi_label_classification", TARGETS),
    "regression of one value": ("regression", VALUES[:, 0]),
    "regression of one value, unsaid": (None, VALUES[:, 0]),
    "regression of several values": ("regression", TARGETS * VALUES),
}
HEADS = [("ForVideoClassification", family) for family in TINY_CLASSIFIERS]
HEADS += [("ForImageClassification", family) for family in ("VideoViT", "VideoMamba")]
TRAINERS = {"Trainer": (Trainer, {}), "VideoTrainer": (VideoTrainer, {"data_collator": default_data_collator})}


def gradients(model, items, folder, trainer_class=Trainer, arguments_class=VideoTrainingArguments, **kwargs):
    """Those of the first step, which sees all items in batches of two."""
    recorded = RecordGradients()
    arguments = arguments_class(
        str(folder),
        per_device_train_batch_size=2,
        gradient_accumulation_steps=len(items) // 2,
        max_steps=1,
        max_grad_norm=0,
        use_cpu=True,
        disable_tqdm=True,
        **LAST_WEIGHTS,
    )
    trainer = trainer_class(copy.deepcopy(model), arguments, train_dataset=items, callbacks=[recorded], **kwargs)
    trainer.train()
    return recorded.found


def check(model, items, folder, **kwargs):
    for module in model.modules():
        for name in ("p", "dropout", "dropout_prob"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)
    # Double precision, because a sum over parts is rounded otherwise than a sum over all.
    model = model.double()
    items = [{name: double(value) for name, value in item.items()} for item in items]
    alone = copy.deepcopy(model).train()
    alone(**default_data_collator(items)).loss.backward()
    expected = {name: p.grad for name, p in alone.named_parameters() if p.grad is not None}
    assert max(gradient.abs().max() for gradient in expected.values()) > 1e-3
    torch.testing.assert_close(gradients(model, items, folder, **kwargs), expected, rtol=1e-5, atol=1e-6)


def double(value):
    return value.double() if value.is_floating_point() else value


def rows(**tensors):
    """One item a clip."""
    return [{name: tensor[row] for name, tensor in tensors.items()} for row in range(NUM_CLIPS)]


def pixels(*shape):
    return torch.randn(NUM_CLIPS, *shape, generator=torch.Generator().manual_seed(0))


def make(name, family, **options):
    set_seed(0)
    config = getattr(hf_video, f"{family}Config")(**TINY_CLASSIFIERS[family] | options)
    return getattr(hf_video, f"{family}{name}")(config)


@pytest.mark.parametrize(
    ("head", "family", "problem", "trainer"),
    # `VideoTrainer` has losses of its own for every head, and a plain `Trainer` has those of the heads.
    [(*HEADS[0], problem, "VideoTrainer") for problem in PROBLEMS]
    + [(*head, problem, "Trainer") for head in HEADS for problem in ("single label", "multi-label")],
)
def test_classification(head, family, problem, trainer, tmp_path):
    problem_type, labels = PROBLEMS[problem]
    options = {"num_frames": 1, "tubelet_size": 1} if head == "ForImageClassification" else {}
    num_labels = 1 if "one value" in problem else 3
    model = make(head, family, problem_type=problem_type, num_labels=num_labels, **options)
    clips = pixels(*([] if options else [4]), 3, 32, 32)
    trainer_class, arguments = TRAINERS[trainer]
    check(model, rows(pixel_values=clips, labels=labels), tmp_path, trainer_class=trainer_class, **arguments)


def test_masked_autoencoding(tmp_path):
    model = make("ForPreTraining", "VideoViT", use_class_token=False, decoder_hidden_size=24)
    mask = torch.rand(NUM_CLIPS, 8, generator=torch.Generator().manual_seed(1)).argsort(1) < 6
    check(model, rows(pixel_values=pixels(4, 3, 32, 32), bool_masked_pos=mask), tmp_path)


def test_masked_feature_alignment(tmp_path):
    model = make("ForPreTraining", "VideoMamba", projection_dim=12)
    mask = torch.rand(NUM_CLIPS, 16, generator=torch.Generator().manual_seed(1)).argsort(1) < 8
    features = nn.functional.normalize(pixels(model.config.num_aligned_layers, 9, 12), dim=-1)
    check(model, rows(pixel_values=pixels(4, 3, 32, 32), bool_masked_pos=mask, labels=features), tmp_path)


def answers(model, lengths=(5, 2, 4, 1)):
    """Clips and texts of a prompt of two tokens, with an answer each, padded on the right."""
    longest = max(lengths)
    places = SIZES["num_query_tokens"]
    words = torch.randint(3, 60, (NUM_CLIPS, longest), generator=torch.Generator().manual_seed(2))
    has_word = torch.arange(longest) < torch.tensor(lengths)[:, None]
    learned = words.masked_fill(~has_word, -100)
    before = torch.cat([torch.full((NUM_CLIPS, places), PLACE), torch.full((NUM_CLIPS, model.num_prompted), 3)], dim=1)
    if model.config.text_config.is_encoder_decoder:
        ids, mask, labels = before, torch.ones_like(before), learned
    else:
        ids = torch.cat([before, words * has_word], dim=1)
        mask = torch.cat([torch.ones_like(before), has_word.long()], dim=1)
        labels = torch.cat([torch.full_like(before, -100), learned], dim=1)
    frames = pixels(6, 5, QFORMER["encoder_hidden_size"])
    return rows(vision_embeds=frames, input_ids=ids, attention_mask=mask, labels=labels)


@pytest.mark.parametrize(("num_prompted", "trainer"), [(2, "Trainer"), (0, "AnswerTrainer")])
@pytest.mark.parametrize("kind", KINDS)
def test_generation(kind, num_prompted, trainer, tmp_path):
    """Answers of different lengths: each of their tokens counts alike. Without a prompt the first one does, too."""
    model = make_answering_model(kind, use_qformer_text_input=False)
    model.num_prompted = num_prompted
    options = {"trainer_class": AnswerTrainer, "arguments_class": AnswerTrainingArguments}
    options = options if trainer == "AnswerTrainer" else {}
    check(model, answers(model), tmp_path, data_collator=default_data_collator, **options)


class WatchedClips(VideoDataset):
    """Clips that keep the kinds of threads by which they were read."""

    def __getitem__(self, index):
        self.threads = {*getattr(self, "threads", ()), threading.current_thread().name.split("_")[0]}
        return super().__getitem__(index)


@pytest.mark.parametrize("augment_on", ["cpu", "device"])
def test_clips_read_in_threads_train_the_same_weights(digits, tmp_path, augment_on):
    processor = VideoClipProcessor(num_frames=2, sampling_strategy="uniform", size=16, crop_size=16)
    rows = load_video_dataset(digits)["test"]

    def train(reading_threads):
        augmentation = ClipAugmentation(color_jitter=0.4, erasing_prob=0.5, augment_on=augment_on)
        training = WatchedClips(rows, ClipTask(processor, augmentation=augmentation), training=True)
        held_out = WatchedClips(rows, ClipTask(processor), training=False)
        # Drop-out draws from the global generator while clips are read.
        model = make_model(num_labels=8, classifier_dropout=0.3)
        trainer = make_trainer(tmp_path, training, held_out, model=model, reading_threads=reading_threads)
        trainer.train()
        return weights_of(trainer.model), trainer.evaluate()["eval_loss"], training.threads | held_out.threads

    before = set(threading.enumerate())
    weights, loss, threads = train(reading_threads=0)
    assert threads == {threading.current_thread().name}
    ahead, loss_ahead, threads = train(reading_threads=3)
    assert threads == {"reading"} and set(threading.enumerate()) <= before
    torch.testing.assert_close(ahead, weights, rtol=0, atol=0)
    assert loss_ahead == loss


def test_evaluation_measures_all_videos_where_training_drops_the_last_batch(tmp_path):
    trainer = make_trainer(tmp_path, RandomClips(7), RandomClips(7), dataloader_drop_last=True)
    assert len(trainer.get_train_dataloader()) == 1 and len(trainer.get_eval_dataloader()) == 2
    assert len(trainer.predict(trainer.eval_dataset).predictions) == 7


class Stream(IterableDataset):
    """Clips without a length."""

    def __iter__(self):
        clips = RandomClips()
        return (clips[index] for index in range(len(clips)))


def test_streams_train_and_evaluate(tmp_path):
    trainer = make_trainer(tmp_path, Stream(), Stream(), max_steps=4)
    trainer.train()
    assert trainer.state.global_step == 4 and trainer.state.best_metric is not None
    assert trainer.evaluate()["eval_loss"] == make_trainer(tmp_path, model=trainer.model).evaluate()["eval_loss"]
    facts = read_facts(tmp_path)
    assert facts["data"] == {"train": {}, "validation": {}} and "eval_loss" in facts["validation"]


def test_of_epochs_with_an_equal_metric_the_one_with_the_least_loss_is_kept(tmp_path):
    trainer = make_trainer(tmp_path, num_train_epochs=4, compute_metrics=lambda _: {"top1_accuracy": 1.0})
    trainer.train()
    losses = {each["step"]: each["eval_loss"] for each in trainer.state.log_history if "eval_loss" in each}
    first, *_ = losses
    assert trainer.state.best_global_step == min(losses, key=losses.get) != first
    assert trainer.evaluate()["eval_loss"] == min(losses.values())
