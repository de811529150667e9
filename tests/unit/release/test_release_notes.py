"""Release notes: what noise explains is no difference; what a deployment must change is told."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from dpprobe.artifacts import read_json
from dpprobe.errors import DataError
from dpprobe.release.bundle import FACTS_FILE, STATEMENT_FILE, bundle_digest, read_bundle
from dpprobe.release.documents import format_price
from dpprobe.release.ledger import Ledger
from dpprobe.release.ledger_prices import Limits
from dpprobe.release.release_notes import write_notes
from tests.support.bundles import write_example
from tests.support.edited_bundles import edit_file
from tests.support.releases import measured
from tests.unit.release.test_ledger import DELTA, booking


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_example(tmp_path_factory.mktemp("old") / "v1", evaluation=measured())


def successor(old: Path, folder: Path, **options: Any) -> Path:
    return write_example(folder / "v2", name="lesions_v2", predecessor=old, **options)


def notes(new: Path, old: Path, **options: Any) -> str:
    return write_notes(read_bundle(new), read_bundle(old), **options)


def test_the_same_head_again_changes_nothing(old: Path, tmp_path: Path) -> None:
    text = notes(successor(old, tmp_path, evaluation=measured(), epsilon=1.0), old)
    assert text.startswith("# `lesions_v2`, compared with `lesions_v1`\n\n## Test result\n\nAccur")
    assert "cannot be told apart. Difference +0.0 points (95% CI -8.0 to +8.0)." in text
    assert "- `lesions_v1`: Accuracy 81.2% (95% CI 77.2 to 85.2%), n = 375\n" in text
    assert "Different test images may explain a part of the difference." in text
    assert "| training units (n) | 1,500 | 1,500 |" in text
    assert "- nothing: classes, backbone and output are as before\n" in text
    assert text.endswith("## What changes in training\n\n- no option\n")


def test_a_deployment_is_told_what_it_must_change(old: Path, tmp_path: Path) -> None:
    new = successor(
        old, tmp_path, n=1600, classes=("nevus", "keratosis", "melanoma"),
        options={"head": "feature_covariance", "normalize": "centred", "steps": 9},
    )  # fmt: skip
    backbone = read_json(new / FACTS_FILE)["backbone"]
    backbone["preprocessing"] |= {"size": 224}
    changes = {"backbone": backbone | {"weights_sha256": "ab" * 32}, "dataset": "more lesions"}
    edit_file(new, FACTS_FILE, lambda facts: facts.update(changes))
    text = notes(new, old)
    for line in (
        "The test results cannot be compared: both releases must publish one metric.",
        "- `lesions_v2`: none",
        "| training units (n) | 1,500 | 1,600 |",
        "- class `naevus` is now `nevus`: renamed, or replaced",
        "- another order of classes in every output: `nevus`, `keratosis`, `melanoma`",
        f"- backbone.weights\\_sha256: none, now `{'ab' * 32}`",
        "- backbone.preprocessing.size: `8`, now `224`",
        "- dataset: `lesions`, now `more lesions`",
        "- options.steps: `6`, now `9`",
    ):
        assert f"{line}\n" in text, text
    assert "- normalisation: `l2`, now " in text


def test_a_bundle_that_is_not_its_predecessor_is_refused(old: Path, tmp_path: Path) -> None:
    new = successor(old, tmp_path)
    other = Path(shutil.copytree(old, tmp_path / "other"))
    edit_file(other, FACTS_FILE, lambda facts: facts.update(study="other"))
    with pytest.raises(DataError, match="not the predecessor that .* names, which is lesions_v1"):
        notes(new, other)
    chosen = "`lesions_v1` names no predecessor; this comparison with `lesions_v2` was chosen."
    assert chosen in notes(old, new)


def test_the_total_is_of_the_release_or_of_today(old: Path, tmp_path: Path) -> None:
    new = successor(old, tmp_path)
    ledger = Ledger.of_dataset(tmp_path, "lesions")
    with pytest.raises(DataError, match="has no entry of"):
        notes(new, old, ledger=ledger)
    for number, folder in enumerate((old, new, None), 1):
        ledger.book_release(booking(f"secret_{number}"), Limits(delta=DELTA))
        if folder:
            ledger.close_entry(number, bundle_digest(folder))
    text = notes(new, old, max_epsilon=5)
    assert "This was the only release of this dataset when this bundle was made." in text
    assert "The limit is epsilon 5, which leaves 4 if" in text
    text = notes(new, old, ledger=ledger, max_epsilon=5)
    spent = ledger.compute_spent(1e-5)
    assert spent.exact
    assert f"Today's total over 3 releases: epsilon {format_price(spent.epsilon)}." in text
    assert f"The limit is epsilon 5, which leaves {5 - spent.epsilon:.3g} if" in text
    assert "leaves 0 if" in notes(new, old, ledger=ledger, max_epsilon=0.1)
    assert not any(private in text for private in ("secret", "i" * 64, str(tmp_path), "ledger.j"))


def test_notes_name_tables_for_new_images_and_their_price(old: Path, tmp_path: Path) -> None:
    new = successor(old, tmp_path)
    block = {"epsilon": 0.75, "mechanisms": []}
    edit_file(new, STATEMENT_FILE, lambda values: values.update(monitor=block))
    told = notes(new, old)
    (line,) = (each for each in told.splitlines() if "calibration and monitoring" in each)
    assert line.endswith("| 0.75 |")
    assert "comparison of new images (--monitor)" in told
