"""Pictures and videos of what models see: timelines, heat maps, annotated videos."""

from importlib import import_module
from typing import Any

_PUBLIC_NAMES = {
    "annotate_detections": ".video",
    "annotate_video": ".video",
    "draw_heat_maps": ".heat_maps",
    "draw_timeline": ".timeline_picture",
    "overlay_heat_maps": ".heat_maps",
    "write_heat_map_video": ".heat_maps",
}

__all__ = list(_PUBLIC_NAMES)
__dir__ = __all__.copy


def __getattr__(name: str) -> Any:
    if name in _PUBLIC_NAMES:
        return getattr(import_module(_PUBLIC_NAMES[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
