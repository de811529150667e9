"""Reads the chain of cohorts that a release continues, and writes the next release's file.

    <data_dir>/<dataset>/cohort-<release>.entry-<number>.safetensors    mode 0600

A cohort is a separate dataset: the units that arrived since the previous release. A cohort's file
has the release's noisy sums (`outputs`) and the head's `weights`. With a horizon the file also has
the exact `sums`, which are as private as the images. A cohort's file is written before the bundle,
so each closed entry has a file. `running_sums` documents the mathematics and the privacy cost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy.typing as npt

from dpprobe.errors import ConfigError, DataError, PrivacyError
from dpprobe.files.array_files import hash_arrays, pack_arrays, read_arrays
from dpprobe.files.atomic_writes import write_private
from dpprobe.files.disk_errors import require_room
from dpprobe.heads.facts import DataFacts
from dpprobe.heads.fitted import Heads
from dpprobe.heads.joint_fits import cohort_fault
from dpprobe.json_values import hash_value
from dpprobe.privacy.plan import Plan
from dpprobe.privacy.running_sums import Cohort, Factorisation, RunningSums
from dpprobe.privacy.unit_words import UnitWords, words_of_statement
from dpprobe.release.bundle import published_options, read_bundle
from dpprobe.release.described_backbone import hash_backbone
from dpprobe.release.ledger.ledger import Ledger
from dpprobe.release.ledger.ledger_file import Entry
from dpprobe.release.parts.part import Facts, PartReader, PartSteps
from dpprobe.release.stated_values import Values, read_block, read_whole, require_same, require_true
from dpprobe.release.transport import Block

FORMAT = "dpprobe-cohort"
FORMAT_VERSION = 1
_LOST = "restore the file from a backup, or begin a new chain without `predecessor`"


class Link(NamedTuple):
    """One release in a chain: dataset, name, label of its cohort, and number of units."""

    dataset: str
    release: str
    label: str
    n: int


@dataclass(frozen=True, kw_only=True)
class Chain:
    """The cohorts before a release, oldest first.

    Attributes:
      binds: hashes of options and facts that all releases of a chain must share, by name.
    """

    factorisation: Factorisation
    links: tuple[Link, ...] = ()
    cohorts: tuple[Cohort, ...] = ()
    binds: Mapping[str, str] | None = None


def describe_cohort(
    label: str, earlier: Sequence[Mapping[str, Any]], *, horizon: int | None, n: int
) -> dict[str, Any]:
    """Returns a statement's block `cohort`: the units on which a head was trained.

    Raises ConfigError for a horizon out of range, PrivacyError for a place beyond the horizon.
    """
    factorisation, place = Factorisation.make(horizon), len(earlier) + 1
    factorisation.check_place(place)
    return {
        "name": label,
        "place": place,
        "horizon": horizon,
        "units": n + sum(one["n"] for one in earlier),
        "noise_growth": factorisation.noise_growth(place),
        "earlier": [dict(one) for one in earlier],
    }


def read_chain(data_dir: Path, *, dataset: str, release: str) -> Chain:
    """Reads a release's cohort and all previous cohorts.

    Raises:
      PrivacyError: if the release was not finished, or has no cohort.
      DataError: for a missing or damaged file.
    """
    ledger = Ledger.of_dataset(data_dir, dataset)
    entry = ledger.entry_of(release)
    if entry is None or entry.state != "closed":
        raise PrivacyError(
            f"predecessor {release}: {ledger.path} has no finished release of this name; make it "
            "first"
        )
    path = cohort_path(ledger.path.parent, release, entry.number)
    described, cohort = read_cohort(path)
    link = Link(dataset, release, described["label"], cohort.n)
    factorisation = Factorisation.make(described["horizon"])
    if described["earlier"] is None:
        chain = Chain(factorisation=factorisation)
    else:
        chain = read_chain(data_dir, **described["earlier"])
    return replace(
        chain,
        links=(*chain.links, link),
        cohorts=(*chain.cohorts, cohort),
        binds=described["binds"],
    )


def write_cohort(
    path: Path, chain: Chain, cohort: Cohort, *, label: str, binds: Mapping[str, str]
) -> None:
    arrays: dict[str, npt.NDArray[Any]] = {
        **{f"outputs.{name}": values for name, values in cohort.outputs.items()},
        **{f"sums.{name}": values for name, values in cohort.sums.items()},
    }
    if cohort.weights is not None:
        arrays["weights"] = cohort.weights
    last = chain.links[-1] if chain.links else None
    described = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "label": label,
        "horizon": chain.factorisation.horizon,
        "n": cohort.n,
        "steps": dict(cohort.steps),
        "binds": dict(binds),
        "earlier": last and {"dataset": last.dataset, "release": last.release},
        "sha256": hash_arrays(arrays),
    }
    write_private(path, pack_arrays(arrays, described))


def cohort_path(folder: Path, release: str, entry: int) -> Path:
    return folder / f"cohort-{release}.entry-{entry}.safetensors"


def read_cohort(path: Path) -> tuple[dict[str, Any], Cohort]:
    """Reads the file that `write_cohort` wrote; raises DataError if it is missing or damaged."""
    if not path.exists():
        raise DataError(
            f"{path}: missing; a chain of cohorts begins with a release that has `cohort`. If "
            f"this release has `cohort`, {_LOST}"
        )
    try:
        described, arrays = read_arrays(path, kind=FORMAT, version=FORMAT_VERSION)
        if hash_arrays(arrays) != described["sha256"]:
            raise DataError("the file's numbers have changed")
        cohort = Cohort(
            n=described["n"],
            outputs=_part_of(arrays, "outputs."),
            sums=_part_of(arrays, "sums."),
            steps=described["steps"],
            weights=arrays.get("weights"),
        )
    except (OSError, ValueError, KeyError, DataError) as error:
        raise DataError(f"{path}: cannot be used ({error}); {_LOST}") from error
    return described, cohort


def _part_of(arrays: Mapping[str, npt.NDArray[Any]], prefix: str) -> dict[str, npt.NDArray[Any]]:
    return {
        name.removeprefix(prefix): values
        for name, values in arrays.items()
        if name.startswith(prefix)
    }


class Steps(PartSteps):
    @cached_property
    def _chain(self) -> Chain | None:
        """The chain of previous cohorts; None for a release without `cohort`."""
        release, options = self.release, self.release.options
        if options.cohort is None:
            return None
        factorisation = Factorisation.make(options.horizon)
        if (folder := release.locate_predecessor()) is None:
            return Chain(factorisation=factorisation)
        before = read_bundle(folder).facts
        data = Path(release.study.data_dir)
        chain = read_chain(data, dataset=before.dataset, release=before.name)
        if chain.factorisation != factorisation:
            raise ConfigError(
                f"release {release.name}: horizon {options.horizon}, but the horizon of "
                f"{before.name} is {chain.factorisation.horizon}; use equal horizons"
            )
        return chain

    @cached_property
    def _running(self) -> RunningSums | None:
        """The running sums that the fit continues; raises an error if options do not match."""
        if (chain := self._chain) is None:
            return None
        release, method, dataset = self.release, self.planned.method, self.release.options.dataset
        if fault := cohort_fault(method):
            raise ConfigError(f"release {release.name}: method {release.options.method}: {fault}")
        if dataset in (link.dataset for link in chain.links):
            raise PrivacyError(
                f"dataset {dataset}: its units are in this chain of cohorts already, and would "
                "count twice; use a dataset of new units"
            )
        binds = self.list_binds()
        if other := [name for name in binds if chain.binds and chain.binds[name] != binds[name]]:
            raise PrivacyError(
                f"predecessor {chain.links[-1].release}: has another "
                f"{', another '.join(other)} than release {release.name}; the sums of a chain add "
                "up only if all releases agree"
            )
        names = method.running_sums or ()
        return RunningSums(chain.factorisation, chain.cohorts, names=names, n=self.planned.plan.n)

    def list_binds(self) -> dict[str, str]:
        """Hashes options and facts that all releases of a chain share, by name (for errors)."""
        release, planned, store = self.release, self.planned, self.release.stores[0]
        return {
            "method": hash_value(published_options(planned.method)),
            "backbone": hash_backbone(store),
            "class list": hash_value(list(store.class_names)),
            "epsilon or delta": hash_value([each.to_dict() for each in planned.plan.mechanisms]),
            "unit of privacy": hash_value([release.unit, release.promise.unit_column]),
        }

    def check(self) -> Block | None:
        chain = self._chain
        if self._running is None or chain is None:
            return None
        store, folder = self.release.stores[0], self.release.ledger.path.parent
        columns = store.dimension + 1
        require_room(folder, 2 * 8 * columns * (columns + store.num_classes))
        return describe_cohort(
            str(self.release.options.cohort),
            [{"release": one.release, "cohort": one.label, "n": one.n} for one in chain.links],
            horizon=chain.factorisation.horizon,
            n=self.planned.plan.n,
        )

    def count_useful(self) -> DataFacts | None:
        """Returns facts of all cohorts for the planner, because benchmarks have only new rows."""
        running, facts = self._running, self.planned.facts
        if running is None or not running.earlier:
            return None
        # mu is nearly proportional to epsilon
        return replace(facts, n=running.total, epsilon=facts.epsilon / running.noise_growth)

    def describe_booking(self) -> dict[str, str | None]:
        chain = self._chain
        if chain is None or not chain.factorisation.keeps_sums:
            return {}
        # With a horizon, later releases read exact sums again, so each place is used only once.
        dataset, release = self.release.options.dataset, self.release.name
        if chain.links:
            dataset, release, *_ = chain.links[0]
        return {"place": f"{dataset}/{release} {len(chain.links) + 1}"}

    def continue_sums(self) -> RunningSums | None:
        return self._running

    def keep(self, heads: Heads, entry: Entry) -> None:
        if self._running is not None and self._chain is not None:
            write_cohort(
                self._locate(entry),
                self._chain,
                self._running.make_cohort(heads.weights[0]),
                label=str(self.release.options.cohort),
                binds=self.list_binds(),
            )

    def drop(self, entry: Entry) -> None:
        self._locate(entry).unlink(missing_ok=True)

    def _locate(self, entry: Entry) -> Path:
        return cohort_path(self.release.ledger.path.parent, self.release.name, entry.number)


# verification and words

COHORT_KEYS = {"name", "place", "horizon", "units", "noise_growth", "earlier"}


def check_cohort(values: Values, plan: Plan) -> tuple[str, bool]:
    """Recomputes the block `cohort` from its names, its horizon and the numbers of units."""
    block = read_block("cohort", values["cohort"], COHORT_KEYS)
    require_true(isinstance(block["name"], str), f"cohort.name: {block['name']!r} is not a name")
    for place, one in enumerate(block["earlier"]):
        read_block(f"cohort.earlier.{place}", one, {"release", "cohort", "n"})
        read_whole(f"cohort.earlier.{place}.n", one["n"])
        require_true(
            all(isinstance(one[key], str) for key in ("release", "cohort")), "cohort: not a name"
        )
    expected = describe_cohort(block["name"], block["earlier"], horizon=block["horizon"], n=plan.n)
    require_same("cohort", expected, block)
    before = values.get("predecessor") or {"name": None}
    last = block["earlier"][-1]["release"] if block["earlier"] else before["name"]
    require_true(
        before["name"] == last,
        f"cohort: the sums are those of {last}, which is not the predecessor",
    )
    unit = words_of_statement(values)
    return f"number {block['place']} of its chain, {block['units']:,} {unit.many}", True


def explain_cohort(block: Facts | None, unit: UnitWords, statement: Facts) -> dict[str, Any]:
    """States on which units a head was trained, and which releases their epsilon covers."""
    if block is None:
        return {"cohort": None}
    place, horizon, names = (
        block["place"],
        block["horizon"],
        [e["release"] for e in block["earlier"]],
    )
    said = (
        f"Cohort {block['name']}, number {place}{f' of at most {horizon}' if horizon else ''} in "
        "its chain."
    )
    if names:
        listed = ", ".join(names) if place <= 4 else f"{names[0]} to {names[-1]}"
        units = unit.one if block["units"] == 1 else unit.many
        said += (
            f" With the noisy sums of {listed} it has learned from {block['units']:,} {units}, "
            f"{statement['n']:,} of them new."
        )
    covered = (
        f"all {horizon} releases together"
        if horizon
        else "all later releases too, which use its noisy sums"
    )
    return {"cohort": f"{said} The epsilon of each {unit.one} of one cohort covers {covered}."}


READER = PartReader("cohort", check_cohort, values=explain_cohort)
