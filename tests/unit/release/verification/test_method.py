"""Options that a bundle states, and the head that they imply."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save

from dpprobe.errors import ConfigError, DataError
from dpprobe.heads.registry import method_options
from dpprobe.release import bundle, stated_plans
from dpprobe.release.verification import method
from tests.support.bundles import PRIORS, write_example
from tests.support.mechanisms import made_plan
from tests.support.refusals import check_tokens, refusal_of, refuses
from tests.unit.release.verification.test_verify import BALANCED, SAMPLED

SEARCHED = {
    "head": "tuned",
    "base": {**SAMPLED, "steps": 5},
    "trials": 3,
    "search": {"learning_rate": {"low": 0.1, "high": 1.0}, "max_grad_norm": [0.5, 1.0]},
}
CHOSEN: dict[str, Any] = {"score": 0.5, "learning_rate": 0.7, "max_grad_norm": 1.0}


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> bundle.BundleFacts:
    return bundle.read_facts(write_example(tmp_path_factory.mktemp("bundle") / "whole"))


def stating(
    facts: bundle.BundleFacts, options: dict[str, Any], *, several: bool = False, **head: Any
) -> bundle.BundleFacts:
    """Returns facts of a head with these options, completed by defaults, and other changes."""
    full = method_options(options).model_dump(mode="json")
    update = {"options": full, "link": "softmax", "class_priors": None, "chosen": None} | head
    changed = facts.head.model_copy(update=update)
    return facts.model_copy(update={"head": changed, "multi_label": several})


@pytest.mark.parametrize(
    ("options", "link", "several"),
    [
        ({"head": "feature_covariance"}, "softmax", False),
        ({"head": "least_squares"}, "none", False),
        ({"head": "least_squares"}, "none", True),
        ({"head": "prototypes"}, "none", True),
        (SAMPLED, "softmax", False),
        ({**SAMPLED, "loss": "sigmoid"}, "sigmoid", False),
        ({**SAMPLED, "loss": "sigmoid"}, "sigmoid", True),
    ],
)
def test_a_head_has_the_link_and_the_labels_of_its_loss(
    facts: bundle.BundleFacts, options: dict[str, Any], link: str, several: bool
) -> None:
    detail, read = method.read_options(stating(facts, options, several=several, link=link))
    assert read == method_options(options)
    assert detail.startswith(f"head {options['head']}, normalize ")
    for wrong in {"softmax", "sigmoid", "none"} - {link}:
        with refuses(DataError, "head.link", wrong, link):
            method.read_options(stating(facts, options, several=several, link=wrong))


@pytest.mark.parametrize("options", [{"head": "feature_covariance"}, SAMPLED])
def test_a_softmax_takes_no_several_labels(
    facts: bundle.BundleFacts, options: dict[str, Any]
) -> None:
    with refuses(DataError, "multi_label", options["head"]):
        method.read_options(stating(facts, options, several=True))


def test_options_that_are_newer_than_a_bundle_have_their_defaults(
    facts: bundle.BundleFacts,
) -> None:
    """A bundle lacks newer options; those that it states must be written as in this version."""
    short = {"head": "feature_covariance"}

    def state(options: dict[str, Any]) -> bundle.BundleFacts:
        head = facts.head.model_copy(update={"options": options})
        return facts.model_copy(update={"head": head})

    assert method.read_options(state(short))[1] == method_options(short)
    with refuses(DataError, "head.options.normalize", '{"kind":"l2"}', '"l2"'):
        method.read_options(state({**short, "normalize": {"kind": "l2"}}))
    with refuses(ConfigError, "newest"):
        method.read_options(state({**short, "newest": None}))


def test_class_frequencies_are_there_exactly_if_they_were_released(
    facts: bundle.BundleFacts,
) -> None:
    method.read_options(stating(facts, BALANCED, class_priors=(0.5, 0.5)))
    for options, priors in ((BALANCED, None), (SAMPLED, (0.5, 0.5))):
        with refuses(DataError, "head.class_priors"):
            method.read_options(stating(facts, options, class_priors=priors))


FILMS = {"kind": "centred", "public": "films.npy"}
STUDENT = {"head": "momentum", "engine": "exact", "normalize": FILMS, "student_share": 0.04}


def test_a_student_is_stated_exactly_if_it_was_tried(facts: bundle.BundleFacts) -> None:
    told = bundle.StudentFacts(gain=3.0, threshold=2.0, used=True)
    method.read_options(stating(facts, STUDENT, student=told))
    for options, student in ((STUDENT, None), (SAMPLED, told)):
        with refuses(DataError, "head.student"):
            method.read_options(stating(facts, options, student=student))


def test_gain_threshold_and_the_head_that_was_used_agree() -> None:
    plan = made_plan(method_options(STUDENT).list_mechanisms(500), 500)
    least = float(np.float32(2 * plan.find_mechanism("student_gain").noise_multiplier))
    for gain, used in ((least + 1, True), (least - 1, False), (-9.0, False)):
        released = np.array([gain, least], np.float32)
        told = bundle.StudentFacts(gain=float(released[0]), threshold=least, used=used)
        method.check_student(released, told, plan)
        wrong: list[tuple[dict[str, Any], Any]] = [
            ({"used": not used}, released),
            ({"threshold": least / 2}, np.array([gain, least / 2], np.float32)),
            ({"gain": gain + 0.5}, released),
        ]
        for change, tensor in wrong:
            with pytest.raises(DataError, match=r"head\.student"):
                method.check_student(tensor, told.model_copy(update=change), plan)


def test_auto_is_refused_as_the_stated_head_of_a_bundle(facts: bundle.BundleFacts) -> None:
    with refuses(ConfigError, "head auto"):
        method.read_options(stating(facts, {"head": "auto"}))


@pytest.mark.parametrize(
    ("chosen", "fault"),
    [
        *(
            (CHOSEN | change, None)
            for change in (
                {},
                {"learning_rate": 0.1},
                {"learning_rate": 1},
                {"learning_rate": 1.0},
                {"max_grad_norm": 0.5},
                {"score": -3},
            )
        ),
        (None, ("head.chosen", "score")),
        ({}, ("head.chosen", "score")),
        ({"learning_rate": 0.7, "max_grad_norm": 1.0}, ("head.chosen", "score")),
        ({"score": 0.5, "max_grad_norm": 1.0}, ("head.chosen",)),
        (CHOSEN | {"steps": 5}, ("head.chosen",)),
        (CHOSEN | {"learning_rate": 0.09}, ("head.chosen.learning_rate", 0.09)),
        (CHOSEN | {"learning_rate": 1.1}, ("head.chosen.learning_rate", 1.1)),
        (CHOSEN | {"learning_rate": "x"}, ("learning_rate", "'x'")),
        (CHOSEN | {"learning_rate": True}, ("learning_rate", True)),
        (CHOSEN | {"learning_rate": None}, ("learning_rate", None)),
        (CHOSEN | {"max_grad_norm": 0.7}, ("head.chosen.max_grad_norm", 0.7)),
        (CHOSEN | {"max_grad_norm": 1}, ("head.chosen.max_grad_norm", 1)),
        (CHOSEN | {"max_grad_norm": True}, ("head.chosen.max_grad_norm", True)),
        (CHOSEN | {"max_grad_norm": "1.0"}, ("head.chosen.max_grad_norm", "'1.0'")),
        (CHOSEN | {"score": None}, ("head.chosen.score", None)),
        (CHOSEN | {"score": 1e300}, ("head.chosen.score", 1e300)),
    ],
    ids=str,
)
def test_a_choice_is_within_its_search(
    facts: bundle.BundleFacts, chosen: Any, fault: tuple[object, ...] | None
) -> None:
    said = refusal_of(method.read_options, stating(facts, SEARCHED, chosen=chosen))
    assert (said is None) == (fault is None), said
    check_tokens(said or "", *fault or ())


def test_chosen_values_of_a_head_without_a_search_are_refused(facts: bundle.BundleFacts) -> None:
    for chosen in ({}, CHOSEN):
        with refuses(DataError, "head.chosen"):
            method.read_options(stating(facts, SAMPLED, chosen=chosen))


def test_releases_of_floating_point_are_refused() -> None:
    assert method.check_engine(method_options(SAMPLED))[1]
    inexact = method_options({**SAMPLED, "engine": "closed_form"})
    with refuses(DataError, "head sgd", "`engine: exact`"):
        method.check_engine(inexact)


def test_each_normalisation_has_its_arrays() -> None:
    channels = {"kind": "channels", "channels": 16, "max_mean_norm": 1.0, "max_deviation_norm": 1.0}
    expected: dict[Any, dict[str, tuple[int, ...]]] = {
        "l2": {},
        "centred": {"centre": (64,)},
        json.dumps(channels): {"channel_means": (16,), "channel_deviations": (16,)},
    }
    for kind, arrays in expected.items():
        given = json.loads(kind) if kind.startswith("{") else kind
        options = method_options({"head": "feature_covariance", "normalize": given})
        assert method.list_arrays(options.normalize, 64) == arrays


WEIGHTS = np.ones((3, 65), np.float32)
Tensors = dict[str, Any]
HEADS: dict[str, tuple[Callable[[Tensors], Tensors], str]] = {
    "no priors": (lambda head: {"weights": head["weights"]}, "the options imply"),
    "two classes": (lambda head: head | {"weights": WEIGHTS[1:]}, "the options imply"),
    "an array more": (lambda head: head | {"more": WEIGHTS[0]}, "the options imply"),
    "other priors": (lambda head: head | {"class_priors": PRIORS[::-1]}, "head.class_priors: "),
    "a sum of 1.1": (lambda head: head | {"class_priors": PRIORS * 1.1}, "not class frequencies"),
    "a prior of 0": (lambda head: head | {"class_priors": np.array([0.7, 0.3, 0])}, "above 0"),
    "below 0": (lambda head: head | {"class_priors": np.array([0.8, 0.3, -0.1])}, "above 0"),
    "NaN": (lambda head: head | {"weights": WEIGHTS * np.nan}, "weights: holds NaN or infinity"),
    "infinity": (lambda head: head | {"weights": WEIGHTS * np.inf}, "weights: holds NaN or inf"),
}


@pytest.fixture(scope="module")
def balanced(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Makes a bundle with released class frequencies."""
    options = {"head": "feature_covariance", "normalize": "l2", "class_priors": "released"}
    return write_example(tmp_path_factory.mktemp("balanced") / "whole", options=options)


def check_content(folder: Path, content: bytes | None) -> tuple[str, bool]:
    """Checks the bundle with new content of its head file; None leaves the file unchanged."""
    facts, values = bundle.read_facts(folder), json.loads((folder / "privacy.json").read_text())
    plan, options = stated_plans.read_plan(values)[1], method_options(facts.head.options)
    path = folder / bundle.HEAD_FILE
    own = path.read_bytes()
    try:
        path.write_bytes(own if content is None else content)
        return method.check_head(folder, facts, options, plan, values)
    finally:
        path.write_bytes(own)


def read_mark(folder: Path) -> Any:
    content = (folder / bundle.HEAD_FILE).read_bytes()
    return json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])["__metadata__"]


def test_a_head_in_order_passes(balanced: Path) -> None:
    said, passed = check_content(balanced, None)
    assert passed
    check_tokens(said, "weights, class_priors")
    tensors = {"weights": WEIGHTS, "class_priors": PRIORS}
    assert check_content(balanced, save(tensors, metadata=read_mark(balanced))) == (said, True)


@pytest.mark.parametrize(("edit", "fault"), HEADS.values(), ids=HEADS)
def test_a_head_that_options_do_not_imply_fails(
    balanced: Path, edit: Callable[[Tensors], Tensors], fault: str
) -> None:
    made = edit({"weights": WEIGHTS, "class_priors": PRIORS})
    tensors = {name: np.ascontiguousarray(each, np.float32) for name, each in made.items()}
    with pytest.raises(DataError, match=fault):
        check_content(balanced, save(tensors, metadata=read_mark(balanced)))


def test_a_head_of_another_type_or_without_its_mark_fails(balanced: Path) -> None:
    mark = read_mark(balanced)
    whole: Tensors = {"weights": WEIGHTS.astype(np.int32), "class_priors": PRIORS}
    with refuses(DataError, "weights", "int32", "float32"):
        check_content(balanced, save(whole, metadata=mark))
    tensors = {"weights": WEIGHTS, "class_priors": PRIORS}
    other = {key: value.replace("lesions", "others") for key, value in mark.items()}
    assert other != mark
    for wrong in (None, other):
        with refuses(DataError, "metadata"):
            check_content(balanced, save(tensors, metadata=wrong))


def test_a_head_is_as_large_as_its_tensors_and_a_header(balanced: Path) -> None:
    size = 4 * (3 * 65 + 3)
    for wrong in (0, size, size + method.HEADER_BYTES + 1):
        with refuses(DataError, wrong, size):
            check_content(balanced, bytes(wrong))
