"""
A process that has imported everything but hf_video, which it cannot import. Programs are forked off it, see
`tests/testing/processes.py`; each begins with `begin`.
"""

import os
import sys
from pathlib import Path

sys.modules["hf_video"] = None  # type: ignore[assignment]
os.environ |= {"HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}

from huggingface_hub import constants, hf_api  # noqa: E402
from transformers import dynamic_module_utils, pipelines, video_processing_utils  # noqa: E402, F401
from transformers.models.auto import modeling_auto, processing_auto, video_processing_auto  # noqa: E402, F401
from transformers.utils import hub  # noqa: E402


def begin() -> None:
    """Lets the clients use the Hub and the folders that the environment of this program names."""
    home = Path(os.environ.get("HF_HOME") or os.environ["HF_HUB_CACHE"])
    modules = os.environ.get("HF_MODULES_CACHE") or str(home / "modules")
    constants.HF_HOME = str(home)
    constants.HF_HUB_CACHE = os.environ.get("HF_HUB_CACHE") or str(home / "hub")
    constants.HF_TOKEN_PATH = str(home / "token")
    endpoint = constants.ENDPOINT = hf_api.api.endpoint = os.environ.get("HF_ENDPOINT") or constants.ENDPOINT
    constants.HUGGINGFACE_CO_URL_TEMPLATE = endpoint + "/{repo_id}/resolve/{revision}/{filename}"
    hub._hf_api = None
    for module in (hub, dynamic_module_utils):
        module.HF_MODULES_CACHE = modules
