"""Training over long videos: each clip goes on with the state after the clip before it."""

import pytest
import torch

from hf_video import (
    VideoMambaConfig,
    VideoMambaForFrameClassification,
    VideoMambaState,
    VideoViTConfig,
    VideoViTForFrameClassification,
)
from hf_video.training import Distillation

from ..data.frame_videos import BlankClips, blank_clips, blank_frames
from .frames_testing import CAUSAL, LABELS, SIZES, Recorder, losses_of, make_frame_model, make_frame_trainer
from .tiny import weights_of


def loop(model, batches):
    """The losses and gradients of batches of clips, each a video and its first frame, with detached states."""
    state, before, losses, gradients = VideoMambaState(model.config, len(batches[0])), None, [], []
    for batch in batches:
        frames = torch.stack([blank_frames(f"{video}.mp4", range(at, at + 4)) for video, at in batch])
        for row, (video, at) in enumerate(batch):
            if before is not None and before[row] != (video, at - 4):
                state.reset(torch.tensor([row]))
        known = torch.stack([LABELS[at : at + 4] for _, at in batch])
        outputs = model(frames, labels=known, state=state.detach())
        # The class token has no gradient where no row is new.
        model.zero_grad(set_to_none=False)
        outputs.loss.backward()
        state, before = outputs.state, batch
        losses.append(outputs.loss.item())
        gradients.append([weight.grad.clone() for weight in model.parameters()])
    return losses, gradients


@pytest.mark.parametrize("options", [{}, {"bidirectional": True, "use_temporal_position_embeddings": True}])
def test_steps_have_the_losses_and_gradients_of_a_loop_over_chunks(options, tmp_path):
    """Two videos of three clips each, for two rows: the order of the videos is drawn."""
    model, recorder = make_frame_model(**options), Recorder()
    trainer = make_frame_trainer(tmp_path, model, blank_clips([12, 12], num_frames=4), callbacks=[recorder])
    trainer.train()
    orders = [loop(model, [[(a, at), (b, at)] for at in (0, 4, 8)]) for a, b in ((0, 1), (1, 0))]
    losses, gradients = min(orders, key=lambda found: abs(found[0][0] - losses_of(trainer)[0]))
    torch.testing.assert_close(losses_of(trainer), losses, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(recorder.gradients, gradients, rtol=1e-4, atol=1e-6)


def test_a_causal_model_has_the_losses_of_the_whole_video(tmp_path):
    model = make_frame_model()
    trainer = make_frame_trainer(tmp_path, model, blank_clips([24], num_frames=4), per_device_train_batch_size=1)
    trainer.train()
    with torch.no_grad():
        logits = model(blank_frames("0.mp4", range(24))[None]).logits
    expected = torch.nn.functional.cross_entropy(logits[0], LABELS, reduction="none")
    torch.testing.assert_close(losses_of(trainer), expected.view(6, 4).mean(1).tolist(), rtol=0, atol=1e-5)
    # Later clips show that they are not alone.
    with torch.no_grad():
        alone = model(blank_frames("0.mp4", range(4, 8))[None], labels=LABELS[None, 4:8]).loss
    assert abs(alone - losses_of(trainer)[1]) > 0.01


class FlashedClips(BlankClips):
    """The first frame of a video shows which of two it is, the class of all its frames; the others show nothing."""

    def make_item(self, index, key, goes_on=False):
        row = self.dataset[index]
        label = int(row["video"] == "1.mp4")
        frames = torch.zeros(4, 3, 16, 16)
        if row["start"] == 0:
            frames[0] = 2 * label - 1
        return {"pixel_values": frames, "labels": torch.full((4,), label)}


def test_what_an_earlier_clip_showed_is_learned(tmp_path):
    """By itself, the second of two clips may be of either class, and the loss is log(2) / 2 at least."""
    torch.manual_seed(0)
    sizes = SIZES | CAUSAL | {"num_hidden_layers": 1, "patch_size": 16, "hidden_size": 32}
    clips = blank_clips([8, 8], num_frames=4, segments=[(0, 8)], kind=FlashedClips)
    trainer = make_frame_trainer(
        *(tmp_path, VideoMambaForFrameClassification(VideoMambaConfig(**sizes)), clips),
        num_train_epochs=30,
        learning_rate=0.03,
        max_grad_norm=1.0,
        logging_steps=20,
    )
    trainer.train()
    assert losses_of(trainer)[-1] < 0.1


def test_a_new_video_begins_anew_and_batches_of_a_step_follow_each_other(tmp_path):
    """One row, two batches a step, and two videos in a drawn order."""
    model = make_frame_model()
    options = {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 2}
    trainer = make_frame_trainer(tmp_path, model, blank_clips([8, 8], num_frames=4), **options)
    trainer.train()
    frames = torch.stack([blank_frames(f"{number}.mp4", range(8)) for number in (0, 1)])
    with torch.no_grad():
        logits = model(frames).logits
    expected = torch.nn.functional.cross_entropy(logits.mT, LABELS[:8].expand(2, -1), reduction="none").mean(1)
    torch.testing.assert_close(sorted(losses_of(trainer)), sorted(expected.tolist()), rtol=0, atol=1e-5)


def test_calls_between_the_steps_change_nothing(tmp_path):
    model, clips = make_frame_model(), blank_clips([24], num_frames=4)
    undisturbed = make_frame_trainer(tmp_path, model, clips)
    undisturbed.train()
    options = {"eval_dataset": blank_clips([10], num_frames=4, training=False), "eval_strategy": "steps"}
    disturbed = make_frame_trainer(tmp_path, model, clips, eval_steps=1, **options)
    disturbed.add_callback(Recorder(lambda: disturbed.model(torch.randn(2, 4, 3, 16, 16))))
    disturbed.train()
    assert len([entry for entry in disturbed.state.log_history if "eval_loss" in entry]) == 3
    assert losses_of(disturbed) == losses_of(undisturbed)


def test_an_epoch_begins_anew(tmp_path):
    trainer = make_frame_trainer(tmp_path, make_frame_model(), blank_clips([24], num_frames=4), num_train_epochs=2)
    trainer.train()
    losses = losses_of(trainer)
    assert losses[:3] == losses[3:] and len({*losses}) == 3


@pytest.mark.parametrize(
    "options",
    [
        {"activation_checkpointing": True},
        pytest.param({"torch_compile": True, "torch_compile_backend": "aot_eager"}, marks=pytest.mark.slow),
    ],
)
def test_checkpointed_and_compiled_models_go_on(options, tmp_path):
    model, clips = make_frame_model(num_hidden_layers=1), blank_clips([24], num_frames=4)
    plain, other = Recorder(), Recorder()
    make_frame_trainer(tmp_path, model, clips, callbacks=[plain]).train()
    make_frame_trainer(tmp_path, model, clips, callbacks=[other], **options).train()
    torch.testing.assert_close(other.gradients, plain.gradients, rtol=1e-4, atol=1e-6)


def test_half_precision_goes_on(tmp_path):
    model, clips = make_frame_model(), blank_clips([24], num_frames=4)
    trainers = [make_frame_trainer(tmp_path, model, clips, bf16=bf16) for bf16 in (False, True)]
    for trainer in trainers:
        trainer.train()
    plain, half = map(losses_of, trainers)
    assert half != plain and half == pytest.approx(plain, rel=0.05)


@pytest.mark.parametrize("carry_state", [False, True])
def test_a_resumed_run_has_the_weights_of_one_that_was_not_interrupted(carry_state, tmp_path):
    options = {"learning_rate": 0.01, "num_train_epochs": 2, "save_strategy": "steps", "save_steps": 1}
    options |= {"save_total_limit": None, "carry_state": carry_state}
    clips = [blank_clips([12, 13], num_frames=4) for _ in range(3)]
    whole = make_frame_trainer(tmp_path, make_frame_model(), clips[0], **options)
    whole.train()
    steps = whole.state.max_steps // 2
    for number, again in zip((steps, 1), clips[1:], strict=True):
        resumed = make_frame_trainer(tmp_path, make_frame_model(), again, **options)
        resumed.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{number}"))
        assert resumed.state.global_step == 2 * steps
        torch.testing.assert_close(weights_of(resumed.model), weights_of(whole.model), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        (
            {"per_device_train_batch_size": 2},
            {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 2},
            "checkpoint-1 has carried states of 2 rows, and here the batches of all processes have 1",
        ),
        ({"carry_state": False}, {}, "checkpoint-1 has no carried_state.safetensors: the run trained without"),
    ],
    ids=["other rows", "none"],
)
def test_a_checkpoint_whose_states_do_not_fit_is_refused(before, after, reason, tmp_path):
    clips = blank_clips([24], num_frames=4)
    options = {"save_strategy": "steps", "save_steps": 1, "save_total_limit": None}
    make_frame_trainer(tmp_path, make_frame_model(), clips, **options | before).train()
    trainer = make_frame_trainer(tmp_path, make_frame_model(), clips, **after)
    with pytest.raises(ValueError, match=reason):
        trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))


def test_a_teacher_sees_each_clip_by_itself(tmp_path):
    distillation = Distillation(make_frame_model(bidirectional=True), make_frame_model(), weight=1.0)
    trainer = make_frame_trainer(
        tmp_path, make_frame_model(), blank_clips([24], num_frames=4), distillation=distillation
    )
    trainer.train()
    frames = torch.stack([blank_frames("0.mp4", range(at, at + 12)) for at in (0, 12)])
    model, state = make_frame_model(), VideoMambaState(trainer.model.config, 2)
    with torch.no_grad():
        for chunk, loss in zip(frames.split(4, dim=1), losses_of(trainer), strict=True):
            outputs = model(chunk, state=state)
            state = outputs.state
            expected = distillation.loss(chunk, outputs.logits, None, torch.ones(2, 4))
            assert loss == pytest.approx(expected.item(), abs=1e-5)


@pytest.mark.parametrize(
    ("make_model", "reason"),
    [
        (
            lambda: VideoViTForFrameClassification(VideoViTConfig(**SIZES, num_attention_heads=2)),
            "A videovit has no state",
        ),
        (
            lambda: make_frame_model(use_temporal_position_embeddings=True),
            "use_temporal_position_embeddings=True and use_pool_norm=False: carry_state needs",
        ),
        (
            lambda: make_frame_model(bidirectional=True, scan_order="temporal_first"),
            "scan_order='temporal_first'",
        ),
        (lambda: make_frame_model(use_pool_norm=True), "use_pool_norm=True: carry_state needs"),
    ],
    ids=["videovit", "positions over time", "order", "class token"],
)
def test_models_without_a_state_are_refused(make_model, reason, tmp_path):
    with pytest.raises(ValueError, match=reason):
        make_frame_trainer(tmp_path, make_model(), blank_clips([24], num_frames=4))
