"""Every recipe against the values of its original, which are written down with file and line."""

import math

import pytest

from hf_video.training.recipes import published_recipe, published_recipes

from .original_recipes import DIFFERENCES, MALMM_FILES, SCRIPTS, described, originals, ours

RECIPES = {recipe for recipe, _ in SCRIPTS} | {f"malmm/{name}" for name in MALMM_FILES}
OTHERS = ("pretraining/", "stmixer/", "vjepa2_")


def same(found, expected):
    if isinstance(expected, dict):
        return found.keys() == expected.keys() and all(same(found[name], expected[name]) for name in expected)
    if isinstance(expected, float):
        return math.isclose(found, expected, rel_tol=1e-8)
    return type(found) is type(expected) and found == expected


def check(recipe, what="", words=()):
    expected = originals(recipe, what)
    values, given = ours(recipe, words)
    assert given == expected.keys()
    for name, original in expected.items():
        if (recipe, name) in DIFFERENCES:
            assert not same(values[name], original.value)
            assert DIFFERENCES[recipe, name] in published_recipe(recipe).read_text()
        else:
            assert same(values[name], original.value), f"{name}: {values[name]}, {original}"


def test_only_compared_recipes_are_published():
    # They have tests of their own, `test_detection.py`, and in `tests/cli` `test_pretraining_recipes.py` and
    # `test_vjepa2_commands.py`.
    assert {name for name in published_recipes() if not name.startswith(OTHERS)} == RECIPES


@pytest.mark.parametrize("recipe", sorted(RECIPES))
def test_a_recipe_and_what_its_comments_describe_have_the_values_of_the_original(recipe):
    check(recipe)
    found = described(recipe)
    assert found.keys() == {what for name, what in SCRIPTS if name == recipe and what}
    for what, words in found.items():
        check(recipe, what, words)
