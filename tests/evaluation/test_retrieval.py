"""Zero-shot retrieval from frames and captions to recalls, as VideoMamba measures it."""

import pytest
import torch
from transformers import AutoModel, AutoProcessor, AutoTokenizer

from hf_video.evaluation import group_captions, retrieval_scores
from hf_video.metrics import retrieval_recall
from tests.testing.search_models import save_xclip

from ..data.captions import caption_rows
from ..models.video_text.retrieval_model import GOLDEN, write_retrieval_model

VIDEOS = GOLDEN.config["annotations"]


@pytest.fixture(scope="module")
def converted(tmp_path_factory):
    """Model and processor of the golden's checkpoint."""
    folder = write_retrieval_model(tmp_path_factory.mktemp("retrieval"))
    return AutoModel.from_pretrained(folder).eval(), AutoProcessor.from_pretrained(folder)


def test_recalls_of_frames_and_captions_are_those_of_the_original(converted):
    model, processor = converted
    _, captions, relevant = group_captions(caption_rows(VIDEOS))
    texts = processor(text=captions, return_tensors="pt")
    frames = [GOLDEN.inputs[f"frames.{row['video'].removesuffix('.mp4')}"] for row in VIDEOS]
    clips = [processor(each, return_tensors="pt")["pixel_values"] for each in frames]
    torch.testing.assert_close(torch.cat(clips), GOLDEN.inputs["pixel_values"], atol=1e-5, rtol=0)
    scores = retrieval_scores(model, clips, texts, k_test=10)
    for found, name, atol in (
        (scores.similarity, "scores_v2t", 5e-5),
        (scores.similarity.T, "scores_t2v", 5e-5),
        (scores.of_texts, "fusion_scores_v2t", 2e-4),
        (scores.of_videos.T, "fusion_scores_t2v", 2e-4),
    ):
        torch.testing.assert_close(torch.from_numpy(found), GOLDEN.expected[name], atol=atol, rtol=0)
    for kind, recalls in (
        ("dual_encoder", retrieval_recall(scores.similarity, relevant)),
        ("fusion", retrieval_recall(scores.of_texts, relevant, scores.of_videos)),
    ):
        expected = GOLDEN.config["metrics"][kind]
        names = {"txt": "video_to_text", "img": "text_to_video"}
        for short, name in names.items():
            for k in (1, 5, 10):
                assert round(recalls[f"{name}_r{k}"], 2) == expected[f"{short}_r{k}"], (kind, name, k)


def test_scores_of_pairs_are_the_match_logits(converted):
    model, processor = converted
    clips = GOLDEN.inputs["pixel_values"][:3]
    texts = processor(text=["a dog", "a red ball on the street", "two cats"], return_tensors="pt")
    scores = retrieval_scores(model, clips.split(2), texts, batch_size=2)
    with torch.no_grad():
        outputs = model(clips, **texts, output_match=True)
    assert (scores.of_texts == scores.of_videos).all()
    torch.testing.assert_close(torch.from_numpy(scores.of_texts).diagonal(), outputs.match_logits[:, 1])
    torch.testing.assert_close(torch.from_numpy(scores.similarity), outputs.similarity)
    assert retrieval_scores(model, [clips], texts, k_test=0).of_texts is None


def test_texts_of_xclip_have_the_prompts_that_it_makes_of_a_video(tmp_path):
    model = AutoModel.from_pretrained(save_xclip(tmp_path)).eval()
    texts = AutoTokenizer.from_pretrained(tmp_path)(["a dog", "two cats", "a dog"], padding=True, return_tensors="pt")
    texts = {name: texts[name] for name in ("input_ids", "attention_mask")}
    clips = torch.rand(3, model.config.vision_config.num_frames, 3, *[model.config.vision_config.image_size] * 2)
    scores = retrieval_scores(model, clips.split(2), texts, batch_size=2).similarity
    with torch.no_grad():
        expected = model(pixel_values=clips, **texts).logits_per_video / model.logit_scale.exp()
        vectors = model.get_text_features(**texts).pooler_output, model.get_video_features(clips).pooler_output
    torch.testing.assert_close(torch.from_numpy(scores), expected)
    plain = torch.cosine_similarity(vectors[1][:, None], vectors[0][None], dim=-1)
    assert not torch.allclose(plain, expected, atol=1e-3)


def test_captions_of_a_video_are_several_texts_or_a_paragraph():
    rows = caption_rows(
        [
            {"video": "a.mp4", "caption": ["It runs.", "It stops."], "start": None, "end": 40.0},
            {"video": "a.mp4", "caption": "It sleeps.", "start": 40.0, "end": 50.0},
        ]
    )
    videos, texts, relevant = group_captions(rows, first_seconds=30)
    assert texts == ["It runs.", "It stops.", "It sleeps."]
    assert relevant.tolist() == [[True, True, False], [False, False, True]]
    assert (videos["start"][:], videos["end"][:]) == ([None, 40.0], [30.0, 50.0])
    _, texts, relevant = group_captions(rows, paragraph=True)
    assert texts == ["It runs. It stops.", "It sleeps."]
    assert relevant.tolist() == [[True, False], [False, True]]
