"""The seconds of a command by stage: a process times the calls of functions that stand for a stage."""

import time
from collections import Counter
from collections.abc import Callable
from typing import Any


class StageClock:
    """Seconds of each stage. Code between the stages counts as "other"."""

    def __init__(self, begin: float):
        self.last = begin
        self.seconds: Counter[str] = Counter()

    def lap(self, stage: str) -> None:
        now = time.time()
        self.seconds[stage] += now - self.last
        self.last = now

    def timed(self, stage: str, function: Callable[..., Any], before: str = "other") -> Callable[..., Any]:
        """The function, which ends the stage `before` when it is called, and its own when it returns."""

        def call(*arguments: Any, **options: Any) -> Any:
            self.lap(before)
            result = function(*arguments, **options)
            self.lap(stage)
            return result

        return call
