"""Pictures and videos of what models see: timelines, heat maps, annotated videos."""

from hf_video.lazy_names import lazy_names

_PUBLIC_NAMES = {
    "annotate_detections": ".video",
    "annotate_video": ".video",
    "draw_heat_maps": ".heat_maps",
    "draw_timeline": ".timeline_picture",
    "overlay_heat_maps": ".heat_maps",
    "write_heat_map_video": ".heat_maps",
}

__all__, __dir__, __getattr__ = lazy_names(__name__, _PUBLIC_NAMES)
