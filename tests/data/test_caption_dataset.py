"""Videos with captions: files and data sets, clips with their captions, batches."""

import datasets
import pytest
import torch

from hf_video.data import TextTask, VideoDataset
from hf_video.data.video_texts import load_captions

from ..training.captions_testing import make_video_text_pair, write_captions


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_captions(tmp_path_factory.mktemp("captions"))


@pytest.fixture(scope="module")
def processor():
    return make_video_text_pair()[1]


def test_a_list_of_captions_is_as_many_rows(folder):
    data = load_captions(folder)
    assert list(data) == ["train", "validation"]
    assert data["train"]["caption"][:] == [
        "A dark picture",
        "a bright picture",
        "a white picture",
        "a grey picture moves left",
    ]
    assert data["train"][2] == {
        "video": str(folder / "b.mp4"),
        "caption": "a white picture",
        "start": None,
        "end": None,
    }


@pytest.mark.parametrize("is_stored", [False, True])
def test_a_data_set_with_columns_has_the_same_clips(is_stored, folder, processor, tmp_path):
    files = [folder / f"{name}.mp4" for name in "abc"]
    values = [{"bytes": file.read_bytes(), "path": None} if is_stored else str(file) for file in files]
    columns = {"video": values, "caption": [["A dark picture"], ["a bright picture", "a white picture"], ["a"]]}
    features = datasets.Features({"video": datasets.Video(), "caption": datasets.List(datasets.Value("string"))})
    datasets.Dataset.from_dict(columns, features).save_to_disk(tmp_path / "saved")
    found = VideoDataset(load_captions(tmp_path / "saved")["train"], TextTask(processor), training=False)
    expected = VideoDataset(load_captions(folder)["train"], TextTask(processor), training=False)
    first, second, third, fourth = (found[index]["video_ids"] for index in range(4))
    assert second == third and len({first, second, fourth}) == 3
    for index in range(3):
        assert found[index]["text"] == expected[index]["text"]
        torch.testing.assert_close(found[index]["pixel_values"], expected[index]["pixel_values"])


def test_a_batch_has_clips_texts_and_the_numbers_of_videos(folder, processor):
    clips = VideoDataset(load_captions(folder)["train"], TextTask(processor), training=True)
    batch = clips.task.collate([clips[0], None, clips[1], clips[2]])
    assert {name: tuple(value.shape) for name, value in batch.items()} == {
        "pixel_values": (3, 2, 3, 16, 16),
        "input_ids": (3, 4),
        "attention_mask": (3, 4),
        "video_ids": (3,),
    }
    first, second, third = batch["video_ids"].tolist()
    assert first != second == third >= 0
    assert TextTask(processor, max_length=2).collate([clips[0]])["input_ids"].shape == (1, 2)


def test_captions_need_no_times(folder, processor):
    rows = load_captions(folder)["train"]
    whole = VideoDataset(rows.remove_columns(["start", "end"]), TextTask(processor), training=False)
    expected = VideoDataset(rows, TextTask(processor), training=False)
    assert torch.equal(whole[0]["pixel_values"], expected[0]["pixel_values"])
    assert whole[0]["video_ids"] == expected[0]["video_ids"]


def test_questions_are_refused(tmp_path, folder):
    file = tmp_path / "train.csv"
    file.write_text(f"video,question,answer\n{folder / 'a.mp4'},what,dark\n")
    with pytest.raises(ValueError, match="has questions; captions are expected"):
        load_captions(file)
