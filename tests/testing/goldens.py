"""Cases made by running the original implementations: inputs, original checkpoints, expected outputs."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file

FIXTURES = Path(__file__).parents[1] / "fixtures"


class Golden(NamedTuple):
    folder: Path
    inputs: dict[str, torch.Tensor]
    expected: dict[str, torch.Tensor]
    config: dict[str, Any]

    def expected_under(self, prefix: str) -> dict[str, torch.Tensor]:
        return {name.removeprefix(prefix): value for name, value in self.expected.items() if name.startswith(prefix)}


def load_golden(family: str, case: str) -> Golden:
    folder = FIXTURES / family / case
    return Golden(
        folder,
        load_file(folder / "inputs.safetensors"),
        load_file(folder / "expected.safetensors"),
        json.loads((folder / "config.json").read_text()),
    )


def write_original_config(golden: Golden, folder: Path, key: str = "kwargs") -> Path:
    """The file for `--original-config`: the constructor's keyword arguments as one bare object."""
    path = folder / "original.json"
    path.write_text(json.dumps(golden.config[key]))
    return path


def assert_float32_close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(actual, expected, atol=2e-5, rtol=1e-4)


def assert_float64_close(actual: torch.Tensor, expected: torch.Tensor, atol: float = 1e-9) -> None:
    assert actual.dtype == expected.dtype == torch.float64
    torch.testing.assert_close(actual, expected, atol=atol, rtol=0)


def assert_gradients_close(actual: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    """Every gradient within 1e-4 of its own largest entry."""
    assert actual.keys() == expected.keys()
    for name, gradient in expected.items():
        error = (actual[name] - gradient).abs().max() / gradient.abs().max()
        assert error < 1e-4, f"{name}: off by {error:.1e} of its largest entry"
