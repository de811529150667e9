"""The studies of Mehta et al. 2022 and 2023, of ScatterNet and of radiographs fit the papers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from dpprobe.privacy.calibration import calibrate
from dpprobe.privacy.target import Target
from dpprobe.study.ablations import find_changes
from dpprobe.study.study import Study
from dpprobe.study.study_file import load_study
from tests.conftest import REPOSITORY
from tests.support.stored_records import check_values

STUDIES = ("large_scale_transfer", "features_second_order", "scatternet_", "medical_fine_tuning")
FILES = sorted(path for name in STUDIES for path in (REPOSITORY / "config").glob(f"{name}*.yaml"))


def study_of(name: str) -> Study:
    return load_study(yaml.safe_load((REPOSITORY / f"config/{name}.yaml").read_text()))


def as_text(options: Mapping[str, Any]) -> str:
    return json.dumps({key: value for key, value in options.items() if value is not None})


def test_studies_have_the_options_that_the_papers_print() -> None:
    """Rates and alphas of Mehta et al. 2022 (Tables 6 and 7), one change for each of its rows.

    Their heads are linear layers that write what they have, whatever the defaults become.
    """
    found = {}
    for path in FILES:
        study = study_of(path.stem)
        methods = {name: method.model_dump() for name, method in study.methods.items()}
        base = methods.get(study.papers.base or "")
        options = {name: as_text(method) for name, method in methods.items()}
        if base is not None:
            for name, method in methods.items():
                changed = sorted(find_changes(base, method))
                options[name] = json.dumps({key: method.get(key, "absent") for key in changed})
            options["base"] = as_text(base)
        bases = [getattr(each, "base", each) for each in study.methods.values()]
        written = {f"{each.head}: {' '.join(sorted(each.model_fields_set))}" for each in bases}
        found[path.stem] = {
            "options": options,
            "written": written,
            "backbones": {
                name: as_text(each.extraction_params()) for name, each in study.backbones.items()
            },
            "budgets": [study.epsilons, study.seeds, study.delta, study.accountant],
            "datasets": {
                name: [study.dataset_delta(name), study.dataset_unit(name), one.has_test()]
                for name, one in study.datasets.items()
            },
        }
    check_values("paper_studies", found)


@pytest.mark.parametrize(
    ("name", "method", "rows", "batch", "noise"),
    [
        ("scatternet_mnist_rdp", "channels", 60_000, 4096, 3.04),
        ("scatternet_fashion_mnist_rdp", "group_norm", 60_000, 8192, 4.05),
        ("scatternet_cifar10_rdp", "channels", 50_000, 8192, 5.67),
        ("cnn_mnist", "from_scratch", 60_000, 512, 1.23),
        ("cnn_fashion_mnist", "from_scratch", 60_000, 2048, 2.15),
        ("cnn_cifar10", "from_scratch", 50_000, 1024, 1.54),
        ("scatternet_cnn_mnist", "from_scratch", 60_000, 1024, 1.35),
    ],
)
def test_tramer_and_boneh_s_noise_comes_out_at_epsilon_3(
    tmp_path: Path, name: str, method: str, rows: int, batch: int, noise: float
) -> None:
    study = study_of(name)
    options = study.methods[method]
    assert (study.seeds, study.delta, options.model_dump()["max_grad_norm"]) == (5, 1e-5, 0.1)
    target = Target(n=rows, epsilon=3.0, delta=study.delta, accountant=study.accountant)
    plan = calibrate(options.list_mechanisms(rows), target, cache=tmp_path)
    gradients = plan.find_mechanism("gradients")
    assert gradients.sample_rate == pytest.approx(batch / rows)
    assert round(gradients.noise_multiplier, 2) == noise
    others = [item.noise_multiplier for item in plan.mechanisms if item is not gradients]
    assert others == pytest.approx([8.0] * len(others), rel=1e-3)
    (pld,) = (price for name, price in plan.checks.items() if name.startswith("pld"))
    assert pld == pytest.approx(2.37, abs=0.02)


def test_deltas_of_patients_are_one_over_those_that_train() -> None:
    study = study_of("medical_fairness")
    # 64,540 training patients of CheXpert less a tenth; 65,379 of MIMIC-CXR less 500 and 293
    for dataset, patients in (("chexpert", 58_086), ("mimic_cxr", 64_586)):
        assert 0.96 / patients < study.dataset_delta(dataset) < 1 / patients
