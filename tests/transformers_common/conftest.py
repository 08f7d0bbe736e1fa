"""Registers the marks of Transformers' common tests, and makes the longest of them slow for all models but one."""

import pytest

MARKS = ("accelerate_tests", "flash_attn_test", "flash_attn_3_test", "flash_attn_4_test", "torch_compile_test")


def pytest_configure(config: pytest.Config) -> None:
    for mark in MARKS:
        config.addinivalue_line("markers", f"{mark}: set by Transformers' common tests")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """`torch_dtype`, the older name of `dtype`, is read by Transformers alone: 14 loads of each class repeat that."""
    for item in items:
        if item.name == "test_bc_torch_dtype" and item.parent and item.parent.name != "VideoViTModelTest":
            item.add_marker(pytest.mark.slow)
