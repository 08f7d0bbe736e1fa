"""The model cards of the released original checkpoints, from the facts in `facts/`; no card is edited by hand.

    python model_cards/generate.py                 # the cards that are kept, and the tables
    python model_cards/generate.py NAME my_model   # the card of one, into the folder that is published

The tables of models are in docs/models.md, and in the package, which finds models by them. The site has
all cards, see `docs/site/hooks.py`.
"""

import sys
from pathlib import Path

from huggingface_hub import EvalResult, ModelCard, ModelCardData
from released import SOURCES, Released, read_released, slug
from table import SHORT_TABLE, place, write_tables

from hf_video.hub.model_card import PIPELINES, usage

FOLDER = Path(__file__).parent
TEMPLATE = FOLDER / "template.md.jinja"
TITLES = {
    "videomae": "VideoMAE",
    "hf_videomae": "VideoMAE in Transformers' format",
    "videomae_v2": "VideoMAE V2",
    "stmixer": "STMixer",
    "vjepa2": "V-JEPA 2",
    "hf_vjepa2": "V-JEPA 2 in Transformers' format",
    "videomamba": "VideoMamba",
    "videomamba_text": "VideoMamba with text",
    "malmm": "MA-LMM",
}
METRIC_TYPES = {"accuracy": "accuracy", "R@": "recall"}


def render(card: Released) -> str:
    """The text of a card."""
    source = SOURCES[card.source]
    license = source["license"] or "not stated in the original repository's README"
    if source["license_from"]:
        license += f" ({source['license_from']})"
    rows = {
        "original code": source["repository"],
        "paper": source["paper"],
        "licence of the original": license,
        **card.facts,
    }
    link = f"[here]({card.link})" if card.link else f"from the model zoo of {source['repository']}"
    name, repository, file = place(card)
    words = "evaluate captions.json --task retrieval" if card.is_dual_encoder else "train my_videos"
    by_name = f"Commands take it by its name, as in `hf-video {words} --model {name}`: "
    if file:
        origin = f"{by_name}they fetch the [original file]({card.link}) and convert it. To convert a file at hand:"
    elif repository:
        origin = f"{by_name}it is loaded with the class of Transformers. Converted, it is a VideoViT:"
    else:
        origin = f"Get the original file {link}, and convert it:"
    content = ModelCard.from_template(
        _metadata(card),
        template_path=str(TEMPLATE),
        card=card,
        usage=usage(
            card.name, card.auto_class, needs_hf_video=True, question=card.question, has_texts=card.is_dual_encoder
        ),
        origin=origin,
        rows=rows,
    )
    return f"{content}\n"


def _metadata(card: Released) -> ModelCardData:
    pipeline, task = PIPELINES.get(card.auto_class), "video-classification"
    if card.is_dual_encoder:  # the Hub has no pipeline for it
        pipeline, task = None, "zero-shot-video-retrieval"
    return ModelCardData(
        library_name="transformers",
        license=SOURCES[card.source]["license"],
        pipeline_tag=pipeline,
        tags=["hf_video", "video", card.family],
        datasets=sorted({slug(result.data) for result in card.results}) or None,
        metrics=sorted({_metric_type(result.metric) for result in card.results}) or None,
        model_name=card.name,
        eval_results=[
            EvalResult(
                task_type=pipeline or task,
                dataset_type=slug(result.data),
                dataset_name=result.data,
                metric_type=_metric_type(result.metric),
                metric_name=result.metric + (f" ({result.views})" if result.views else ""),
                metric_value=result.value,
                source_name=f"{TITLES[card.source]}, as reported by its authors",
                source_url=SOURCES[card.source]["paper"],
            )
            for result in card.results
        ]
        or None,
    )


def _metric_type(metric: str) -> str:
    return next((kind for word, kind in METRIC_TYPES.items() if word in metric), metric.lower())


def index(cards: list[Released]) -> str:
    """The table of contents, by source."""
    lines = [
        "# Model cards of the released original checkpoints",
        "",
        "Each card has the command that makes its weights from the original file. To publish these with it, write it",
        "into their folder before `hf-video publish`: `python model_cards/generate.py NAME my_model`, in a clone.",
    ]
    for source, title in TITLES.items():
        lines += ["", f"## {title}", ""]
        lines += [
            f"- [{card.name}]({source}/{card.name}.md): {card.summary}" for card in cards if card.source == source
        ]
    return "\n".join(lines) + "\n"


def render_all(cards: list[Released]) -> dict[str, str]:
    """The text of every card, by its path in this folder, and of the table of contents."""
    return {"index.md": index(cards)} | {f"{card.source}/{card.name}.md": render(card) for card in cards}


def main(words: list[str]) -> None:
    cards = read_released()
    if words:
        name, folder = words
        (card,) = (card for card in cards if name in (card.name, place(card)[0]))
        Path(folder, "README.md").write_text(render(card), encoding="utf-8")
        return
    files = {FOLDER / card.source / f"{card.name}.md": render(card) for card in cards if card.name in SHORT_TABLE}
    files |= write_tables(cards)
    for path, text in files.items():
        path.write_text(text, encoding="utf-8")
    print(f"Wrote {len(files)} files.")


if __name__ == "__main__":
    main(sys.argv[1:])
