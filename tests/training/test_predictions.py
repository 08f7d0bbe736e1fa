import datasets
import numpy as np
import pytest

from hf_video.training import write_predictions

SCORES = np.array([[0.9, 0.1], [0.3, 0.7], [0.2, 0.8], [0.6, 0.4]])
TABLE = {"videos": list("abcd"), "scores": SCORES, "labels": np.array([0, 0, 0, 1]), "class_names": ["run", "sit"]}


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_row_a_video_the_surest_mistakes_first(tmp_path, suffix):
    path = tmp_path / f"table.{suffix}"
    write_predictions(path, **TABLE)
    read = datasets.Dataset.from_csv if suffix == "csv" else datasets.Dataset.from_parquet
    table = read(str(path), cache_dir=str(tmp_path / "cache"))
    assert table["video"][:] == ["c", "b", "d", "a"]
    assert table["label"][:] == ["run", "run", "sit", "run"]
    assert table["prediction"][:] == ["sit", "sit", "run", "run"]
    assert table["is_right"][:] == [False, False, False, True]
    np.testing.assert_allclose(table["score"][:], [0.8, 0.7, 0.6, 0.9])
    np.testing.assert_allclose(table["label_score"][:], [0.2, 0.3, 0.4, 0.9])
    np.testing.assert_allclose(table["score: sit"][:], [0.8, 0.7, 0.4, 0.1])


def test_several_classes_a_video(tmp_path):
    labels = np.array([[1, 0], [1, 1], [0, 0], [0, 0]])
    write_predictions(tmp_path / "table.parquet", **TABLE | {"labels": labels})
    table = datasets.Dataset.from_parquet(str(tmp_path / "table.parquet"), cache_dir=str(tmp_path / "cache"))
    assert table["video"][:] == ["c", "b", "d", "a"]
    assert table["labels"][:] == ["", "run;sit", "", "run"]
    assert table["predictions"][:] == ["sit", "sit", "run", "run"]
    assert table["is_right"][:] == [False, False, False, True]
    np.testing.assert_allclose(table["error"][:], [0.8, 0.7, 0.6, 0.1])
    np.testing.assert_allclose(table["score: run"][:], [0.2, 0.3, 0.6, 0.9])


def test_errors(tmp_path):
    with pytest.raises(ValueError, match="table.xlsx is no table; a name that ends in .csv or .parquet"):
        write_predictions(tmp_path / "table.xlsx", **TABLE)
    with pytest.raises(ValueError, match=r"There are 3 videos and 4 labels for scores of shape \(4, 2\)"):
        write_predictions(tmp_path / "table.csv", **TABLE | {"videos": list("abc")})
