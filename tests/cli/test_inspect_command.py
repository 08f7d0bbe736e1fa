import json
import shutil

import pyarrow as pa
import pyarrow.parquet as pq

from hf_video.cli.main import main
from tests.testing.files import ODD_FILES, make_odd_file
from tests.testing.videos import encode_video, make_frames

from ..data.broken_videos import spread_broken_videos


def test_a_sound_data_set(digits, says):
    out = says("inspect", digits, "--num-workers", "2")
    assert "32 videos, 32 labelled clips" in out
    assert "train: 24 clips of 8 classes" in out and "test: 8 clips of 8 classes" in out
    assert "frames    8 to 8" in out and "size      32x32" in out and "0 broken videos" in out


def test_broken_videos_are_named_and_nothing_is_changed(digits, tmp_path, capsys):
    shutil.copytree(digits, tmp_path / "data")
    folders = sorted((tmp_path / "data" / "train").iterdir())
    broken = spread_broken_videos(tmp_path / "broken", folders)
    files = sorted(path for path in (tmp_path / "data").rglob("*"))
    assert main(["inspect", str(tmp_path / "data"), "--json"]) == 1
    result = json.loads(capsys.readouterr().out)
    assert set(result["broken"]) == {str(path) for path in broken}
    assert result["num_videos"] == 38 and sum(result["splits"]["train"].values()) == 30
    assert result["num_frames"] == {"fewest": 8, "most": 8}
    assert sorted((tmp_path / "data").rglob("*")) == files
    assert main(["inspect", str(tmp_path / "data")]) == 1
    out = capsys.readouterr().out
    assert "6 broken videos:" in out and all(str(path) in out for path in broken)


def test_rows_outside_of_their_video_are_named_and_the_video_is_not_broken(digits, tmp_path, capsys):
    first, second = map(str, sorted((digits / "train").rglob("*.mp4"))[:2])
    assert main(["inspect", str(digits), "--quick", "--json"]) == 0
    length = json.loads(capsys.readouterr().out)["seconds"]["longest"]
    rows = [f"{first},x,0,{length + 0.01}", f"{first},y,{length / 2},{length + 1}", f"{second},y,,"]
    (tmp_path / "list.csv").write_text("\n".join(["path,label,start,end", *rows]))
    assert main(["inspect", str(tmp_path / "list.csv"), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    expected = {"video": first, "start": length / 2, "end": length + 1, "label": "y", "duration": length}
    assert result["rows_outside"] == [expected | {"num_frames": 4}] and not result["broken"]
    long = encode_video(tmp_path / "long.mp4", make_frames(30, 32, 32), fps=10)
    rows = [rows[1], f"{long},x,,", f"{long},x,2:51,2:58"]
    (tmp_path / "list.csv").write_text("\n".join(["path,label,start,end", *rows]))
    table = tmp_path / "videos.parquet"
    assert main(["inspect", str(tmp_path / "list.csv"), "--output", str(table)]) == 1
    out = capsys.readouterr().out
    assert f"1 row cut off at the end of the video: {first}" in out and "0 broken videos" in out
    assert f"1 row without a frame of the video: {long} (lasts 00:03.00), 02:51.00 to 02:58.00 (x)" in out
    assert f"median {(length + 3) / 2:.2f} s, {length + 3:.1f} s in all" in out
    assert pq.read_table(table)["start"].to_pylist() == [length / 2, None]


def test_what_stands_in_the_place_of_a_video_is_broken(digits, tmp_path, capsys):
    folder = shutil.copytree(digits / "test", tmp_path / "data")
    odd = {make_odd_file(folder / "left-up" / f"{kind}.mp4", kind) for kind in ODD_FILES if kind != "folder"}
    for words in ([], ["--quick"]):
        assert main(["inspect", str(folder), "--json", *words]) == 1
        assert set(json.loads(capsys.readouterr().out)["broken"]) == set(map(str, odd))


def test_clips_with_different_labels_or_in_several_splits_are_counted(digits, tmp_path, capsys):
    first, second = sorted((digits / "train").rglob("*.mp4"))[:2]
    for split, labels in {"train": "xy", "test": "x"}.items():
        rows = [*(f"{first},{label}" for label in labels), f"{second},y" if split == "train" else ""]
        (tmp_path / f"{split}.csv").write_text("\n".join(["path,label", *rows]))
    assert main(["inspect", str(tmp_path), "--quick"]) == 1
    out = capsys.readouterr().out
    assert "in several splits" in out and "different labels" in out and out.count("(1 clip)") == 2
    assert main(["inspect", str(tmp_path), "--quick", "--json"]) == 1
    (clip,) = json.loads(capsys.readouterr().out)["repeated"]
    assert clip == {"video": str(first), "start": None, "end": None, "splits": ["train", "test"], "labels": ["x", "y"]}


def test_a_table_is_written_for_files_alone_and_nowhere_else(digits, tmp_path, fails):
    rows = {"path": ["a.mp4"] * 2, "bytes": [b"1", b"2"], "label": ["x", "y"]}
    pq.write_table(pa.table(rows), tmp_path / "stored.parquet")
    output = tmp_path / "videos.parquet"
    assert "stored inside" in fails("inspect", tmp_path / "stored.parquet", "--output", output)
    assert ".parquet" in fails("inspect", digits, "--output", tmp_path / "videos.csv")
    output.touch()
    assert str(output) in fails("inspect", digits, "--output", output)


def test_classes_of_almost_the_same_name_are_shown(digits, tmp_path, capsys, caplog):
    folder = shutil.copytree(digits / "test", tmp_path / "data")
    shutil.copytree(folder / "left-up", folder / "Left-Up ")
    assert main(["inspect", str(folder), "--quick"]) == 0
    assert "different ones (with their rows): 'Left-Up ' (1) and 'left-up' (" in caplog.text


def test_files_that_are_no_videos_are_counted_and_named(digits, tmp_path, says):
    for name in ("left-up", "right-up"):
        shutil.copytree(digits / "test" / name, tmp_path / name)
    other = tmp_path / "left-up" / "notes.txt"
    other.touch()
    out = says("inspect", tmp_path, "--quick")
    assert "1 left out" in out and str(other) in out
    assert json.loads(says("inspect", tmp_path, "--quick", "--json"))["left_out"] == [str(other)]
