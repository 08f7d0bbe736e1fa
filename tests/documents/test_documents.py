"""Commands and code in the documents do what they say, on small files, and links lead somewhere."""

import posixpath
import re
import shutil
import sys

import pytest
from pymdownx.slugs import slugify
from transformers import dynamic_module_utils

from hf_video.cli.main import main
from hf_video.hub import publish

from ..hub.conftest import forked_loading
from ..hub_server.fixtures import use_hub
from ..hub_server.server import HubServer, User
from .blocks import ROOT, commands, pages, read_blocks
from .checking import check, check_command
from .world import AT_HAND, make_files, remove_outputs

__all__ = ["forked_loading"]

QUICK_PAGES = ("README.md", "docs/use.md")
# Of README and the page on use, what does not train.
QUICK = ("example", "evaluate", "predict")
# What serves, needs Ray, or takes minutes.
UNRUN = {"app", "demo", "ray", "Salesforce/instructblip-flan-t5-xl"}
TOKEN = "hf_user"
LINK = re.compile(r"\]\(\s*([^)\s#:]*)(?:#([\w-]+))?\s*\)")


@pytest.fixture(scope="session")
def files(tmp_path_factory):
    return make_files(tmp_path_factory.mktemp("files"))


@pytest.fixture(scope="module")
def published(files, tmp_path_factory):
    """`user/my-model` on a Hub, which this process uses."""
    folder = tmp_path_factory.mktemp("hub")
    with HubServer(folder / "hub", {TOKEN: User("user")}) as server, pytest.MonkeyPatch.context() as patch:
        use_hub(server, TOKEN, folder / "cache", patch)
        patch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(folder / "modules"))
        patch.setattr(sys, "path", [*sys.path])
        publish(files / "my_model", "user/my-model")
        yield


@pytest.mark.parametrize("page", pages())
def test_every_block_can_be_read(page):
    for block in read_blocks(page):
        if not block.is_file:
            check(block)


@pytest.mark.parametrize(
    "words",
    [
        ["hf-video", "train", "my_videos", "--output-dir", "o", "--weight-decy", "1"],
        ["hf-video", "predict"],
        ["torchrun", "-m", "hf_video.cli", "nonsense"],
        ["hf-video", "convert", "nonsense", "a", "b"],
        ["hf-video", "convert", "videomae", "a", "b", "--nonsense"],
        ["python", "benchmarks/int8.py", "--nonsense"],
        ["make", "nonsense"],
        ["pip", "install", ".[nonsense]"],
    ],
)
def test_a_command_that_nobody_reads_is_refused(words):
    with pytest.raises(ValueError):
        check_command(words)


@pytest.mark.timeout(3000)
@pytest.mark.usefixtures("published")
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=[] if page in QUICK_PAGES else pytest.mark.slow)
        for page in pages()
        if any(block.language in ("bash", "python") for block in read_blocks(page))
    ],
)
def test_the_blocks_of_a_page_run(page, files, tmp_path, monkeypatch):
    folder = shutil.copytree(files, tmp_path / "folder")
    monkeypatch.chdir(folder)
    names = {"__name__": "__main__"}
    exec(AT_HAND, names)
    for block in read_blocks(page):
        if block.mark or block.is_file:
            continue
        if block.language == "python":
            exec(compile(block.text, block.place, "exec"), names)
        for words in commands(block.text) if block.language == "bash" else ():
            if words[0] != "hf-video" or UNRUN & set(words) or (page in QUICK_PAGES and words[1] not in QUICK):
                continue
            remove_outputs(words, folder)
            assert main(words[1:]) in (0, None), f"{block.place}: {' '.join(words)}"


def anchors(page):
    """What the headings of a page are called in links, as GitHub and the site do it."""
    text = re.sub(r"^( *)```.*?^\1```$", "", (ROOT / page).read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {slugify(case="lower")(re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", each), "-") for each in headings}


def test_links_between_documents_lead_somewhere():
    for page in [*pages(), "SECURITY.md", "CHANGELOG.md", "model_cards/README.md"]:
        text = re.sub(r"```.*?```", "", (ROOT / page).read_text(encoding="utf-8"), flags=re.DOTALL)
        for path, anchor in LINK.findall(text):
            target = posixpath.normpath(posixpath.join(posixpath.dirname(page), path)) if path else page
            assert (ROOT / target).exists(), f"{page}: {path}"
            if anchor and target.endswith(".md"):
                assert anchor in anchors(target), f"{page}: {path}#{anchor}"
