"""Options of networks: what they release, what a study's plan reads, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from dpprobe.finetune.options import Options, TuneBlocks, blocks_fault
from dpprobe.heads.registry import method_options
from dpprobe.privacy.plan import Mechanism
from dpprobe.wrong_keys_and_values import explain_first

FULL = {"steps": 7, "learning_rate": 0.5}
SAMPLED = {"batch_size": 32, "epochs": 4}
COVARIANCE = {"head": "feature_covariance", "normalize": {"kind": "l2"}}
FILE = {"init": "file", "init_file": "text/{dataset}.safetensors"}
SEARCH: dict[str, Any] = {"trials": 3, "space": {"learning_rate": [0.1, 1.0]}}


def of(**values: Any) -> Options:
    return Options.model_validate({"tune": "all", **FULL, **values})


def sampled(**values: Any) -> Options:
    return Options.model_validate({"tune": "all", **SAMPLED, **values})


def probe(method: Any, **values: Any) -> dict[str, Any]:
    return {"probe": {"method": method, **values}}


def search(**space: Any) -> dict[str, Any]:
    return {"search": SEARCH | {"space": space}}


LARGE = "it changes epsilon, so it cannot be searched; write it as an option of the method"
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no such tune": ({"tune": "last"}, "tune: 'last': use head, all, bias, norm, {blocks: k} or"),
    "two forms of tune": ({"tune": {"blocks": 1, "lora": {}}}, "use head, all, bias, norm, {blo"),
    "no form of tune": ({"tune": {}}, "tune: {}: use head, all, bias, norm, {blocks: k} or"),
    "no block": ({"tune": {"blocks": 0}}, "tune.blocks: 0 instead of a number of 1 or more"),
    "no rank": ({"tune": {"lora": {"rank": 0}}}, "rank: 0 instead of a number of 1 or more"),
    "equal views": (
        {"augment": {"flip": False}},
        "without flip and pad all views are equal; write",
    ),
    "a slower frozen backbone": (
        {"tune": "head", "backbone_rate": 0.1},
        "backbone_rate has no effect with `tune: head`; remove it",
    ),
    "a priced normalisation": (
        {"normalize": {"kind": "centred"}},
        "normalize: centred releases statistics, but fine_tune has no budget share for them",
    ),
    "a probe that is not private": (
        probe({"head": "nonprivate"}),
        "probe: head nonprivate cannot be a probe; choose another head, such as feature_covariance",
    ),
    "a probe that chooses": (probe({"head": "auto"}), "probe: head auto cannot be a probe; choose"),
    "a network as a probe": (
        probe({"head": "fine_tune", "tune": "head"}),
        "probe: head fine_tune cannot be a probe",
    ),
    "a probe and a start": (
        {"init": "scaled", "init_scale": 1, **probe(COVARIANCE)},
        "init scaled and a probe both set the head's initial weights; remove one of them",
    ),
    "a probe and a bias": (
        {"init_bias": -2.0, **probe(COVARIANCE)},
        "init_bias and a probe both set the head's initial weights; remove one of them",
    ),
    "a probe of another link": (
        {"loss": "sigmoid", **probe({"head": "sgd"})},
        "head sgd gives scores for link softmax, but loss sigmoid needs link sigmoid; choose",
    ),
    "a probe with two normalisations": (
        {"normalize": "none", **probe(COVARIANCE)},
        "normalize: with a probe, this is an option of the probe's head; move it to probe.method",
    ),
    "a probe with priors": (
        probe({"head": "sgd", "class_priors": "released"}),
        "class_priors: released is possible only for linear heads; use public numbers, or",
    ),
    "priors": ({"class_priors": "released"}, "class_priors: released is possible only for linear"),
    "a search of a path": (
        FILE | search(init_file=["a", "b"]),
        "search.space.init_file: not an op",
    ),
    "a search of no option": (
        search(speed=[1, 2]),
        "search.space.speed: not an option that can be",
    ),
    "a search of the part": (search(tune=["head", "all"]), "search.space.tune: not an option that"),
    "a search of steps": (search(steps=[1, 2]), f"search.space: steps 1: {LARGE}"),
    "a search of batches": (search(batch_size=["full", 8]), f"batch_size 8: {LARGE}"),
    "a search of wrong values": (
        search(learning_rate=[0.1, -1.0]),
        "search.space: learning_rate -1.0: learning_rate: -1.0 instead of a number above 0",
    ),
    "a search of the loss": (
        search(loss=["softmax", "sigmoid"]),
        "search.space: loss 'sigmoid': it changes the meaning of scores, so it cannot be searched",
    ),
    "a search of one trial": (
        {"search": SEARCH | {"trials": 1}},
        "search.trials: 1 instead of a number of 2 or more",
    ),
    "a search of nothing": (search(), "search.space"),
    "no noise at all": ({"max_grad_norm": 0}, "max_grad_norm: 0 instead of a number of 0.0000"),
    "opacus and automatic clipping": (
        {"engine": "opacus", "clipping": "automatic"},
        "clipping automatic: Opacus does not divide gradients by their norms; remove it, or",
    ),
    "opacus in bfloat16": (
        {"engine": "opacus", "precision": "bfloat16"},
        "precision bfloat16: Opacus does not sum such gradients in float32",
    ),
    "opacus and views": (
        {"engine": "opacus", "augment": {"views": 2}},
        "augment.views 2: Opacus does not average views before it clips; remove it, or write `en",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_options_that_cannot_be_meant_are_refused(name: str) -> None:
    values, said = REFUSED[name]
    with pytest.raises(ValidationError) as caught:
        of(**values)
    assert said in explain_first(caught.value)
    with pytest.raises(ValidationError):  # a search hides no fault
        of(**{"search": SEARCH} | values)


def test_every_combination_of_a_search_is_tried() -> None:
    """Each value is valid on its own, but one of the combinations is refused."""
    space = {"average": ["last", "ema"], "ema_decay": [0.9, 0.99]}
    with pytest.raises(ValidationError) as caught:
        of(average="ema", search=SEARCH | {"space": space})
    assert "average 'last', ema_decay 0.9: ema_decay 0.9 has no effect" in explain_first(
        caught.value
    )
    two = {"learning_rate": {"low": 0.1, "high": 10, "log": True}, "optimiser": ["adam", "sgd"]}
    chosen = of(search=SEARCH | {"space": two})
    trial = chosen.make_trial({"learning_rate": 0.3, "optimiser": "adam"})
    assert trial == of(learning_rate=0.3, optimiser="adam")
    assert of().private_choices is None
    assert chosen.private_choices == "search_without_noise"


def facts(item: Mechanism) -> tuple[Any, ...]:
    return item.name, item.sensitivity, item.noise_multiplier, item.sample_rate, item.count


@given(
    norm=st.floats(0.01, 100),
    steps=st.integers(1, 50),
    n=st.integers(40, 5000),
    tune=st.sampled_from(["head", "all", "bias", {"blocks": 2}, {"lora": {}}]),
    clipping=st.sampled_from(["fixed", "automatic"]),
    size=st.sampled_from(["full", 8, 32]),
)
def test_a_step_releases_one_clipped_sum_of_its_sampled_rows(
    norm: float, steps: int, n: int, tune: Any, clipping: str, size: Any
) -> None:
    """Each row adds at most one gradient of norm `max_grad_norm`, whichever part is trained."""
    values: Any = {"max_grad_norm": norm, "tune": tune, "clipping": clipping}
    options = of(**values, steps=steps, batch_size=size, optimiser="adam")
    (item,) = options.list_mechanisms(n)
    rate = 1.0 if size == "full" else size / n
    assert facts(item) == ("gradients", norm, 1.0, pytest.approx(rate), steps)
    assert "of all trained parameters together, one per step" in item.released


def test_epochs_are_steps_of_the_expected_batch_size() -> None:
    (item,) = sampled().list_mechanisms(1000)
    assert (item.count, item.sample_rate) == (125, 0.032)  # 4 * 1000 / 32 steps
    (item,) = sampled(epochs=1).list_mechanisms(64)
    assert (item.count, item.sample_rate) == (2, 0.5)
    (default,) = Options(tune="all", batch_size=50).list_mechanisms(100)
    assert default.count == 40  # 20 epochs


PROBES: dict[str, dict[str, Any]] = {
    "covariance": COVARIANCE,
    "priced normalisation": {"head": "feature_covariance"},
    "public covariance": COVARIANCE | {"public_covariance": "public/{backbone}.json"},
    "sampled": {"head": "sgd", "batch_size": 16, "steps": 9},
    "momentum": {"head": "momentum", "class_weights": [1, 0.5]},
}


def price(items: Any) -> float:
    return sum(one.count * one.sample_rate**2 / one.noise_multiplier**2 for one in items)


@given(
    name=st.sampled_from(sorted(PROBES)),
    share=st.floats(0.05, 0.95),
    values=st.sampled_from([FULL, SAMPLED]),
)
def test_a_probe_has_its_share_of_the_budget(
    name: str, share: float, values: dict[str, Any]
) -> None:
    """A probe makes its head's own releases, with noise that matches its share of the price."""
    options = Options.model_validate({"tune": "all", **values, **probe(PROBES[name], share=share)})
    *probed, gradients = options.list_mechanisms(1000)
    alone = method_options(PROBES[name]).list_mechanisms(1000)
    assert [one.name for one in probed] == [f"probe {one.name}" for one in alone]
    for one, other in zip(probed, alone, strict=True):
        assert facts(one)[1::2] == facts(other)[1::2], "its sensitivity and sampling rate"
        assert (one.count, one.released) == (other.count, other.released)
    assert price(probed) / price([*probed, gradients]) == pytest.approx(share)
    (plain,) = Options.model_validate({"tune": "all", **values}).list_mechanisms(1000)
    assert gradients.name == "gradients"
    assert (gradients.sensitivity, gradients.count) == (plain.sensitivity, plain.count)
    ratios = {
        round(one.noise_multiplier / other.noise_multiplier, 9)
        for one, other in zip(probed, alone, strict=True)
    }
    assert len(ratios) == 1, "one factor for all of its releases"


@pytest.mark.parametrize(
    ("tune", "augment", "cut", "blocks"),
    [
        ("head", None, True, None),
        ({"blocks": 3}, None, True, 3),
        ("all", None, False, None),
        ("bias", None, False, None),
        ("norm", None, False, None),
        ({"lora": {"rank": 8}}, None, False, None),
        ("head", {}, False, None),
        ({"blocks": 3}, {"views": 4, "pad": 2}, False, None),
    ],
)
def test_training_uses_stored_activations_if_earlier_layers_do_not_change(
    tune: Any, augment: Any, cut: bool, blocks: int | None
) -> None:
    options = of(tune=tune, augment=augment)
    assert (options.cut, options.from_images, options.cut_blocks) == (cut, not cut, blocks)
    assert options.blocks == (3 if tune == {"blocks": 3} else None)
    assert Options(tune=TuneBlocks(blocks=3), **FULL) == of(tune={"blocks": 3})


def test_a_network_s_sums_are_said_to_be_float32() -> None:
    assert not of().is_exact
    assert of().engine_limits == "ghost"
    assert of(precision="bfloat16").engine_limits == "ghost_bfloat16"
    opacus = of(engine="opacus")
    assert not opacus.is_exact
    assert opacus.engine_limits == "opacus"
    assert of().units_fault is None
    assert "engine opacus clips gradients of images" in str(opacus.units_fault)
    probed = of(**probe({"head": "sgd", "engine": "opacus"})).units_fault
    assert str(probed).startswith("probe: engine opacus clips gradients of images")


@pytest.mark.parametrize(
    ("classes", "several", "said"),
    [
        (1, False, "probe: class_weights has 2 numbers for 1 classes"),
        (2, False, None),
        (
            10,
            False,
            "probe: class_weights has 2 numbers for 10 classes; give one number per class",
        ),
        (2, True, "probe: class_weights need one label per row, but these rows have several"),
    ],
)
def test_classes_must_fit_the_weights_of_network_and_probe(
    classes: int, several: bool, said: str | None
) -> None:
    weights = {"class_weights": [1, 0.5]}
    for loss in ("softmax", "sigmoid"):
        assert of(loss=loss).class_fault(classes, multi_label=several) is None
        own = of(loss=loss, **weights).class_fault(classes, multi_label=several)
        probed = of(loss=loss, **probe({"head": "momentum", "loss": loss} | weights))
        fault = probed.class_fault(classes, multi_label=several)
        assert fault == (own and f"probe: {own}"), "the same, with its place"
        assert fault is None if said is None else str(fault).startswith(said)


def test_public_files_of_network_and_probe_are_known_by_their_place() -> None:
    public = COVARIANCE | {"public_covariance": "public/{backbone}.json"}
    assert of().public_files() == {}
    assert of(**FILE).public_files() == {"init_file": FILE["init_file"]}
    both = of(**probe(public | FILE))
    assert both.public_files() == {
        "probe.method.init_file": "text/{dataset}.safetensors",
        "probe.method.public_covariance": "public/{backbone}.json",
    }
    assert both.fill_paths(dataset="d", backbone="b").public_files() == {
        "probe.method.init_file": "text/d.safetensors",
        "probe.method.public_covariance": "public/b.json",
    }
    start = of(**FILE).fill_paths(dataset="d", backbone="b")
    assert start.public_files() == {"init_file": "text/d.safetensors"}


def test_files_are_identified_by_content_and_not_by_path() -> None:
    """A cell stays valid if its public file moves."""
    moved = FILE | {"init_file": "elsewhere.safetensors"}
    assert of(**FILE).identity_options() == of(**moved).identity_options()
    probes = [of(**probe(COVARIANCE | one)).identity_options() for one in (FILE, moved)]
    assert probes[0] == probes[1]
    assert of(**probe(COVARIANCE)).identity_options() != probes[0]
    plain = of().identity_options()
    for change in ({"tune": "bias"}, {"backbone_rate": 0.5}, {"precision": "bfloat16"}):
        assert of(**change).identity_options() != plain, change
    assert sampled().identity_options() != plain
    assert of(**probe(COVARIANCE)).normalize == method_options(COVARIANCE).normalize


@pytest.mark.parametrize(
    ("blocks", "shown", "said"),
    [
        (1, 4, None),
        (4, 4, None),
        (0, 4, "tune: blocks: 0: vit has 4 blocks; use a number from 1 to 4"),
        (5, 4, "tune: blocks: 5: vit has 4 blocks; use a number from 1 to 4"),
        (1, 0, "tune: vit gives no access to its blocks; write `tune: all`, bias or norm, or cho"),
    ],
)
def test_blocks_that_a_network_does_not_have_are_named(
    blocks: int, shown: int, said: str | None
) -> None:
    fault = blocks_fault(blocks, shown, "vit")
    assert fault is None if said is None else str(fault).startswith(said)
