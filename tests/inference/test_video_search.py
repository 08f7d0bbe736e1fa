"""Searches an index by words and by a video, with every kind of model."""

import shutil

import pytest
import torch
from transformers import AutoModel, AutoProcessor, AutoTokenizer

from hf_video.bulk import build_index, predict
from hf_video.inference import IndexSettings, SearchSettings, VideoSearch, open_index
from hf_video.inference.inference_settings import PredictSettings
from hf_video.inference.video_search import read_clips, search
from hf_video.processing import VideoClipProcessor
from hf_video.reading import VideoReadError
from tests.testing.search_models import make_processor, save_dual_encoder, save_videoprism, save_xclip, write_videos
from tests.testing.trainers import make_model

SAVE = {"dual": save_dual_encoder, "xclip": save_xclip, "videoprism": save_videoprism}
TEXT = "a glass breaks"


@pytest.fixture(scope="module")
def videos(tmp_path_factory):
    return write_videos(tmp_path_factory.mktemp("data") / "videos")


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return {name: save(folder / name) for name, save in SAVE.items()}


def index(videos, model, folder, **options):
    build_index(IndexSettings(videos=[str(videos)], model=str(model), output=str(folder), device="cpu", **options))
    return VideoSearch(folder, device="cpu", batch_size=2)


@torch.inference_mode()
def test_reranking_gives_the_match_logits_of_the_model(videos, models, tmp_path):
    searched = index(videos, models["dual"], tmp_path / "index")
    # There are six.
    found = searched.search(TEXT, top_k=50, rerank=100)
    network = AutoModel.from_pretrained(models["dual"]).eval()
    inputs = AutoProcessor.from_pretrained(models["dual"])(
        videos=[hit.path for hit in found.hits], text=[TEXT] * 6, return_tensors="pt"
    )
    expected = network(**inputs, output_match=True)
    matches = [hit.match for hit in found.hits]
    torch.testing.assert_close(torch.tensor(matches), expected.match_logits[:, 1], rtol=0, atol=1e-5)
    assert matches == sorted(matches, reverse=True)
    scores = torch.tensor([hit.score for hit in found.hits])
    torch.testing.assert_close(scores, expected.similarity[:, 0], rtol=0, atol=1e-5)
    with pytest.raises(ValueError, match="text to search for is empty"):
        searched.search("  ")


def test_windows_are_read_again_for_reranking(videos, models, tmp_path):
    searched = index(videos, models["dual"], tmp_path / "index", window=2, stride=2, frame_sampling_rate=1)
    hits = searched.search(TEXT, rerank=9, top_k=9).hits
    assert len({hit[:3] for hit in hits}) == 9 and any(hit.start > 0 for hit in hits)
    adapter, texts = searched.adapter, searched.adapter.embed_texts(searched.model.tokenize([TEXT]))
    for hit in hits[:3]:
        clips = read_clips(searched.model.processor, hit.path, searched.index.settings["windows"])
        (clip,) = (each.pixel_values for each in clips if each.start == hit.start)
        with torch.inference_mode():
            expected = adapter.match(clip[None], texts)
        assert hit.match == pytest.approx(float(expected), abs=1e-5)


@torch.inference_mode()
def test_xclip_makes_prompts_when_it_ranks_again(videos, models, tmp_path):
    searched = index(videos, models["xclip"], tmp_path / "index")
    found = searched.search(TEXT, top_k=4, rerank=6)
    assert "without prompts" in found.note and len(found.hits) == 4
    network = AutoModel.from_pretrained(models["xclip"]).eval()
    frames = make_processor()(videos=[hit.path for hit in found.hits], return_tensors="pt")
    texts = AutoTokenizer.from_pretrained(models["xclip"])(TEXT, return_tensors="pt", return_token_type_ids=False)
    expected = network(**frames, **texts).logits_per_video[:, 0]
    torch.testing.assert_close(torch.tensor([hit.match for hit in found.hits]), expected, rtol=0, atol=1e-4)


@torch.inference_mode()
def test_videoprism_is_searched_and_ranks_nothing_again(videos, models, tmp_path):
    searched = index(videos, models["videoprism"], tmp_path / "index")
    found = searched.search(TEXT, top_k=6)
    network = AutoModel.from_pretrained(models["videoprism"]).eval()
    frames = make_processor()(videos=[hit.path for hit in found.hits], return_tensors="pt")["pixel_values"]
    tokenizer = AutoTokenizer.from_pretrained(models["videoprism"])
    texts = tokenizer(TEXT, padding="max_length", max_length=8, return_tensors="pt", return_token_type_ids=False)
    expected = network(pixel_values_videos=frames, **texts)
    cosines = torch.nn.functional.cosine_similarity(expected.video_embeds, expected.text_embeds)
    torch.testing.assert_close(torch.tensor([hit.score for hit in found.hits]), cosines, rtol=0, atol=1e-5)
    with pytest.raises(ValueError, match="does not see videos and texts together"):
        searched.search(TEXT, rerank=5)


@pytest.mark.parametrize("kind", ["dual", "encoder"])
def test_a_video_finds_itself(kind, videos, models, tmp_path):
    if kind == "encoder":
        make_model().save_pretrained(tmp_path / "encoder")
        size = {"size": {"shortest_edge": 16}, "crop_size": {"height": 16, "width": 16}}
        VideoClipProcessor(num_frames=2, frame_sampling_rate=1, **size).save_pretrained(tmp_path / "encoder")
        models = {"encoder": tmp_path / "encoder"}
    searched = index(videos, models[kind], tmp_path / "index")
    found = searched.search(video=str(videos / "4.mp4"), top_k=2)
    assert found.hits[0].path == str(videos / "4.mp4") and found.hits[0].score > found.hits[1].score
    if kind == "encoder":
        assert found.hits[0].score == pytest.approx(1, abs=1e-5)
        with pytest.raises(ValueError, match="knows no texts"):
            searched.search(TEXT)


def test_an_index_is_searched_with_the_model_and_the_precision_that_made_it(videos, models, tmp_path):
    settings = {"videos": [str(videos)], "model": str(models["dual"]), "output": str(tmp_path / "index")}
    build_index(IndexSettings(**settings, device="cpu", dtype="bfloat16"))
    found = search(SearchSettings(text=TEXT, index=str(tmp_path / "index"), device="cpu"))
    assert len(found.hits) == 6
    for other in ({"dtype": "float32"}, {"model": str(save_dual_encoder(tmp_path / "other", seed=1))}):
        with pytest.raises(ValueError, match="is the index of another model"):
            search(SearchSettings(text=TEXT, index=str(tmp_path / "index"), device="cpu", **other))
    with pytest.raises(FileNotFoundError, match="is no index of videos"):
        open_index(tmp_path / "elsewhere")


def test_what_is_gone_is_named(models, tmp_path):
    videos = write_videos(tmp_path / "videos")
    model = shutil.copytree(models["dual"], tmp_path / "model")
    searched = index(videos, model, tmp_path / "index")
    (videos / "3.mp4").unlink()
    with pytest.raises(VideoReadError, match=r"3.mp4 does not exist"):
        searched.search(TEXT, rerank=6)
    model.rename(tmp_path / "moved")
    with pytest.raises(ValueError, match="model: there is no such folder"):
        VideoSearch(tmp_path / "index", device="cpu")
    assert len(VideoSearch(tmp_path / "index", str(tmp_path / "moved"), device="cpu").search(TEXT).hits) == 6


@pytest.mark.parametrize("kind", ["dual", "xclip", "videoprism"])
@torch.inference_mode()
def test_classes_in_words_have_the_probabilities_of_the_model(kind, videos, models):
    labels = ["a dog runs left", "a glass breaks", "left"]
    video = str(videos / "1.mp4")
    settings = PredictSettings(
        videos=[video], model=str(models[kind]), labels=" ; ".join(labels), template="a video of {}", device="cpu"
    )
    (found,) = predict(settings)
    network = AutoModel.from_pretrained(models[kind]).eval()
    prompts = [f"a video of {label}" for label in labels]
    inputs = make_processor()(videos=[video], text=prompts, return_tensors="pt")
    if kind == "videoprism":
        texts = make_processor()(text=prompts, padding="max_length", return_tensors="pt")
        outputs = network(pixel_values_videos=inputs["pixel_values"], **texts, temperature=0.01)
        # What it calls logits are the probabilities of the texts of each video.
        probabilities = outputs.logits_per_text[:, 0]
    else:
        probabilities = network(**inputs).logits_per_video.softmax(-1)[0]
    expected = dict(zip(labels, probabilities.tolist(), strict=True))
    assert found.scores == pytest.approx([expected[label] for label in found.labels], abs=1e-5)
    assert found.scores == sorted(found.scores, reverse=True) and sum(found.scores) == pytest.approx(1)
