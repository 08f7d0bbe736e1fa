"""Every command and block of code in the documents does what it says, on small files."""

import shutil
import sys
import traceback

import pytest
from transformers import dynamic_module_utils

from hf_video.cli.main import main
from hf_video.hub import publish

from ..hub_server.fixtures import use_hub
from ..hub_server.server import HubServer
from .blocks import pages, read_blocks
from .checking import check, checked, simple_commands
from .run import INSTALLING, LONG, run_page
from .running import remove_outputs, run_blocks
from .world import AT_HAND, TOKEN, environment, fill_hub, hub_tokens, make_files

# Commands that take less than two seconds where everything has been imported.
QUICK = ("inspect", "evaluate", "predict", "explain", "extract", "timeline", "export")
QUICK += ("index", "search")
# Pages that train, export and search for seconds, as other quick tests do.
LONG_PAGES = ("docs/action_detection.md", "docs/export.md", "docs/fine_tune.md", "docs/packed_data.md")
LONG_PAGES += ("docs/search_settings.md",)


class ThisProcess:
    """Runs Python and quick commands in the process of the tests. Other commands are parsed."""

    def __init__(self, folder):
        self.folder, self.names = folder, {"__name__": "__main__"}
        exec(AT_HAND, self.names)

    def shell(self, text):
        words, *more = simple_commands(text)
        if more or words[0] != "hf-video" or words[1] not in QUICK or "ray" in words:
            return checked(text)
        remove_outputs(text, self.folder)
        return ("failed", "the message is above") if main(words[1:]) else ("ok", "")

    def python(self, block):
        try:
            exec(compile(block.text, f"{block.page}:{block.line}", "exec"), self.names)
            return "ok", ""
        except Exception:
            return "failed", traceback.format_exc()


def test_the_first_page_shows_the_model_class_and_many_gpus():
    blocks = read_blocks("README.md")
    (program,) = [each.text for each in blocks if "AutoModelForVideoClassification" in each.text]
    assert "AutoModelForVideoClassification.from_pretrained(" in program and ".logits" in program
    (launching,) = [each for each in blocks if "torchrun" in each.text]
    assert launching.mark == "gpu"
    commands = simple_commands(launching.text)
    assert [words[0] for words in commands] == ["torchrun", "accelerate"]
    # The words of the page on many machines.
    page = next(each for each in read_blocks("docs/many_machines.md") if each.mark == "gpu")
    assert commands == simple_commands(page.text)


@pytest.fixture(scope="session")
def files(tmp_path_factory):
    return make_files(tmp_path_factory.mktemp("files"))


def failures(outcomes):
    return [f"{outcome}\n{outcome.said}" for outcome in outcomes if outcome.status == "failed"]


@pytest.fixture(scope="module")
def published(files, tmp_path_factory):
    """`user/my-model` on a Hub, which this process uses."""
    folder = tmp_path_factory.mktemp("hub")
    with HubServer(folder / "hub", hub_tokens()) as server, pytest.MonkeyPatch.context() as patch:
        use_hub(server, TOKEN, folder / "cache", patch)
        patch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(folder / "modules"))
        patch.setattr(sys, "path", [*sys.path])
        publish(files / "my_model", "user/my-model", check_download=False)
        yield


@pytest.mark.parametrize("page", pages())
def test_every_block_can_be_read(page):
    for block in read_blocks(page):
        if not block.file:
            check(block)


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=pytest.mark.slow if page in LONG_PAGES else [])
        for page in pages()
        if read_blocks(page)
    ],
)
@pytest.mark.usefixtures("published")
def test_python_and_quick_commands_do_what_the_documents_say(page, files, tmp_path, monkeypatch):
    folder = shutil.copytree(files, tmp_path / "folder")
    monkeypatch.chdir(folder)
    outcomes = list(run_blocks(read_blocks(page), ThisProcess(folder)))
    assert not failures(outcomes)
    if page == "README.md":
        assert {"python", "bash"} <= {each.block.language for each in outcomes if each.status == "ok"}


@pytest.fixture(scope="module")
def variables(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hub")
    with HubServer(folder / "hub", hub_tokens()) as server:
        fill_hub(server, folder / "instructblip")
        yield environment(server, folder)
        assert not server.errors


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("page", pages())
def test_everything_does_what_the_documents_say(page, files, variables, tmp_path):
    outcomes = list(run_page(page, tmp_path, files, variables, LONG | INSTALLING))
    assert len(outcomes) >= len(read_blocks(page)) and not failures(outcomes)
