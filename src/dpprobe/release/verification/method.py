"""Checks a bundle's options, its mechanisms, and the head that they imply."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load

from dpprobe.heads import normalisation as kinds
from dpprobe.heads.auto import Options as Auto
from dpprobe.heads.auto_rule import EARLIER, RULE
from dpprobe.heads.fitted import CLASS_PRIORS, STUDENT_GAIN
from dpprobe.heads.options import MethodOptions
from dpprobe.heads.plan_check import check_plan
from dpprobe.heads.search_space import Range
from dpprobe.heads.student_options import gain_threshold
from dpprobe.heads.tuned_options import Options as Tuned
from dpprobe.json_values import canonical_json
from dpprobe.privacy.plan import Plan
from dpprobe.release.bundle import (
    HEAD_FILE,
    WEIGHTS,
    BundleFacts,
    StudentFacts,
    mark_head,
    published_options,
)
from dpprobe.release.checks import Checks
from dpprobe.release.documents.rewritten_documents import data_facts
from dpprobe.release.earlier_bundles import take_options
from dpprobe.release.stated_values import Values, read_real, require_same, require_true
from dpprobe.release_part_registry import load_readers

Array = npt.NDArray[Any]

# Largest header of a safetensors file, in bytes.
HEADER_BYTES = 2**20


def read_options(facts: BundleFacts) -> tuple[str, MethodOptions]:
    """Checks the head's options, and the facts of bundle.json that follow from the options."""
    head = facts.head
    options = head.read_options()
    _check_stated("head.options", published_options(options), take_options(head.options))
    link = options.link_on(facts.multi_label)
    require_true(head.link == link, f"head.link: {head.link}, but these options have {link}")
    require_true(
        options.multi_label or not facts.multi_label,
        f"multi_label: head {options.head} with these options takes one label per row",
    )
    require_true(
        (head.class_priors is not None) == options.releases_priors,
        f"head.{CLASS_PRIORS}: present or absent, contrary to the options",
    )
    require_true(
        (head.student is not None) == options.has_student,
        "head.student: present or absent, contrary to the options",
    )
    if isinstance(options, Tuned):
        _check_chosen(options, head.chosen)
    else:
        require_true(
            head.chosen is None,
            "head.chosen: belongs to a search, but these options have no search",
        )
    return f"head {options.head}, normalize {options.normalize.kind}", options


def _check_stated(name: str, read: Any, stated: Any) -> None:
    """Compares options; a bundle lacks newer options, which must have their defaults."""
    if isinstance(read, Mapping) and isinstance(stated, Mapping) and stated.keys() <= read.keys():
        for key, value in stated.items():
            _check_stated(f"{name}.{key}", read[key], value)
        return
    require_same(name, read, stated)


def _check_chosen(options: Tuned, chosen: Values | None) -> None:
    require_true(
        chosen is not None and "score" in chosen, "head.chosen: missing, or without a score"
    )
    values = {name: value for name, value in (chosen or {}).items() if name != "score"}
    read_real("head.chosen.score", (chosen or {})["score"])
    require_true(set(values) == set(options.search), "head.chosen: not the options of the search")
    for name, value in values.items():
        space = options.search[name]
        inside = (
            space.low <= read_real(name, value) <= space.high
            if isinstance(space, Range)
            else canonical_json(value) in {canonical_json(item) for item in space}
        )
        require_true(inside, f"head.chosen.{name}: {value!r} is not in the search space")
    options.make_trial(values)


def check_engine(options: MethodOptions) -> tuple[str, bool]:
    require_true(
        options.is_exact,
        f"head {options.head}: its releases are not exact, so low bits may reveal which terms "
        "were added; train it with `engine: exact`",
    )
    return "sums are whole numbers and noise is rounded, so low bits reveal nothing", True


def check_mechanisms(options: MethodOptions, plan: Plan) -> tuple[str, bool]:
    """Compares sensitivities, counts, sampling rates and shares of noise with the options."""
    check_plan(options, plan)
    require_true(
        [item.name for item in plan.mechanisms]
        == [item.name for item in options.list_mechanisms(plan.n)],
        "mechanisms: their order differs from the method's mechanisms",
    )
    each = ", ".join(f"{item.count} of {item.name}" for item in plan.mechanisms)
    return f"sensitivities, rates and counts match the options: {each}", True


def check_rule(
    checks: Checks,
    options: Auto,
    plan: Plan | None,
    facts: BundleFacts | None,
    values: Values | None,
) -> None:
    """Checks that the bundle's rule of `auto` chooses these options; notes an unknown rule."""
    if options.rule not in (RULE, *EARLIER):
        checks.note_check(
            "rule of auto",
            None,
            f"rule {options.rule} chose head {options.trained_head.head}; not checked, because "
            f"this dpprobe has rule {RULE}",
        )
    else:
        checks.run_check(
            "rule of auto", lambda *inputs: _check_rule(options, *inputs), plan, facts, values
        )


def _check_rule(options: Auto, plan: Plan, bundle: BundleFacts, values: Values) -> tuple[str, bool]:
    facts = data_facts(options, plan, bundle, values)
    assert options.rule is not None, "only a decided choice has a head"
    names = ("balanced", "public", "public_head", "student_share")
    asked = Auto(**{name: getattr(options, name) for name in names})
    expected = asked.repeat_choice(options.rule, facts, exact=True)
    require_same("head.options", expected.model_dump(mode="json"), options.model_dump(mode="json"))
    return f"rule {options.rule} chooses these options from public facts only", True


def check_head(
    folder: Path, facts: BundleFacts, options: MethodOptions, plan: Plan, values: Values
) -> tuple[str, bool]:
    """Checks names, types, shapes and finiteness of the head's tensors, and the private mark."""
    readers = load_readers().values()
    shapes = {
        WEIGHTS: (len(facts.class_names), facts.dimension + 1),
        **list_arrays(options.normalize, facts.dimension),
        **({CLASS_PRIORS: (len(facts.class_names),)} if options.releases_priors else {}),
        **({STUDENT_GAIN: (2,)} if options.has_student else {}),
    }
    for reader in readers:
        shapes |= reader.list_arrays(values, plan, options, facts)
    size = 4 * sum(math.prod(shape) for shape in shapes.values())
    path = folder / HEAD_FILE
    require_true(
        size < path.stat().st_size <= size + HEADER_BYTES,
        f"{path.stat().st_size} bytes, but the tensors of these options need {size}",
    )
    content = path.read_bytes()
    tensors = load(content)
    _check_tensors(tensors, shapes)
    if options.releases_priors:
        _check_priors(tensors[CLASS_PRIORS], facts.head.class_priors or ())
    if facts.head.student is not None:
        check_student(tensors[STUDENT_GAIN], facts.head.student, plan)
    for reader in readers:
        reader.check_arrays(tensors)
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    require_same("metadata", mark_head(facts, plan.epsilon), header.get("__metadata__"))
    return f"{', '.join(map(str, shapes))}: shapes as the options imply, all finite", True


def _check_tensors(tensors: Mapping[str, Array], shapes: Mapping[str, tuple[int, ...]]) -> None:
    given = {name: values.shape for name, values in tensors.items()}
    require_true(given == shapes, f"tensors {given}; the options imply {shapes}")
    for name, values in tensors.items():
        require_true(values.dtype == np.float32, f"{name}: {values.dtype}, not float32")
        require_true(bool(np.isfinite(values).all()), f"{name}: holds NaN or infinity")


def _check_priors(priors: Array, stated: Sequence[float]) -> None:
    require_true(
        bool((priors > 0).all()) and math.isclose(float(priors.sum()), 1, rel_tol=1e-4),
        f"{CLASS_PRIORS}: not class frequencies above 0 with sum 1",
    )
    require_same(f"head.{CLASS_PRIORS}", priors.tolist(), list(stated))


def check_student(released: Array, stated: StudentFacts, plan: Plan) -> None:
    """Checks that the choice of the head follows from the released gain and the plan's noise."""
    threshold = float(np.float32(gain_threshold(plan)))
    require_same("head.student.threshold", threshold, stated.threshold)
    require_same(f"head.{STUDENT_GAIN}", released.tolist(), [stated.gain, stated.threshold])
    require_same("head.student.used", stated.gain > stated.threshold, stated.used)


def list_arrays(spec: kinds.Normalisation, dimension: int) -> dict[str, tuple[int, ...]]:
    """Lists the arrays that a normalisation releases, with their shapes."""
    if isinstance(spec, kinds.AroundCentre):
        return {kinds.CENTRE: (dimension,)}
    if isinstance(spec, kinds.Channels):
        return dict.fromkeys((kinds.CHANNEL_MEANS, kinds.CHANNEL_DEVIATIONS), (spec.channels,))
    return {}
