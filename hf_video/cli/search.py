"""Find the clips that words describe, or those like a video, in an index that `hf-video index` wrote. Each hit has its
score, the mean cosine of its vectors; with --rerank it has the logit of a match before that.

--rerank reads its clips again.

example: hf-video search "a glass breaks" --index my_index --rerank 128 --top-k 5
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hf_video.data.folders import require_inputs
from hf_video.inference.inference_settings import JsonLinesSettings, SearchSettings

from .command import command
from .printing import say

if TYPE_CHECKING:
    from hf_video.inference.video_search import Hit


@dataclass(kw_only=True)
class SearchCommandSettings(SearchSettings, JsonLinesSettings):
    """Search"""


@command(help="find clips in an index by words or by a video")
def run(settings: SearchCommandSettings) -> int:
    """Prints the hits, the best first."""
    require_inputs([settings.index], "`hf-video index VIDEOS --model MODEL --output INDEX` writes an index.")

    from hf_video.inference.video_search import search

    found = search(settings)
    for hit in found.hits:
        print(json.dumps(hit._asdict()) if settings.json else _line(hit), flush=True)
    if found.note:
        say(found.note)
    return 0


def _line(hit: Hit) -> str:
    match = "" if hit.match is None else f"{hit.match:7.3f}  "
    return f"{match}{hit.score:6.3f}  {hit.path}  {hit.start:.2f} to {hit.end:.2f} s"
