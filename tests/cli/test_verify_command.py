import json

from hf_video.cli.main import main
from hf_video.hub import stage


def test_every_part_is_listed_and_the_first_difference_ends_the_command(trained, tmp_path, capsys, says):
    folder = stage(trained, tmp_path, "alice/model").folder
    out = says("verify", folder, "--device", "cpu")
    assert out.startswith("here       cpu, float32; hf_video ") and out.endswith("\nverified\n")
    lines = [line.split(maxsplit=2) for line in out.splitlines()[2:-1]]
    parts = ["frames", "processor", "pixel_values", "labels", "logits"]
    assert [line[0] for line in lines] == parts and {line[1] for line in lines} == {"agree"}
    assert lines[-1][2].startswith("largest difference ")

    config = json.loads((folder / "config.json").read_text())
    labels = config["id2label"]
    config["id2label"] = labels | {"0": labels["1"], "1": labels["0"]}
    (folder / "config.json").write_text(json.dumps(config))
    assert main(["verify", str(folder), "--device", "cpu", "--dtype", "bfloat16"]) == 1
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == f"differs first in its labels: 0 is {labels['1']}, published was {labels['0']}, and 1 more"


def test_a_model_without_a_self_test_is_explained(trained, fails):
    assert "has no self-test (self_test/self_test.json): publish it again" in fails("verify", trained)
