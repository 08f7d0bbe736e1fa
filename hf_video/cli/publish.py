"""`hf-video publish`: uploads a model folder to the Hub."""

import argparse
import tempfile

from hf_video.class_names import read_class_names


def add_parser(commands: argparse._SubParsersAction) -> argparse.ArgumentParser:
    """Declares the command."""
    parser = commands.add_parser(
        "publish",
        help="put a model on the Hugging Face Hub",
        description="Check a model folder, add the code and a model card, upload it as one commit, and load it back "
        "where hf_video is not installed. After an interruption, run the same command again: the upload goes on.",
    )
    parser.add_argument("folder", metavar="DIR", help="a folder that `hf-video train` or save_pretrained wrote")
    parser.add_argument("repo_id", metavar="REPO_ID", help="USER/NAME; made if it does not exist")
    parser.add_argument("--private", action="store_true", help="only you can see the repository")
    parser.add_argument("--revision", metavar="BRANCH", help="commit to this branch; default main")
    parser.add_argument("--tag", help="tag the commit, such as v1.0")
    parser.add_argument(
        "--labels",
        metavar="FILE",
        help="names of the classes by class id: one a line, a JSON list or id2label object, or a CSV of id,name; or "
        "kinetics400 or imagenet1k for torchvision's list",
    )
    parser.add_argument(
        "--with-training-state", action="store_true", help="also upload the optimizer's state and the like"
    )
    parser.add_argument("--dry-run", action="store_true", help="check everything, show what would go up, and stop")
    return parser


def run(args: argparse.Namespace) -> int:
    """Prints which files are uploaded, and the address of the commit."""
    labels = None if args.labels is None else read_class_names(args.labels)

    from hf_video.hub import push, stage

    with tempfile.TemporaryDirectory() as staging:
        publication = stage(
            args.folder, staging, args.repo_id, labels=labels, with_training_state=args.with_training_state
        )
        for name, size in publication.files.items():
            print(f"{size:>14,}  {_printable(name)}")
        if publication.left_out:
            # A checkpoint has many files, which are all left out for the same reason.
            print(f"left out: {', '.join(dict.fromkeys(map(_top_level, publication.left_out)))}")
        if publication.needs_hf_video:
            print("This model is built around another one of hf_video: it only loads where hf_video is installed.")
        if args.dry_run:
            print("Nothing was uploaded: --dry-run.")
            return 0
        commit = push(publication, args.repo_id, private=args.private or None, revision=args.revision, tag=args.tag)
    print(f"published  {commit.commit_url}")
    return 0


def _top_level(name: str) -> str:
    folder, slash, _ = name.partition("/")
    return _printable(folder + slash)


def _printable(name: str) -> str:
    """A name that can be printed: bytes that are not UTF-8 are escaped."""
    return name.encode(errors="backslashreplace").decode()
