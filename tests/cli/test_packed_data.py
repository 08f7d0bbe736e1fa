"""Commands give on a pack what they give on the files that it was made of."""

import csv
import json
import os
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest

from hf_video.cli.main import main
from hf_video.data import load_video_dataset
from hf_video.training.checkpoints import newest_complete

from ..data.packs import write_pack
from .conftest import TINY_MODEL
from .test_resume_auto import RUN, at_step, check_equal, result_of, run_command

# The validation split is held out. Its videos, the augmentation and the mixing are drawn.
WORDS = [*TINY_MODEL[:-1], "2", "--num-attention-heads", "2", "--batch-size", "4", "--mixup-alpha=0.8", *RUN]
WORDS += ["--validation-fraction=0.3", "--rand-augment-num-ops=1"]


@pytest.fixture(scope="module")
def whole(digits, tmp_path_factory):
    return write_pack(digits, tmp_path_factory.mktemp("packs") / "pack")


@pytest.fixture
def pack(whole, tmp_path):
    return shutil.copytree(whole, tmp_path / "pack")


@pytest.fixture(scope="module")
def undisturbed(digits, tmp_path_factory):
    """The output folder of a training on the files."""
    folder = tmp_path_factory.mktemp("files") / "out"
    assert main(["train", str(digits), *WORDS, f"--output-dir={folder}"]) == 0
    assert len(set(result_of(folder)[0])) == 8
    return folder


def check_killed_runs(begin, go_on, undisturbed, out, *ends, more=()):
    for end in ends:
        (ended,) = run_command(1, ["train", begin, *WORDS, *more, f"--output-dir={out}"], end)
        assert ended.returncode == -signal.SIGKILL, ended.stderr[-3000:]
    assert newest_complete(out)[0].name == "checkpoint-3"
    assert main(["train", go_on, *WORDS, *more, f"--output-dir={out}"]) == 0
    check_equal(out, result_of(undisturbed))


def test_a_training_on_a_pack_that_is_killed_in_an_epoch(whole, undisturbed, tmp_path):
    check_killed_runs(str(whole), str(whole), undisturbed, tmp_path / "out", at_step(5))


@pytest.mark.slow
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("begin", ["files", "pack"])
def test_a_training_that_is_killed_twice_with_workers(digits, whole, undisturbed, tmp_path, begin, num_workers):
    begin, go_on = (digits, f"file://{whole}") if begin == "files" else (whole / "index.parquet", whole)
    more = (f"--dataloader-num-workers={num_workers}",)
    check_killed_runs(str(begin), str(go_on), undisturbed, tmp_path / "out", at_step(2), at_step(5), more=more)


def test_a_training_that_was_begun_on_files_goes_on_from_their_pack(whole, undisturbed, tmp_path):
    out = shutil.copytree(undisturbed, tmp_path / "out")
    for name in ("checkpoint-6", "checkpoint-8"):
        shutil.rmtree(out / name)
    (out / "model.safetensors").unlink()
    assert main(["train", str(whole), *WORDS, f"--output-dir={out}"]) == 0
    check_equal(out, result_of(undisturbed))
    facts = [json.loads((folder / "training_facts.json").read_text())["data"] for folder in (out, undisturbed)]
    assert [part["sha256"] for part in facts[0].values() if part] == [
        part["sha256"] for part in facts[1].values() if part
    ]


def test_other_videos_are_not_gone_on_with(digits, undisturbed, tmp_path, fails):
    data = Path(shutil.copytree(digits, tmp_path / "data"))
    video, other = sorted(data.glob("train/*/*.mp4"))[:2]
    shutil.copy(other, video)
    out = shutil.copytree(undisturbed, tmp_path / "out")
    words = ["train", write_pack(data, tmp_path / "other"), *WORDS, f"--output-dir={out}"]
    assert "have the same names as when the run being resumed began, and another content" in fails(*words)


def test_an_evaluation_gives_the_scores_of_the_files(digits, whole, trained, tmp_path):
    found = []
    for name, data in (("files", digits), ("pack", whole)):
        words = ["evaluate", str(data), "--model", str(trained), "--device", "cpu"]
        files = [tmp_path / f"{name}.json", tmp_path / f"{name}.csv"]
        assert main([*words, "--output", str(files[0]), "--predictions", str(files[1]), "--num-workers", "1"]) == 0
        with files[1].open() as table:
            rows = [{key: value for key, value in row.items() if key != "video"} for row in csv.DictReader(table)]
        found.append((json.loads(files[0].read_text()) | {"data": None}, rows))
    assert found[0] == found[1] and len(found[0][1]) == 8


def test_features_and_probes_are_those_of_the_files(digits, whole, trained, tmp_path):
    for name, data in (("files", digits), ("pack", whole)):
        model = ["--model", str(trained), "--device", "cpu"]
        assert main(["extract", str(data), *model, "--output", str(tmp_path / name), "--stride", "2"]) == 0
        probe = ["probe", str(data), *model, "--kind", "knn", "--output-dir", str(tmp_path / f"{name}-probe")]
        assert main([*probe, "--features", str(tmp_path / "features")]) == 0
    files = [path.relative_to(tmp_path / "files") for path in (tmp_path / "files").rglob("*.npy")]
    assert len(files) == 32
    for file in files:
        of_files, of_pack = (np.load(tmp_path / name / file) for name in ("files", "pack"))
        np.testing.assert_array_equal(of_files, of_pack)
    tables = [next((tmp_path / f"{name}-probe").rglob("metrics.json")).read_text() for name in ("files", "pack")]
    assert json.loads(tables[0]) == json.loads(tables[1])


def test_an_inspection_decodes_the_members(pack, capsys):
    assert main(["inspect", str(pack), "--json", "--num-workers", "1"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["num_videos"], result["num_frames"], result["broken"]) == (32, {"fewest": 8, "most": 8}, {})
    row = load_video_dataset(pack)["train"][3]
    with open(row["shard"], "r+b") as shard:
        shard.seek(row["offset"] + 10)
        shard.write(b"damage")
    assert main(["inspect", str(pack), "--num-workers", "1"]) == 1
    said = capsys.readouterr().out
    assert "1 broken videos" in said and f"{row['key']} is not what the index says" in said and row["shard"] in said


def test_a_shard_that_is_missing_is_said_before_work_begins(pack, trained, tmp_path, fails):
    os.unlink(pack / "shard-00000.tar")
    commands = {
        "train": ("--output-dir", tmp_path / "out", "--on-error=skip", *WORDS),
        "evaluate": ("--model", trained, "--on-error", "skip", "--split", "train", "--device", "cpu"),
    }
    for command, words in commands.items():
        message = fails(command, pack, *words)
        assert f"{pack}/shard-00000.tar does not exist, and" in message and "hf-video pack" in message
    assert not (tmp_path / "out").exists()


def test_damage_follows_the_rules_of_broken_videos(pack, tmp_path, fails):
    rows = load_video_dataset(pack)["train"]
    for row in rows.select(range(3)):
        with open(row["shard"], "r+b") as shard:
            shard.seek(row["offset"] + 10)
            shard.write(b"damage")
    words = ["train", str(pack), *WORDS, "--max-steps=4", "--save-steps=4", f"--output-dir={tmp_path / 'out'}"]
    assert "is not what the index says" in fails(*words)
    shutil.rmtree(tmp_path / "out", ignore_errors=True)
    assert main([*words, "--on-error=skip"]) == 0


def test_a_folder_that_holds_the_pack_is_not_renamed(pack, fails):
    words = ["train", pack, *WORDS[:-4], f"--output-dir={pack.parent}", "--overwrite-output-dir"]
    words = [word for word in words if word not in ("--resume", "auto")]
    assert "lies inside --output-dir" in fails(*words)


def test_a_place_without_data_is_said(fails, tmp_path):
    message = fails("train", "memory://nowhere/pack", "--output-dir", tmp_path / "out", *WORDS)
    assert "memory://nowhere/pack is neither a pack nor a manifest" in message
    message = fails("train", "s3://bucket/pack", "--output-dir", tmp_path / "out", *WORDS)
    assert "s3fs" in message
