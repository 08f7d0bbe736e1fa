"""Pictures and videos of what models see: timelines, heat maps, annotated videos."""

from hf_video.lazy_names import lazy_names

_PUBLIC_NAMES = {
    "heat_maps": "draw_heat_maps overlay_heat_maps write_heat_map_video",
    "timeline_picture": "draw_timeline",
    "video": "annotate_detections annotate_video",
}

__all__, __dir__, __getattr__ = lazy_names(__name__, _PUBLIC_NAMES.items())
