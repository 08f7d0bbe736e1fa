"""What a run of a benchmark leaves behind: the figures that it printed, and where and when they were measured."""

import dataclasses
import json
import re
from pathlib import Path
from typing import Any, NamedTuple

from helpers.measurement import GOAL_MISSED, RATIO_LINE, SKIPPED


class Ratio(NamedTuple):
    """What `print_ratio` printed: ours divided by that of the reference."""

    case: str
    quantity: str
    reference: str
    is_limit: bool
    value: float


@dataclasses.dataclass(frozen=True)
class Result:
    """One run of the script `benchmarks/NAME.py`.

    Attributes:
        command: Words behind `python`, as a reader repeats them.
        date: Day and minute of the start in UTC.
        load: Average number of busy processes in the minute before the start.
        seconds: Time of the whole script.
        exit_code: 0, `GOAL_MISSED` or `SKIPPED`; any other one is a failure, and figures mean nothing.
        machine: CPU model and generation, cores, memory and GPU.
        versions: Python, packages and the commit of this repository.
        output: What the script printed, unchanged.
        error: The last line that it printed to stderr if it did not succeed.
    """

    name: str
    command: str
    date: str
    load: float
    seconds: float
    exit_code: int
    machine: dict[str, Any]
    versions: dict[str, str]
    output: str
    error: str

    @property
    def has_figures(self) -> bool:
        return self.exit_code in (0, GOAL_MISSED)

    @property
    def is_bad(self) -> bool:
        """Whether it failed or missed a goal. One that needs another machine does not count."""
        return self.exit_code not in (0, SKIPPED)

    @property
    def state(self) -> str:
        if self.has_figures:
            return "a goal is missed" if self.exit_code == GOAL_MISSED else "measured"
        kind = "skipped" if self.exit_code == SKIPPED else f"failed with exit code {self.exit_code}"
        return f"{kind}: {self.error}" if self.error else kind

    @property
    def ratios(self) -> list[Ratio]:
        """None for a script that failed: it may have printed some before it found different outputs."""
        if not self.has_figures:
            return []
        found = re.finditer(RATIO_LINE, self.output, flags=re.MULTILINE)
        return [
            Ratio(each["case"], each["quantity"], each["reference"], each["kind"] == "limit", float(each["value"]))
            for each in found
        ]

    @property
    def machine_name(self) -> str:
        """The machine in few words: the CPU, its generation if that was recorded, its cores, and the GPU."""
        cpu = " ".join(re.sub(r"\(\w+\)|\bProcessor\b|\bCPU\b", "", self.machine["cpu"]).split())
        generation = f" ({self.machine['generation']})" if "generation" in self.machine else ""
        gpu = "" if self.machine["gpu"] == "none" else f", {self.machine['gpu']}"
        return f"{cpu}{generation}, {self.machine['cores']} cores{gpu}"

    def save(self, folder: Path) -> None:
        """Writes it into the folder of its machine, in place of an earlier one."""
        of_machine = folder / re.sub(r"\W+", "-", self.machine_name.lower())
        of_machine.mkdir(parents=True, exist_ok=True)
        (of_machine / f"{self.name}.json").write_text(json.dumps(dataclasses.asdict(self), indent=1) + "\n")


def load_results(folder: Path) -> list[Result]:
    """The results of all machines, in the order of machines and names."""
    return [Result(**json.loads(path.read_text())) for path in sorted(folder.glob("*/*.json"))]
