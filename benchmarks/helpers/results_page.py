"""The pages of `docs/benchmarks.md` and `docs/benchmarks/`, put together from the results of all benchmarks."""

from collections.abc import Mapping, Sequence

from helpers.results import Ratio, Result

MARK = "<!-- written by `make bench` from benchmarks/results; do not edit -->"
# The page of each benchmark: its file in `docs/benchmarks/`, its title, and the names of the scripts.
GROUPS = {
    "models": ("Models", ("exported", "int8", "memory_bank", "run_length_tokens", "stmixer", "videovit")),
    "videomamba": (
        "VideoMamba",
        ("cpu_choices", "triton_assembly", "videomamba_cpu", "videomamba_gpu", "videomamba_lengths"),
    ),
    "reading": ("Reading videos", ("extract", "packed_reading", "range_reads", "reading")),
    "training": (
        "Training",
        (
            "action_detection",
            "gradient_checkpointing",
            "imbalance",
            "small_data",
            "streams",
            "training",
            "video_text",
            "waiting",
        ),
    ),
    "answers": (
        "What models find",
        ("chunk_length", "explain", "frame_labels", "live", "people_walking", "timeline", "watch", "what_it_saw"),
    ),
    "many_videos": ("Many videos", ("bulk", "scale_plan", "search", "startup")),
    "package": (
        "The package",
        ("alternatives", "before_and_after", "importing", "predict_start", "self_test", "structure"),
    ),
}
Groups = Mapping[str, tuple[str, Sequence[str]]]

INTRODUCTION = f"""\
# Benchmarks

{MARK}

Each script of `benchmarks/` measures one claim on today's code, beside its peers in the same run. `make bench` runs
them and writes these pages; `make bench ONLY="videovit int8"` runs two of them again and keeps what the others found.
A script that finds different outputs prints no ratio and fails. Speed depends on the machine and on what else it
does: each section names both, and results of several machines stand side by side. What the scripts printed is on one
page for each group:
"""
BACK = "The [overview](../benchmarks.md) has the ratios of all benchmarks.\n"
SUMMARY = """\
## Summary

A ratio is ours divided by the peer's in the same run: of time or memory, so that less is better, unless the quantity
says another one. A limit is what the machine itself needs for the part that cannot be avoided, such as the matrix
products or the decoding alone, timed in the same run: no program comes below 1. Each machine has a column.
"""


def render(results: Sequence[Result], groups: Groups = GROUPS) -> dict[str, str]:
    """The pages by their path in `docs/`: the overview, then one for each group.

    Args:
        results: At most one of each benchmark on each machine.
        groups: All benchmarks, in the order of the tables; one without a result is named as not run.
    """
    by_name: dict[str, list[Result]] = {}
    for result in results:
        by_name.setdefault(result.name, []).append(result)
    pages = {name: f"benchmarks/{page}.md#{name}" for page, (_, names) in groups.items() for name in names}
    known = [result for name in pages for result in by_name.get(name, [])]
    rows = [_run_row(name, each, address) for name, address in pages.items() for each in by_name.get(name, [None])]
    runs = _table(["benchmark", "machine", "state", "date (UTC)", "minutes", "load before", "commit"], rows)
    listed = "".join(
        f"- [{title}](benchmarks/{page}.md): {', '.join(names)}\n" for page, (title, names) in groups.items()
    )
    machines = ["## Machines\n", *_environments(known)]
    written = {
        "benchmarks.md": "\n".join(
            [INTRODUCTION, listed, SUMMARY, _summary(known, pages), *machines, "## Runs\n", runs]
        )
    }
    for page, (title, names) in groups.items():
        sections = ["\n".join([f"## {name}\n", *map(_section, by_name[name])]) for name in names if name in by_name]
        written[f"benchmarks/{page}.md"] = "\n".join([f"# Benchmarks: {title}\n\n{MARK}\n\n{BACK}", *sections])
    return written


def _environments(results: Sequence[Result]) -> list[str]:
    """A line for each machine with its versions; there is one if all benchmarks ran under the same conditions."""
    names: dict[str, list[str]] = {}
    for result in results:
        names.setdefault(_environment(result), []).append(result.name)
    if len(names) == 1:
        return [f"{line}.\n" for line in names]
    return [f"- {', '.join(each)}: {line}." for line, each in names.items()] + [""]


def _environment(result: Result) -> str:
    machine, versions = result.machine, [f"{name} {version}" for name, version in result.versions.items()]
    words = [result.machine_name, f"{machine['memory_gib']:.0f} GiB", f"GPU: {machine['gpu']}"]
    return ", ".join(words + [each for each in versions if not each.startswith("hf_video")])


def _summary(results: Sequence[Result], pages: Mapping[str, str]) -> str:
    machines = sorted({result.machine_name for result in results if result.ratios})
    cases: dict[tuple[str, str, str], dict[str, list[Ratio]]] = {}
    for result in results:
        for ratio in result.ratios:
            of_case = cases.setdefault((result.name, ratio.case, ratio.quantity), {})
            of_case.setdefault(result.machine_name, []).append(ratio)
    rows = [
        [f"[{name}]({pages[name]})", case, quantity, *(_cell(found.get(machine, [])) for machine in machines)]
        for (name, case, quantity), found in cases.items()
    ]
    return _table(["benchmark", "case", "quantity", *machines], rows)


def _cell(ratios: Sequence[Ratio]) -> str:
    return ", ".join(
        f"{each.value:.2f} ({'limit: ' if each.is_limit else ''}{each.reference})"
        for each in sorted(ratios, key=lambda ratio: ratio.is_limit)
    )


def _run_row(name: str, result: Result | None, address: str) -> list[str]:
    if result is None:
        return [name, "", "not run", "", "", "", ""]
    minutes, load = f"{result.seconds / 60:.1f}", f"{result.load:.1f}"
    words = [result.machine_name, result.state, result.date, minutes, load, result.versions["hf_video"]]
    return [f"[{name}]({address})", *words]


def _section(result: Result) -> str:
    head = f"`python {result.command}`: {result.state.removesuffix('.')}.\n"
    conditions = f"{result.date} UTC, load {result.load:.1f} before, {_environment(result)}, "
    conditions += f"hf_video {result.versions['hf_video']}.\n"
    figures = [f"```text\n{result.output.strip()}\n```\n"] if result.has_figures else []
    return "\n".join([head, conditions, *figures])


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |\n" for line in lines)
