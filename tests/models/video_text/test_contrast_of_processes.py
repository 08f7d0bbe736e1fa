"""The contrast of two processes with half a batch each is that of one process with the whole batch."""

from pathlib import Path

import pytest
import torch

from tests.testing.processes import launched, run_forked


def run(folder, num_processes, original_scale):
    folder.mkdir()
    script = Path(__file__).with_name("contrast_run.py")
    processes = run_forked(*launched([script, folder, num_processes, original_scale], num_processes))
    assert not any(each.returncode for each in processes), [each.stderr[-5000:] for each in processes]
    return torch.load(folder / "result.pt")


@pytest.mark.parametrize("original_scale", [False, True])
def test_two_processes_have_the_loss_and_the_gradients_of_one(tmp_path, original_scale):
    one, two = run(tmp_path / "one", 1, False), run(tmp_path / "two", 2, original_scale)
    torch.testing.assert_close(two["loss"], one["loss"], atol=1e-12, rtol=0)
    assert two["gradients"].keys() == one["gradients"].keys()
    for name, gradient in one["gradients"].items():
        scale = 0.5 if original_scale and name != "temperature" else 1
        torch.testing.assert_close(two["gradients"][name], scale * gradient, atol=1e-6, rtol=0)
    assert one["gradients"]["video_projection.weight"].abs().max() > 1e-3
