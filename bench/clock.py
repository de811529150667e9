"""Times engines in turns: processor time on a CPU, synchronised wall time on a GPU."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

# An engine whose step takes longer than this is measured only in the first and the last round.
SLOW_SECONDS = 5.0
_LOOK_SECONDS = 0.05

Work = Callable[[], object]
Timed = Callable[[int], float]  # takes a number of steps, and returns the steps' seconds


@dataclass(frozen=True)
class Clock:
    """Measures the seconds of work on a device."""

    device: str

    def seconds(self, work: Work) -> float:
        if self.device == "cpu":
            started = time.process_time()
            work()
            return time.process_time() - started
        torch.cuda.synchronize()
        started = time.perf_counter()
        work()
        torch.cuda.synchronize()
        return time.perf_counter() - started

    def repeated(self, work: Work) -> Timed:
        """Returns a function that times a number of calls of `work`."""

        def calls(count: int) -> None:
            for _ in range(count):
                work()

        return lambda count: self.seconds(lambda: calls(count))


@dataclass
class Engine:
    """A computation that is measured once per round.

    Attributes:
      run: takes a number of steps and returns the steps' seconds.
      most: the maximum number of steps in one measurement.
      steps: number of steps of one measurement, set by `calibrate`.
      times: seconds per step in each round; None for a round that a slow engine skips.
    """

    run: Timed
    most: int = 10**6
    steps: int = 1
    slow: bool = False
    times: list[float | None] = field(default_factory=list)

    def calibrate(self, target: float) -> None:
        """Warms up, and finds how many steps take about `target` seconds."""
        steps, taken = 1, self.run(1)
        if taken > SLOW_SECONDS:
            taken = self.run(1)  # the first call may have compiled the code
        if taken > SLOW_SECONDS:
            self.slow = True
            self.times = [taken]
            return
        if taken < 4 * target:
            taken = self.run(1)  # the first call also filled caches that later calls reuse
        while taken < target / 4 and steps < self.most:
            steps = min(self.most, 4 * steps)
            taken = self.run(steps)
        self.steps = max(1, min(self.most, round(target * steps / max(taken, 1e-9))))

    def measure(self, number: int, rounds: int) -> None:
        """Measures round `number`; a slow engine's calibration already was its first round."""
        if self.slow and number == 0:
            return
        if self.slow and number < rounds - 1:
            self.times.append(None)
            return
        self.times.append(self.run(self.steps) / self.steps)

    @property
    def median(self) -> float:
        return statistics.median(value for value in self.times if value is not None)

    @property
    def fastest(self) -> float:
        return min(value for value in self.times if value is not None)


@dataclass(frozen=True)
class Ratio:
    """One engine's time over another's: the ratio of medians, and the extremes over rounds."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, above: Engine, below: Engine, factor: float = 1.0) -> Ratio:
        pairs = zip(above.times, below.times, strict=True)
        each = [factor * a / b for a, b in pairs if a is not None and b is not None]
        return cls(factor * above.median / below.median, min(each), max(each))

    def __str__(self) -> str:
        if self.low == self.high:
            return number(self.value)
        return f"{number(self.value)} ({number(self.low)} to {number(self.high)})"


def number(value: float) -> str:
    """Formats a number with fewer decimals the larger it is: 0.05, 2.34, 12.3, 123."""
    if value < 0.1:
        return f"{value:.2g}"
    return f"{value:.2f}" if value < 3 else f"{value:.1f}" if value < 20 else f"{value:.0f}"


class Fastest:
    """Calls the fastest of several functions with equal results; the first call selects it."""

    def __init__(self, ways: Sequence[Timed]) -> None:
        self._ways = list(ways)

    def __call__(self, steps: int) -> float:
        if len(self._ways) > 1:
            self._ways = [min(self._ways, key=_quick_look)]
        return self._ways[0](steps)


def _quick_look(way: Timed) -> float:
    """Returns the seconds per step of a short measurement, or of a single long step."""
    taken = way(1)
    steps = max(1, int(_LOOK_SECONDS / max(taken, 1e-9)))
    return taken if steps == 1 else way(steps) / steps
