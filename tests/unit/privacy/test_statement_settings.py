"""The privacy statement."""

from __future__ import annotations

import itertools
import json
import math
import operator
import re
from dataclasses import replace
from functools import cache
from typing import Any, cast

from scipy.stats import norm

from dpprobe.errors import PrivacyError
from dpprobe.finetune.options import SEARCHED
from dpprobe.heads.registry import method_options
from dpprobe.privacy import accountants
from dpprobe.privacy.plan import Patients, Plan, Selection
from dpprobe.privacy.statement import Declared, Statement, mechanisms_of, unit_of_statement
from tests.support.mechanisms import gaussians
from tests.support.stored_records import check_values


@cache
def plan(epsilon: float = 1.0) -> Plan:
    private = math.isfinite(epsilon)
    centre = gaussians(9.0 if private else 0.0, name="covariance")
    steps = gaussians(5.0 if private else 0.0, 0.02, 500, "gradients")
    mechanisms = (
        replace(centre, released="sum of outer products of clipped rows"),
        replace(
            steps,
            released="sum of the sampled rows' clipped gradients, one per step",
            sensitivity=1.2,
        ),
    )
    return Plan(
        mechanisms=mechanisms,
        n=1600,
        epsilon=epsilon,
        delta=1e-5,
        accountant="pld",
        realised_epsilon=accountants.compute_epsilon(mechanisms, 1e-5, "pld"),
        priced_by=accountants.describe_accountant(mechanisms, "pld"),
        checks={"prv": 0.999} if private else {},
    )


def state(epsilon: float = 1.0, **changes: Any) -> dict[str, Any]:
    values: dict[str, Any] = {
        "plan": plan(epsilon),
        "method": "paper",
        "mode": "benchmark",
        "seeds": [1, 2**127],
        "options": {"head": "sgd", "learning_rate": 0.1, "engine": "closed_form"},
        "epsilon_all_heads": 1.6 if math.isfinite(epsilon) else math.inf,
        **of_backbone(),
        **changes,
    }
    head = method_options(values["options"])
    values["private_choices"] = head.private_choices
    values["priced_normalisation"] = head.normalize.priced
    values["released_priors"] = head.releases_priors
    values["engine_limits"] = head.engine_limits
    return Statement(**values).to_dict()


def test_a_reviewer_can_redo_the_accounting() -> None:
    values = json.loads(json.dumps(state(), allow_nan=False))
    again = accountants.compute_epsilon(mechanisms_of(values), values["delta"], "pld")
    assert again == values["epsilon_realised"] <= values["epsilon_target"] == 1.0


FREQUENCIES = {"head": "momentum", "class_priors": "released", "normalize": "l2"}
TUNED = {"head": "tuned", "base": {"head": "sgd"}, "search": {"learning_rate": [0.1, 1]}}
BATCHES = {"head": "sgd", "max_batch_grad_norm": 1.5}
UNPRICED = {"head": "fine_tune", "tune": "head", "search": {"space": {"learning_rate": [0.1, 1]}}}
SEARCH = Selection(mean=10, repeated=("gradients",))
NEAR: dict[str, Any] = {"threshold": 0.9, "train": {"near": 3, "exact": 1, "rows": 100}}
NONE_NEAR = NEAR | {"train": NEAR["train"] | {"near": 0}}
BY_FILE = Declared(study="lesions", files={"public_covariance": "m"}, hashes={"m": "ab" * 32})
OUTSIDE = {"backbone_options": {"family": "external", "model": "some"}}
DRAWN = {"subsample": {"fraction": 0.25, "public_seed": 7}}
RULE = {"rule": "the rule of `auto`", "head": "sgd", "n": 1600, "classes": 3}


def of_backbone(**facts: Any) -> dict[str, Any]:
    usual = {"backbone": "resnet50", "trained": True, "near_duplicate_check": "not run"}
    return {"public_data": usual | facts}


def state_with(**changes: Any) -> dict[str, Any]:
    """A statement; values of the plan may be changed too."""
    made = plan(changes.pop("epsilon", 1.0))
    if changes.pop("whole", False):  # without sampled steps
        last = replace(made.mechanisms[1], sample_rate=1.0, count=20)
        made = replace(made, mechanisms=(made.mechanisms[0], last))
    if changes.get("options", {}).get("head") == "nonprivate":
        made = Plan(mechanisms=(), n=1600, epsilon=math.inf, delta=1e-5, accountant="pld")
    own = {key: changes.pop(key) for key in list(changes) if key in Plan.__dataclass_fields__}
    together = {} if made.private else {"epsilon_all_heads": math.inf}
    stated = state(plan=replace(made, **own), **together | changes)
    return cast("dict[str, Any]", json.loads(json.dumps(stated, allow_nan=False)))


# What most affects the words, and every other fact: each is stated together with each.
WORLDS: dict[str, dict[str, Any]] = {
    "two heads": {"whole": True},
    "release": {"mode": "release", "seeds": [1], "whole": True},
    "patients": {"unit": "patient", "whole": True},
    "infinite": {"epsilon": math.inf},
    "nonprivate": {"options": {"head": "nonprivate"}},
    "unpriced": {"options": UNPRICED, "network": True, "whole": True},
}
FACTS: dict[str, dict[str, Any]] = {
    "none": {},
    "sampled": {"whole": False},
    "one head": {"seeds": [1], "epsilon_all_heads": 1.0},
    "three heads": {"seeds": [1, 2, 3], "epsilon_all_heads": 2.25},
    "frequencies": {"options": FREQUENCIES},
    "normalisation": {"options": {"head": "feature_covariance"}},
    "both": {"options": FREQUENCIES | {"normalize": "centred"}},
    "search": {"selection": SEARCH, "options": TUNED},
    "draft": {"mode": "draft"},
    "search of all": {
        "selection": Selection(mean=2.5, repeated=("covariance", "gradients")),
        "options": TUNED,
    },
    "searched norm": {
        "options": TUNED | {"base": BATCHES, "search": {"max_batch_grad_norm": [1, 2]}}
    },
    "base with norm": {"options": TUNED | {"base": BATCHES}},
    "norm": {"options": BATCHES},
    "chosen norm": {"options": {"head": "auto", "rule": 1, "chosen": BATCHES}},
    "network": {"network": True},
    "two networks": {"network": True, "selection": SEARCH, "options": TUNED},
    "delta is 1/n": {"n": 100_000},
    "delta above 1/n": {"n": 100_001},
    "groups": {"unit": "group"},
    "rows": {"unit": "row", "copies": {"rows": 5, "most": 2}},
    "copies": {"copies": {"rows": 12, "most": 3}},
    "no copies": {"copies": {"rows": 0, "most": 1}},
    "files": {"declared": BY_FILE},
    "no files": {"declared": Declared(study="lesions", files={}, hashes={})},
    "rule": {"chosen_from": RULE},
    "exact": {"options": {"head": "sgd", "engine": "exact"}},
    "least squares": {"options": {"head": "least_squares"}},
    "near": of_backbone(near_duplicate_check=NEAR),
    "none near": of_backbone(near_duplicate_check=NONE_NEAR),
    "untrained": of_backbone(trained=False, near_duplicate_check=NEAR),
    "drawn": of_backbone(**DRAWN),
    "vectors": of_backbone(**OUTSIDE) | {"copies": {"rows": 12, "most": 3}},
    "vectors of a version": of_backbone(
        trained=False,
        backbone_options=OUTSIDE["backbone_options"] | {"version": "2", "weights_sha256": "ab"},
    ),
    "vectors of groups": of_backbone(**OUTSIDE, **DRAWN) | {"unit": "group"},
    "five images": {"patients": Patients(images=5, epsilon=2.5)},
    "five images, no price": {"patients": Patients(images=5)},
    "five images, infinite": {"patients": Patients(images=5, epsilon=math.inf)},
    "any images": {"patients": Patients(images=None)},
    "risk": {"risk": {"advantage": 0.25}},
    "unsure": {"checks": {"prv": None}, "check_notes": {"prv": "too coarse"}},
}


def abridge(values: Any, usual: Any) -> Any:
    """What a statement has otherwise than the usual one, and texts from where they differ."""
    if isinstance(values, dict) and isinstance(usual, dict) and usual:
        left = {key: abridge(value, usual.get(key)) for key, value in values.items()}
        left = {key: left[key] for key, value in values.items() if usual.get(key) != value}
        return left | dict.fromkeys(usual.keys() - values.keys())
    if isinstance(values, list) and isinstance(usual, list) and len(values) == len(usual):
        return [abridge(*pair) for pair in zip(values, usual, strict=True)]
    if isinstance(values, str) and isinstance(usual, str):
        same = [*map(operator.eq, values, usual), False].index(False)
        return [same, values[same:]] if same else values
    return values


def test_statements_say_what_each_fact_releases_and_leaves_uncovered() -> None:
    stated: dict[str, dict[str, Any]] = {}
    refused = {}
    for (world, common), (name, fact) in itertools.product(WORLDS.items(), FACTS.items()):
        if "options" in common and "options" in fact:
            continue
        try:
            stated[f"{world}, {name}"] = values = state_with(**common | fact)
        except PrivacyError as error:
            refused[f"{world}, {name}"] = str(error)
            continue
        asked = common | fact
        assert values.pop("options").items() >= asked.get("options", {}).items()
        values["unit"], public = unit_of_statement(values), values["public_data"]
        values["public_data"] = public.pop("assumption")
        assert public == (asked if "public_data" in asked else of_backbone())["public_data"]
        if not values["private"]:
            _require_that_nothing_is_promised(values)
        if "vectors" in name:
            _require_words_of_rows(values)
    listed = [values[key] for values in stated.values() for key in ("public", "not_covered")]
    sentences = sorted({each for one in listed for each in one})
    for values, key in itertools.product(stated.values(), ("public", "not_covered")):
        values[key] = " ".join(str(sentences.index(each)) for each in values[key])
    said = {}
    for name, values in stated.items():
        usual = f"{name.split(', ')[0]}, none"
        said[name] = values if name == usual else abridge(values, stated[usual])
    check_values("statements", {"said": said, "refused": refused, "sentences": sentences})


def _require_that_nothing_is_promised(values: dict[str, Any]) -> None:
    assert values["promise"].startswith("No privacy is promised")
    assert (values["delta"], "delta_above_one_over_n" in values) == (None, False)
    assert (values["epsilon_realised"], values["epsilon_all_heads"]) == ("inf", "inf")
    for block in filter(None, (values["allows"], values["allows"]["all_heads"])):
        assert (block["balanced_accuracy"], block["exact"]) == (1, False)
        assert block["true_positives"] == {"0.001": 1, "0.01": 1}


def _require_words_of_rows(values: dict[str, Any]) -> None:
    texts = [values["promise"], values["allows"]["words"], *values["not_covered"]]
    texts = [text for text in [*texts, *values["public"]] if SEARCHED not in text]
    assert not re.search("image|picture", " ".join(texts), re.IGNORECASE)


def test_attacks_are_bounded_by_the_mu_of_one_head_of_all_and_of_a_patient() -> None:
    """Words are in the record: here is the second formula, of one release with noise 9."""
    centre, _ = plan().mechanisms
    price = accountants.gaussian_epsilon(1 / 9, 1e-5)
    patients = Patients(images=5, epsilon=2.5)
    one = replace(plan(), mechanisms=(centre,), realised_epsilon=price, patients=patients)
    allows = state(plan=one)["allows"]
    for block, times in ((allows, 1), (allows["all_heads"], 2**0.5), (allows["patient"], 5)):
        right = norm.cdf(times / 9 / 2)
        assert right <= block["balanced_accuracy"] <= right + 1.1e-6
        assert block["exact"]
        for rate, found in block["true_positives"].items():
            best = norm.cdf(norm.ppf(float(rate)) + times / 9)
            assert best <= found <= best + 1.1e-6
    best_of = Selection(mean=10, repeated=("gradients",))
    searched = replace(plan(), selection=best_of, realised_epsilon=0.9)
    allows = state(plan=searched, options=TUNED)["allows"]
    for block, epsilon in ((allows, 0.9), (allows["all_heads"], 1.6)):
        right = (math.exp(epsilon) + 1e-5) / (1 + math.exp(epsilon))
        assert right <= block["balanced_accuracy"] <= right + 1.1e-6
        assert not block["exact"]
