"""The documentation as a site, and the links between documents as they are on GitHub."""

import importlib
import io
import posixpath
import re
from html.parser import HTMLParser

import pytest
from mkdocstrings import Inventory
from pymdownx.slugs import slugify

import hf_video

from .blocks import ROOT, pages

PACKAGES = (
    "data",
    "drawing",
    "hub",
    "inference",
    "jobs",
    "processing",
    "training",
    "ops.selective_scan",
    "ops.causal_conv1d",
)
DOCUMENTS = [*pages(), "SECURITY.md", "CHANGELOG.md", "model_cards/README.md"]
LINK = re.compile(r"\]\(\s*([^)\s#:]*)(?:#([\w-]+))?\s*\)")


class Loaded(HTMLParser):
    """Collects the addresses from which a page loads something by itself."""

    def __init__(self, page):
        super().__init__()
        self.addresses = []
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        if tag == "link" and values.get("rel") not in ("canonical", "edit", "next", "prev"):
            self.addresses.append(values.get("href"))
        elif tag in ("audio", "iframe", "img", "script", "source", "video"):
            self.addresses.append(values.get("src"))


@pytest.mark.slow  # half a minute; `make docs` ends with a warning as well
def test_the_site_is_whole(site):
    """One test, as each worker would build the site anew. Its build fails with a warning."""
    inventory = Inventory.parse_sphinx(io.BytesIO((site / "objects.inv").read_bytes()), domain_filter=("py",))
    expected = {f"hf_video.{name}" for name in hf_video.__all__ if name != "__version__"}
    for name in PACKAGES:
        package = importlib.import_module(f"hf_video.{name}")
        expected |= {f"hf_video.{name}.{each}" for each in package.__all__}
    assert len(expected) > 100 and expected <= inventory.keys(), expected - inventory.keys()

    # A line of text before a parameter is not taken for the beginning of it.
    assert "<code>classifier_init_scale</code>" in (site / "reference" / "videovit" / "index.html").read_text()

    built = sorted(site.rglob("*.html"))
    assert len(built) >= len([page for page in pages() if page.startswith("docs/")])
    for page in built:
        text = page.read_text(encoding="utf-8")
        # The theme's script asks GitHub about a repository that has this mark.
        assert 'data-md-component="source"' not in text, page
        addresses = Loaded(text).addresses
        assert addresses and not [each for each in addresses if each and "//" in each], page


def anchors(page):
    """What the headings of a page are called in links, as GitHub and the site do it."""
    text = re.sub(r"^( *)```.*?^\1```$", "", (ROOT / page).read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {slugify(case="lower")(re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", each), "-") for each in headings}


@pytest.mark.parametrize("page", DOCUMENTS)
def test_links_between_documents_lead_somewhere(page):
    text = re.sub(r"```.*?```", "", (ROOT / page).read_text(encoding="utf-8"), flags=re.DOTALL)
    for path, anchor in LINK.findall(text):
        target = posixpath.normpath(posixpath.join(posixpath.dirname(page), path)) if path else page
        assert (ROOT / target).exists(), f"{page}: {path}"
        if anchor and target.endswith(".md"):
            assert anchor in anchors(target), f"{page}: {path}#{anchor}"
