"""A browser, an app that runs, and users on its page."""

import pytest

from tests.testing.answering import tiny_pair

from .app_server import AppServer
from .colour_models import save_colour_model, write_colours


@pytest.fixture(scope="session")
def browser():
    """The Chromium of the machine, without a window, with a new profile."""
    for package in ("playwright", "gradio"):
        pytest.importorskip(package, reason=f"{package} is missing: pip install 'hf-video-models[test-extras]'")
    from .chromium import find_chromium, start_chromium

    if find_chromium() is None:
        pytest.skip("there is no browser: apt-get install chromium, or name one with CHROME_BIN=/path/to/it")
    with start_chromium() as browser:
        yield browser


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    """Folders of models: one that knows colours, one that does so slowly, and one that answers questions."""
    folder = tmp_path_factory.mktemp("models_of_the_server")
    save_colour_model(folder / "colours")
    large = {"hidden_size": 192, "intermediate_size": 768, "num_hidden_layers": 8, "num_attention_heads": 4}
    save_colour_model(folder / "slow", **large)
    for each in tiny_pair(memory_bank_length=5, max_num_frames=200):
        each.save_pretrained(folder / "talker")
    return {name: str(folder / name) for name in ("colours", "slow", "talker")}


@pytest.fixture(scope="session")
def server(browser, models, tmp_path_factory):
    """An app with all models, which takes videos of a megabyte. It starts with the first model."""
    server = AppServer(list(models.values()), tmp_path_factory.mktemp("server"), "--max-upload", "1")
    yield server
    server.stop()


@pytest.fixture(scope="session")
def videos(tmp_path_factory):
    """Files by name: red, blue, red then blue, and four minutes in which the colour changes."""
    folder = tmp_path_factory.mktemp("videos")
    colours = {"red": ["red"], "blue": ["blue"], "both": ["red", "blue"]}
    files = {name: write_colours(folder / f"{name}.mp4", *each) for name, each in colours.items()}
    return files | {"long": write_colours(folder / "long.mp4", *["red", "blue"] * 4, seconds=30)}


@pytest.fixture
def visit(browser, server):
    """Opens the page for one more user, of `server` unless another one is named.

    At the end, no page may have had a problem.
    """
    from .visits import Visit

    visits = []

    def open_page(server=server, **context):
        visits.append(Visit(browser, server.address, **context))
        return visits[-1]

    printed = len(server.output)
    yield open_page
    problems = [problem for each in visits for problem in each.unexpected()]
    for each in visits:
        each.close()
    assert not problems
    assert "Traceback" not in server.output[printed:]
