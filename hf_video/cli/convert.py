"""`hf-video convert`: original checkpoints into folders that `from_pretrained` loads."""

import argparse
import importlib
import importlib.util

PACKAGE = "hf_video.conversion"
SOURCES = {
    "videomae": "VideoMAE and VideoMAE V2",
    "hf_videomae": "the VideoMAE classes of Transformers",
    "stmixer": "the VideoMAE backbone of STMixer",
    "image_vit": "image ViTs, inflated to videos",
    "videomamba": "VideoMamba",
    "malmm": "the Q-Former of MA-LMM, and its language model",
    "instructblip": "InstructBLIP and BLIP-2 of Transformers, as models of long videos",
}


def add_parser(commands: argparse._SubParsersAction) -> argparse.ArgumentParser:
    """Declares the command; every source reads its own options."""
    listed = "\n".join(f"  {name:12} {text}" for name, text in installed_sources().items())
    parser = commands.add_parser(
        "convert",
        help="convert an original checkpoint",
        usage="hf-video convert SOURCE CHECKPOINT OUTPUT_DIR [options]",
        description="Convert a checkpoint of an original repository into a folder for from_pretrained.",
        epilog=f"sources:\n{listed}\n\n`hf-video convert SOURCE --help` shows the options of one.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("source", metavar="SOURCE", help="where the checkpoint comes from, see below")
    parser.add_argument(
        "arguments", nargs=argparse.REMAINDER, metavar="CHECKPOINT OUTPUT_DIR [options]", help="words for the source"
    )
    return parser


def installed_sources() -> dict[str, str]:
    """Sources by name with what they read, looked up without importing them."""
    if importlib.util.find_spec(PACKAGE) is None:
        return {}
    return {name: text for name, text in SOURCES.items() if importlib.util.find_spec(f"{PACKAGE}.{name}")}


def run(args: argparse.Namespace) -> int:
    """Hands the remaining words to the `main` of the source."""
    sources = installed_sources()
    if args.source not in sources:
        raise ValueError(f"There is no source {args.source!r} to convert from; choose one of {', '.join(sources)}.")
    words = [*args.arguments, *(["--debug"] if args.debug else [])]
    return importlib.import_module(f"{PACKAGE}.{args.source}").main(words) or 0
