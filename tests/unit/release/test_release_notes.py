"""Release notes compare measured results only."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpprobe.errors import DataError
from dpprobe.privacy.statement_words import format_epsilon
from dpprobe.release.bundle import FACTS_FILE, Bundle, bundle_digest, read_bundle
from dpprobe.release.ledger.ledger import Ledger
from dpprobe.release.ledger.ledger_limits import Limits
from dpprobe.release.parts.evaluation.show import METRICS
from dpprobe.release.release_notes import state_difference, write_notes
from tests.support.bundles import LEDGER, PRIORS, write_example
from tests.support.edited_bundles import edit_file
from tests.support.refusals import check_tokens, refuses
from tests.support.releases import calibrated, measured, watched, with_tested
from tests.unit.release.ledger.test_ledger import DELTA, booking


def result(value: float, low: float, high: float, metric: str = "macro_accuracy") -> dict[str, Any]:
    """Returns the parts of a statement with a test result that the notes read."""
    block = measured(metric, value) | {"interval": [low, high]}
    plain = {"unit": "image", "public_data": {}, "epsilon_realised": 1.0}
    return with_tested({**plain, "evaluation": block})


USEFUL = result(0.86, 0.82, 0.90)
# 12 test units at a small epsilon: the interval covers nearly all accuracies
USELESS = result(0.499, 0.03, 0.98)


@pytest.mark.parametrize(
    ("now", "before"), [(USELESS, USEFUL), (USEFUL, USELESS), (USELESS, USELESS)]
)
def test_a_result_that_is_not_measurable_has_no_difference(
    now: dict[str, Any], before: dict[str, Any]
) -> None:
    said = state_difference(now, before)
    assert "not measurable" in said
    assert "more test units" in said, "no remedy"
    assert not any(letter.isdigit() for letter in said), f"states a number: {said}"
    assert "points" not in said


@given(
    st.sampled_from(["accuracy", "auc", "macro_accuracy"]),
    st.integers(20, 95),
    st.integers(20, 95),
    st.integers(0, 30),
    st.integers(0, 30),
)
def test_results_differ_if_their_intervals_do_not_meet(
    metric: str, now: int, before: int, wide: int, narrow: int
) -> None:
    """Margins are added, even if the results share images; here by hand in whole percent."""
    said = state_difference(
        result(now / 100, (now - wide) / 100, (now + wide) / 100, metric),
        result(before / 100, (before - narrow) / 100, (before + narrow) / 100, metric),
    )
    difference, margin = now - before, wide + narrow
    verdict = "cannot be told apart"
    if difference > margin + 1e-9:
        verdict = "higher than before"
    elif difference < -margin - 1e-9:
        verdict = "lower than before"
    elif abs(difference) == margin:
        return  # depends on rounding
    assert verdict in said, said
    digits = re.findall(r"[-+][\d.]+(?<!\.)", said)
    wanted = [difference, difference - margin, difference + margin]
    scale = 100 if metric == "auc" else 1
    assert [float(each) * scale for each in digits] == pytest.approx(wanted, abs=0.05), said
    assert (" points (" in said) == (metric != "auc")
    assert said.startswith(METRICS[metric] + ": ")


def leaves(values: dict[str, Any], place: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in values.items():
        inner = leaves(value, f"{place}{key}.") if isinstance(value, dict) else None
        found |= {f"{place}{key}": value} if inner is None else inner
    return found


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """Returns the first release."""
    place = tmp_path_factory.mktemp("old") / "v1"
    return read_bundle(write_example(place, evaluation=measured()))


@pytest.fixture(scope="module")
def new(old: Bundle) -> Bundle:
    """Returns a release of the same head that replaces the first."""
    place = old.folder.with_name("v2")
    made = write_example(place, name="lesions_v2", predecessor=old.folder, evaluation=measured())
    return read_bundle(made)


def altered(bundle: Bundle, statement: dict[str, Any], **facts: Any) -> Bundle:
    return replace(
        bundle,
        facts=bundle.facts.model_copy(update=facts),
        statement=with_tested({**bundle.statement, **statement}),
    )


def section(text: str, title: str) -> list[str]:
    """Returns the non-empty lines of a section."""
    after = text.partition(f"## {title}\n")[2].partition("\n## ")[0]
    return [line for line in after.splitlines() if line]


def of_nothing(lines: list[str]) -> bool:
    return len(lines) == 1 and lines[0].startswith("- nothing")


def test_the_notes_of_two_equal_releases_list_no_differences(old: Bundle, new: Bundle) -> None:
    text = write_notes(new, old)
    assert text.startswith("# `lesions_v2`, compared with `lesions_v1`\n")
    assert "names no predecessor" not in text
    assert of_nothing(section(text, "What changes for a deployment"))
    assert len(section(text, "What changes in training")) == 1
    verdict, *shown = section(text, "Test result")
    check_tokens(verdict, "+0.0 points", "-8.0 to +8.0")
    assert [line.partition(":")[0] for line in shown[:2]] == ["- `lesions_v1`", "- `lesions_v2`"]
    for line in shown[:2]:
        check_tokens(line, "Accuracy 81.2%", "77.2 to 85.2%", "n = 375")
    assert "test images" in shown[2]
    chosen = write_notes(old, new)
    check_tokens(chosen, "`lesions_v1` names no predecessor", "`lesions_v2`")


def test_facts_of_backbone_head_and_parts_are_listed_where_a_deployment_uses_them(
    old: Bundle, new: Bundle
) -> None:
    facts = new.facts
    backbone = facts.backbone.model_copy(update={"precision": "bfloat16", "dtype": "float16"})
    options = {**facts.head.options, "normalize": {"kind": "centred", "max_norm": 2.0}}
    head = facts.head.model_copy(
        update={"options": options, "class_priors": tuple(PRIORS.tolist()), "link": "none"}
    )
    blocks = {"monitor": watched()}
    lines = section(
        write_notes(altered(new, blocks, backbone=backbone, head=head), old),
        "What changes for a deployment",
    )
    changes = {
        ("backbone.precision", "`float32`", "`bfloat16`"),
        ("backbone.dtype", "`float32`", "`float16`"),
        ("normalisation", "`l2`", '`{"kind": "centred", "max_norm": 2.0}`'),
        ("probabilities", "`softmax`", "`none`"),
        ("--monitor", "`false`", "`true`"),
        ("classes", "`false`", "`true`"),
    }
    assert len(lines) == len(changes)
    for tokens in changes:
        assert any(all(token in line for token in tokens) for line in lines), tokens
    sure = altered(new, {"calibration": calibrated()}, head=head)
    lines = section(write_notes(sure, old), "What changes for a deployment")
    assert any("calibrated" in line and "now `true`" in line for line in lines)
    assert not any("`softmax`" in line for line in lines), "a calibration's are"


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("other", [None, measured("auc")])
def test_results_of_two_metrics_or_of_one_release_are_shown_and_not_compared(
    old: Bundle, new: Bundle, which: int, other: dict[str, Any] | None
) -> None:
    pair = [new, old]
    pair[which] = altered(pair[which], {"evaluation": other})
    verdict, *shown = section(write_notes(*pair), "Test result")
    assert "Difference" not in verdict
    words = "none" if other is None else "AUC 0.812"
    assert words in shown[1 - which]
    assert "Accuracy 81.2%" in shown[which]
    assert len(shown) == 2


def test_the_limit_leaves_what_is_not_spent(old: Bundle, new: Bundle) -> None:
    spent = altered(new, {"ledger": LEDGER | {"releases": 4, "epsilon": 2.31201, "exact": False}})
    for limit, left in ((5.0, "2.69"), (1.0, "0")):
        text = write_notes(spent, old, max_epsilon=limit)
        check_tokens(text, f"epsilon {limit:g}", f"leaves {left}")
        check_tokens(text, "one image", "at most epsilon 2.313 at delta 1e-5")
    assert "limit" not in write_notes(spent, old)


def test_a_bundle_that_is_not_its_predecessor_is_refused(
    old: Bundle, new: Bundle, tmp_path: Path
) -> None:
    other = Path(shutil.copytree(old.folder, tmp_path / "other"))
    edit_file(other, FACTS_FILE, lambda facts: facts.update(study="other"))
    with refuses(DataError, "predecessor", "lesions_v1"):
        write_notes(new, read_bundle(other))


def test_the_total_is_of_the_release_or_of_today(old: Bundle, new: Bundle, tmp_path: Path) -> None:
    ledger = Ledger.of_dataset(tmp_path, "lesions")
    with refuses(DataError, ledger.path):
        write_notes(new, old, ledger=ledger)
    for number, each in enumerate((old, new, None), 1):
        ledger.book_release(booking(f"secret_{number}"), Limits(delta=DELTA))
        if each:
            ledger.close_entry(number, bundle_digest(each.folder))
    text = write_notes(new, old, ledger=ledger, max_epsilon=5)
    spent = ledger.compute_spent(1e-5)
    assert spent.exact
    check_tokens(text, "3 releases", f"epsilon {format_epsilon(spent.epsilon)}", "epsilon 5")
    check_tokens(text, f"leaves {5 - spent.epsilon:.3g}")
    check_tokens(write_notes(new, old, ledger=ledger, max_epsilon=0.1), "leaves 0")
    assert not any(private in text for private in ("secret", "i" * 64, str(tmp_path), "ledger.j"))
