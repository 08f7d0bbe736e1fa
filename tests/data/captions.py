"""Rows of captioned videos that need no files."""

import datasets


def caption_rows(annotations):
    """Rows as those of `load_captions`, of mappings with `video`, `caption`, one or several, `start` and `end`."""
    rows = [
        {"start": None, "end": None} | row | {"caption": caption}
        for row in annotations
        for caption in ([row["caption"]] if isinstance(row["caption"], str) else row["caption"])
    ]
    kinds = {"video": "string", "caption": "string", "start": "float64", "end": "float64"}
    features = datasets.Features({name: datasets.Value(kind) for name, kind in kinds.items()})
    return datasets.Dataset.from_list(rows, features=features)
