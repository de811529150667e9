"""Steps of audits over many settings, against stored answers and plain loops."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from dpprobe.analyses.audit import (
    bounds,
    canary_attack,
    controls,
    measure,
    membership,
    membership_attacks,
    noise_tests,
    power,
    transcripts,
    white_box,
)
from dpprobe.analyses.audit.audit_record import Attack as Attacked
from dpprobe.analyses.audit.audit_record import Membership
from dpprobe.heads.fitted import Heads
from dpprobe.heads.normalisation import NoNormalisation
from dpprobe.heads.patient_groups import Units
from dpprobe.heads.registry import method_options
from dpprobe.heads.rows import Transform
from dpprobe.heads.training_set import TrainingSet
from dpprobe.privacy.plan import Mechanism, Plan
from dpprobe.privacy.randomness import open_stream
from dpprobe.privacy.sampling import PoissonSampler
from tests.support.audit_records import MEMBERSHIP
from tests.support.audits import METHODS, head, plan_of
from tests.support.columns import by_column, flatten, or_error
from tests.support.mechanisms import best_of, gaussians, made_plan
from tests.support.stored_records import check_values

TUNED = head("tuned", base={"head": "prototypes"}, search={"max_row_norm": [1.0, 2.0]}, trials=2)
CHECKED = ("least_squares", "sampled_exact_sgd", "sampled_lamb_centred")


def cell_of(
    name: str,
    *,
    noise: float = 3.0,
    n: int = 300,
    unit: str = "image",
    runs: int = 12,
    dimension: int = 8,
    classes: int = 3,
    several: bool = False,
) -> white_box._Cell:
    method = METHODS.get(name, TUNED)
    plan = replace(plan_of(method, n, noise=noise), unit=unit)
    if name == "tuned":
        plan = replace(plan, selection=best_of(2.0, plan.mechanisms[0].name))
    shape = white_box.audited_shape(method, plan, dimension, classes, several)
    return white_box._Cell(method, plan, shape, 5, runs, 0.95)


def test_audits_of_few_runs_are_as_stored() -> None:
    made: dict[str, Any] = {}
    for name in CHECKED:
        cell = cell_of(name)
        parts, columns = white_box.audit_plan(
            cell.method,
            cell.plan,
            dimension=8,
            num_classes=3,
            multi_label=False,
            runs=12,
            confidence=0.9,
            seed=77,
            controls=False,
            progress_label="test",
        )
        box = parts["white_box"]
        assert box.pop("seconds") > 0
        tests = {each["name"]: each["p_value"] for each in box.pop("tests")}
        made[name] = [
            box,
            tests,
            list(map(flatten, parts["controls"])),
            by_column(
                [
                    {"attack": attack, "member": int(member), "score": score}
                    for attack, member, score in zip(*columns.values(), strict=True)
                ]
            ),
        ]
    plan = plan_of(METHODS["sgd"], 1)
    for wrong in (plan, replace(plan, mechanisms=(), realised_epsilon=math.inf, epsilon=math.inf)):
        made[f"n = {wrong.n}, {wrong.epsilon}"] = or_error(
            white_box.audit_plan,
            METHODS["sgd"],
            wrong,
            dimension=8,
            num_classes=3,
            multi_label=False,
            runs=12,
            confidence=0.9,
            seed=77,
            controls=True,
            progress_label="",
        )
    check_values("audits_of_few_runs", made, rel=2e-3)


def test_shapes_and_words_of_audits_are_as_stored() -> None:
    made: dict[str, Any] = {}
    settings: dict[str, dict[str, Any]] = {
        "usual": {},
        "wide": {"dimension": 500, "classes": 30},
        "narrow": {"dimension": 2},
        "few units": {"n": 5, "noise": 90.0},
        "patients": {"unit": "patient", "noise": 0.5},
        "two": {"n": 2, "noise": 60.0, "classes": 2},
        "labels": {"several": True, "classes": 12},
        "much noise": {"noise": 300.0},
        "ten": {"dimension": 64, "classes": 10, "noise": 1.0},
    }
    for name, given in settings.items():
        for method in ("sgd", "sampled_sgd", "exact_sgd", "tuned", "adam_layer_norm"):
            if method == "sampled_sgd" and given.get("n", 300) < 60:
                continue
            cell = cell_of(method, **given)
            made[f"{name}, {method}"] = [
                str(cell.shape),
                cell.canary_count,
                len(cell._canary_labels),
                cell._name_test(),
                cell._describe_canary(),
                cell._describe_rows(),
                None if method == "tuned" else cell._factor_of_one_number(1e-4),
                measure.claim_of_plan(cell.plan).model_dump(mode="json"),
            ]
    first, *_ = (cell := cell_of("sampled_exact_sgd")).plan.mechanisms
    for place, rates in enumerate(((1.0, 0.2), (0.2, 1.0))):
        both = tuple(replace(first, sample_rate=rate, name=f"at {rate}") for rate in rates)
        plan = replace(cell.plan, mechanisms=both)
        halved: Any = controls._halve_claimed_rate(replace(cell.attack, plan=plan))
        claim = measure.claim_of_plan(replace(plan, realised_epsilon=0.9))
        made[f"mixed {place}"] = [
            replace(cell, plan=plan)._name_test(),
            halved.claim.mechanisms,
            claim.model_dump(mode="json"),
        ]
    made["seeds"] = cell.attack.compute_strength([1, 2, 3])
    methods: dict[str, Any] = {
        "counted": head("sgd", class_weights=[1.0] * 20 + [0.5]),
        "groups": head("sgd", normalize={"kind": "group_norm", "groups": 4}),
        "files": SimpleNamespace(input_files=lambda: "a", counted_classes=None, normalize=None),
    }
    for name, each in methods.items():
        shape = white_box.audited_shape(each, plan, 500, 30, False)
        made[f"shape, {name}"] = [shape, [*replace(cell, shape=shape)._canary_labels]]
    for clip in (0.5, 2.0, 40.0):
        loose = head("least_squares", normalize="none", max_row_norm=clip)
        cell = replace(cell_of("least_squares"), method=loose, plan=plan_of(loose, 300))
        attack, strength = cell._piloted_attack
        made[f"pilots {clip}"] = [float(attack.worlds[-1].canary.norm()), strength]
    for several in (False, True):
        members = np.arange(40) % 3 == 0
        cell = cell_of("exact_sgd", several=several)
        for shift in (0.0, 3.0, math.nan, 2):
            scores = np.where(members, shift, 0.0) + np.cos(np.arange(40.0))
            scores = np.round(scores) if shift == 2 else scores
            test = canary_attack.Runs(
                members=members, releases=scores, bundle=-scores, used={"a": 1 + shift}
            )
            made[f"tests {several} {shift}"] = [
                white_box._count_right_releases(test),
                white_box._count_right_heads(test),
                [(item.name, item.p_value) for item in cell.list_tests(test)],
                white_box._list_refuting(cell.list_tests(test)),
                cell._bound_directly(np.nan_to_num(scores), members),
                cell._bound_directly(np.nan_to_num(scores), members | True),
                cell._bound_directly(np.nan_to_num(scores), members & False),
                white_box._count_right_heads(replace(test, members=members[:2], bundle=scores[:2])),
            ]
    for name in ("exact_sgd", "sgd"):
        cell = cell_of(name)
        for change in (0.0, 1e-9, 1e-4, 1.01e-4):
            for used in (1 + 1e-12, 1 + 1e-5, 1 + 1.1e-5):
                seen = replace(test, unobserved_change=change, used={"a": 0.5, "b": used})
                made[f"limits of {name} {change} {used:.6f}"] = "".join(
                    str(int(item.p_value)) for item in cell.list_tests(seen)[-3:]
                )
    levels = {"variance": 0.0005, "steps": 0.00049, "sensitivity": 1.0, "unobserved": 0.0}
    outcomes = [noise_tests.Outcome(*each) for each in levels.items()]
    made["shares"] = [white_box._share_error(outcomes, looks=looks) for looks in (1, 2)]
    made["refuting"] = [white_box._list_refuting(outcomes, looks=looks) for looks in (1, 2)]
    made["strengths"] = [
        [cell_of(name)._relative_strength(accuracy) for accuracy in (0.4, 0.5, 0.53, 0.56, 0.9)]
        for name in ("exact_sgd", "sampled_sgd", "tuned")
    ]
    members = np.arange(400) % 2 == 0
    scores = np.where(members, 1.0, -1.0) * np.where(np.arange(400) % 8 < 6, 1, -1)
    test = canary_attack.Runs(members=members, releases=scores, bundle=scores, used={"a": 0.9})
    for name in ("tuned", "exact_sgd"):
        made[f"bounds of {name}"] = cell_of(name).describe_bounds(test)
    made["controls"] = cell_of("tuned").attack_controls("test")[0][:2]
    check_values("shapes_of_audits", made, rel=1e-3)


def test_two_worlds_are_as_stored() -> None:
    made: dict[str, Any] = {}
    for several in (False, True):
        for n, rows, classes in ((90, 1, 3), (10, 3, 2), (70, 2, 1))[several:]:
            shape = canary_attack.Shape(
                n=n, dimension=5, num_classes=classes, multi_label=several, rows_per_unit=rows
            )
            usual = canary_attack.make_worlds(shape, group=4, length=2.0, seed=1, label=classes - 1)
            for place, worlds in enumerate([usual]):
                line: list[Any] = [worlds.canary, str(worlds.canaries), worlds.label]
                for world in (worlds.absent, worlds.present):
                    assert world.units is not None
                    line += [world.features, world.labels, world.units.starts, world.units.weights]
                made[f"{several} {n} {place}"] = [*line, worlds.other_label]
                if worlds is usual and not several:
                    changes = (
                        controls.double_weights,
                        controls.centre_rows,
                        controls.scale_rows,
                        controls.number_classes,
                    )
                    for change in changes:
                        moved = worlds.change_rows(change)
                        assert moved.present.units is not None
                        made[f"{change.__name__} {n}"] = [
                            moved.present.features,
                            moved.present.labels,
                            moved.canary,
                            moved.present.units.weights,
                        ]
    check_values("worlds_of_audits", made, rel=1e-4)


def test_broken_releases_are_as_stored() -> None:
    generator = torch.Generator().manual_seed(0)
    made: dict[str, Any] = {}
    for shape in ((3, 5), (4,), (4, 4)):
        releases = []
        for step in range(3):
            sums, noise = torch.randn((2, *shape), generator=generator, dtype=torch.float64)
            if shape == (4, 4):
                sums, noise = sums + sums.T, noise + noise.T
            releases.append(transcripts.Release(f"m{step % 2}", sums, sums + 2 * noise))
        one = controls._OneNoise()
        for change in (
            controls.omit_noise,
            controls.halve_noise,
            controls.share_noise,
            controls.add_float_noise,
            controls.spare_class,
            controls.spare_class_once,
            controls.spare_bias,
            controls.repeat_noise,
            controls.follow_sums,
            one,
        ):
            name = getattr(change, "__name__", "one noise")
            made[f"{name} {shape}"] = [
                change(release, releases[:place]) for place, release in enumerate(releases)
            ]
        made[f"one noise again {shape}"] = one(releases[2], [])
        float_noise = controls.add_float_noise(releases[0], []) - releases[0].sums
        assert 0 < float((float_noise - releases[0].noise).abs().max()) < 1e-6
        made[f"classes {shape}"] = controls._has_classes(releases[0])
    for name in ("sampled_exact_sgd", "sampled_lamb_centred", "least_squares", "prototypes"):
        cell = cell_of(name, several=name == "prototypes")
        for control in controls.make_controls(cell.attack, cell.shape, group=2, seed=3):
            attack: Any = control.attack
            if not isinstance(attack, str):
                described = [
                    (item.sensitivity, item.noise_multiplier, item.sample_rate)
                    for plan in (attack.plan, attack.claim)
                    for item in plan.mechanisms
                ]
                clip = [getattr(attack.method, name, None) for name in controls._CLIPS]
                attack = [described, clip, str(attack.method.normalize), len(attack.worlds)]
            made[f"{name}: {control.name}"] = [control.breaks, attack]
    weights = np.arange(24, dtype=np.float32).reshape(2, 3, 4) - 30
    same = (Transform(NoNormalisation()),) * 2
    heads = Heads(weights=weights, seeds=(1, 2), transforms=same, steps=0)
    for labels in ([0, 1, 1, 2], [[1, 0, 1], [0, 0, 1]]):
        data = TrainingSet(
            torch.ones(len(labels), 3),
            torch.tensor(labels, dtype=torch.uint8 if len(labels) == 2 else torch.int64),
            3,
        )
        for share in (None, 1e-3):
            changed = controls.add_counts(heads, data, share=share).weights
            made[f"counts {labels} {share}"] = changed - weights
    made["compared"] = [
        canary_attack.compare_heads(heads, replace(heads, weights=weights[:k] + shift))
        for k in (1, 2)
        for shift in map(np.float32, (0.0, 0.5, math.nan))
    ]
    priors = [replace(heads, priors=weights[:, 0] + shift) for shift in (0, 8)]
    made["priors compared"] = [canary_attack.compare_heads(priors[0], each) for each in priors]
    lost = replace(heads, weights=weights * np.float32(math.nan))
    assert canary_attack.compare_heads(lost, heads) == math.inf == made["compared"][-1]
    check_values("broken_releases", made, rel=1e-4)


def test_bounds_and_powers_are_as_stored() -> None:
    made: dict[str, Any] = {}
    generator = np.random.default_rng(4)
    for runs in (1, 7, 100, 257):
        inside, outside = generator.normal(1.5, 1, runs), generator.normal(size=runs + 3)
        made[f"scores {runs}"] = [
            bounds.epsilon_lower_bound(inside, outside, delta, level, group=group)
            for delta in (0.0, 1e-3)
            for level in (0.5, 0.95)
            for group in (1, 3)
        ]
        made[f"accuracies {runs}"] = [
            bounds.accuracy_lower_bound(round(share * runs), runs, level)
            for share in (0, 0.5, 0.9, 1)
            for level in (0.6, 0.99)
        ]
    plans = {
        "gaussian": made_plan([gaussians(2.0)], 100, epsilon=1.0),
        "two": made_plan(
            [gaussians(2.0, name="a"), gaussians(3.0, count=4, name="b")], 100, epsilon=2.0
        ),
        "sampled": made_plan([gaussians(1.6, 0.05, 20)], 100, epsilon=1.5),
        "selected": replace(
            made_plan([gaussians(4.0)], 100, epsilon=1.0, selection=best_of(5)),
            realised_epsilon=0.8,
        ),
        "silent": made_plan([gaussians(0.0)], 100),
    }
    for name, plan in plans.items():
        for group in (1, 3) if name != "sampled" else (1,):
            family = power.PlanFamily(plan, group=group)
            line = [family.has_price, family.exact, family.separation, family.total_variation()]
            line += [
                family.epsilon_of_accuracy(share)
                for share in (0.3, 0.5, 0.5 + 1e-6, 0.7, 0.95, 1.0)
            ][: 5 if name == "sampled" else 6]
            line += [family.factor_of(share) for share in (-1, 0.0, 0.2, 0.8)]
            line += [power.caught_factor(family, 400, 0.5, 0.2)]
            line += [
                power.caught_factor(family, runs, 0.9, 0.8, strength=strength)
                for runs in (5, 400)
                for strength in (0.0, 0.7)
            ]
            if family.has_price:
                line += [family.compute_epsilon(factor) for factor in (0.0, 0.8, 3.0)]
                line += [family.total_variation(factor) for factor in (0.0, 0.8, 3.0)]
            made[f"{name} {group}"] = [None if v != v else v for v in line]
    made["allowed"] = membership.allowed_by(plans["selected"])
    made["separations"] = [power.compute_separation(each) for each in (0.0, 0.3, 0.999)]
    made["shares"] = [
        noise_tests.smallest_caught_share(*each)
        for each in ((40, 500, 1e-4, 0.95), (400, 5, 1e-3, 0.5))
    ]
    check_values("powers_of_audits", made, rel=2e-3)


def noise_run(plan: Plan, generator: np.random.Generator, scale: float, step: float | None) -> Any:
    transcript = []
    for item in plan.mechanisms:
        shape = {"rows": (3, 5), "square": (4, 4), "vector": (6,), "skew": (4, 4)}[item.name]
        sums = generator.normal(size=(item.count, *shape))
        noise = generator.normal(size=sums.shape) * item.noise_scale * scale
        if item.name == "square":
            upper = np.triu(noise)
            noise = (upper + np.swapaxes(np.triu(noise, 1), 1, 2)) / np.where(np.eye(4), 1, 2**0.5)
            sums = sums + np.swapaxes(sums, 1, 2)
        if step:
            noise, sums = np.rint(noise / step) * step, np.rint(sums / step) * step
        for part in np.array_split(np.arange(item.count), 2 if item.count > 1 else 1):
            blocks = torch.from_numpy(sums[part]), torch.from_numpy((sums + noise)[part])
            transcript.append(transcripts.Block(item.name, *blocks, step))
    return transcript


def see_batches(joined: np.ndarray) -> transcripts.SeenBatches:
    drawn = np.nonzero(joined)[1], joined.sum(1)
    seen = transcripts.SeenBatches(SimpleNamespace(draw_block=lambda _: drawn))
    seen.draw_block(len(joined))
    return seen


def test_p_values_of_noise_are_as_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    items = {
        "rows": Mechanism(
            name="rows",
            released="",
            sensitivity=1.5,
            noise_multiplier=2.0,
            count=6,
            sample_rate=0.3,
        ),
        "square": gaussians(3.0, name="square"),
        "vector": gaussians(1.0, count=2, name="vector"),
        "skew": gaussians(2.0, name="skew"),
    }
    made: dict[str, Any] = {}
    for most in (2048, 5):
        monkeypatch.setattr(noise_tests, "_MOST_NUMBERS", max(4, most // 2))
        for names in (["rows"], ["square"], ["vector"], ["skew"], ["square", "rows", "vector"]):
            for scale, step, runs in ((1.0, None, 9), (1.1, 2**-8, 8), (0.9, None, 1)):
                plan = made_plan([items[name] for name in names], 12, epsilon=1.0)
                generator, tests = np.random.default_rng(len(names)), noise_tests.NoiseTests(plan)
                for _ in range(runs):
                    tests.add_run(noise_run(plan, generator, scale, step))
                if "rows" in names:
                    for rate in (0.3, 0.5):
                        drawn = np.random.default_rng(1).random((6, 12)) < rate * scale
                        tests.add_batches([see_batches(drawn)])
                made[f"{most} {names} {scale} {runs}"] = dict(tests.list_results())
    numbers = np.array([0.5, 3.0, 7.5])
    made["squares"] = [noise_tests.test_squares(numbers, freedom) for freedom in (1, 3, 50)]
    made["counts"] = [
        noise_tests._test_counts(np.array(each), 20, 0.3) for each in ([6], [0, 6], [6, 15], [20])
    ]
    made["extremes"] = [
        noise_tests._test_extremes(*each)
        for each in ((3, 0.2, 0.1), (1, math.nan, 0.5), (9, 0.4, 0.6))
    ]
    made["apart"] = [
        noise_tests._compare_with_normal(each)
        for each in (numbers, np.linspace(-2, 2, 50), np.zeros(9))
    ]
    logs = {
        name: {test: math.log10(max(p, 1e-300)) for test, p in values.items()}
        if isinstance(values, dict)
        else values
        for name, values in made.items()
    }
    check_values("p_values_of_noise", logs, rel=1e-3, abs=1e-4)


def test_batches_and_replays_are_as_stored() -> None:
    made: dict[str, Any] = {}
    for sampled in (0, 1, 2):
        for canaries in (range(4, 7), range(0, 2), range(18, 20)):
            sampler = PoissonSampler(20, 0.3, open_stream(5, "sampling"))
            drawn = transcripts.FixedCanaries(sampler, canaries, sampled).draw_block(30)
            made[f"{sampled} {canaries}"] = drawn
    recorder = transcripts.Recorder()
    counted = recorder.replace_sampler(1, PoissonSampler(20, 0.3, open_stream(5, "sampling")))
    counted.draw_block(7)
    (seen,) = recorder.batches
    made["counted"] = [seen.unit_counts, seen.sizes, seen.again, seen.beside]
    sums = torch.arange(6.0).reshape(3, 2)
    blocks = [transcripts.Block("a", sums + 10 * k, torch.ones(3, 2) * k, 0.5) for k in range(2)]
    blocks.insert(1, transcripts.Block("b", torch.ones(1, 2), torch.full((1, 2), 7.0)))
    made["joined"] = [
        [block.name, block.sums, block.outputs, block.step]
        for block in transcripts.join_blocks(blocks)
    ]
    replayer = transcripts.Replayer({3: blocks, 4: blocks[:1]}, range(2), sampled=1)
    replayer.observe_release("a", 3, torch.full((2,), 5.0), lambda: torch.zeros(2))
    steps = replayer.observe_steps("a", 3, 2, (2,))
    made["given"] = [steps.given, steps.outputs]
    steps.sums[:] = 2.0
    made["next"] = or_error(replayer.observe_release, "a", 3, torch.ones(2), lambda: None)
    made["b"] = replayer.observe_release("b", 3, torch.ones(2), lambda: torch.zeros(2))
    made["over"] = or_error(replayer.observe_steps, "a", 3, 4, (2,))
    made["parts"] = replayer.observe_steps("a", 4, 2, (2,)).outputs
    made["sums"] = replayer.joined_sums[3]
    check_values("batches_and_replays", made)


def test_ratios_of_releases_are_as_stored() -> None:
    generator = np.random.default_rng(0)
    products, squares = generator.normal(size=7), generator.random(7)
    made = [
        canary_attack._log_ratios(products, squares, rate, group)
        for rate in (1.0, 0.3)
        for group in (1, 4)
    ]
    by_hand = sum(
        math.log(
            sum(
                math.comb(4, j) * 0.3**j * 0.7 ** (4 - j) * math.exp(j * p - j * j * s / 2)
                for j in range(5)
            )
        )
        for p, s in zip(products, squares, strict=True)
    )
    assert made[3] == pytest.approx(by_hand)
    assert made[0] == pytest.approx(float((products - squares / 2).sum()))
    check_values("ratios_of_releases", made)


def rows_of(kind: str) -> TrainingSet:
    generator = np.random.default_rng(len(kind))
    features = torch.from_numpy(generator.normal(size=(150, 6)).astype(np.float32))
    labels: Any = np.repeat([0, 1, 2, 3], [70, 63, 10, 7])
    if kind == "labels":
        labels = (generator.random((150, 4)) < [0.5, 0.4, 0.06, 0.0]).astype(np.uint8)
    if kind == "alike":
        labels = np.arange(150) % 3
    names = [f"p{row // 2}" if row < 60 else f"q{row}" for row in range(150)]
    units = Units.number_units(names) if kind == "patients" else None
    return TrainingSet(features, torch.from_numpy(labels), 5 if kind == "rare" else 4, units=units)


@pytest.mark.parametrize("epsilon", [8.0, math.inf])
def test_membership_attacks_are_as_stored(epsilon: float) -> None:
    made: dict[str, Any] = {}
    options = (
        {"head": "least_squares"}
        if epsilon < math.inf
        else {"head": "nonprivate", "penalties": [1e-3, 1e-1], "tolerance": 1e-4}
    )
    method = method_options(options)
    for kind in ("rare", "labels", "patients", "alike")[:: 1 if epsilon < math.inf else 3]:
        data = rows_of(kind)
        plan = plan_of(method, data.n, noise=3.0, epsilon=epsilon)
        if epsilon == math.inf:
            plan = made_plan((), data.n)
        for rows, share, targets in ((1000, 0.0, None), (40, 0.1, 6)):
            record, columns = membership.attack_membership(
                method,
                plan,
                data,
                seed=3,
                shadows=8,
                targets=targets,
                rows=rows,
                mislabelled=share,
            )
            assert record.pop("seconds") > 0
            assert record.pop("shadows_per_second") > 0
            roc = record.pop("roc")
            made[f"{kind} {rows}"] = [
                by_column(record.pop("rows")),
                record,
                len(columns["attack"]),
                [*dict.fromkeys(columns["attack"])],
                [
                    [
                        curve["rows"],
                        curve["attack"],
                        *(
                            float(np.nansum(np.array(curve[end], dtype=float)))
                            for end in ("tpr", "low", "high")
                        ),
                    ]
                    for curve in roc["curves"]
                ],
                {
                    name: np.nan_to_num(np.array(roc[name], dtype=float), nan=-1.0)[::4]
                    for name in ("fpr", "allowed")
                },
                [float(np.sum(columns["member"])), float(np.median(columns["score"]))],
            ]
    check_values(f"membership_{epsilon}", made, rel=5e-3, abs=2e-3)


def test_units_and_coins_of_membership_attacks_are_as_stored() -> None:
    made: dict[str, Any] = {}
    for kind in ("rare", "labels", "patients", "alike"):
        data = rows_of(kind)
        for rows, share in ((1000, 0.0), (60, 0.5)):
            drawn = membership.draw_units(data, rows=rows, mislabelled=share, seed=9)
            coins = membership.toss_coins(drawn, 4, seed=9)
            left = membership.leave_units_out(data, drawn, coins[0])
            groups, missing = membership._group_units(drawn)
            assert left.units is not None
            made[f"{kind} {rows}"] = [
                drawn.units,
                drawn.rows,
                drawn.unit_of,
                drawn.mislabelled,
                drawn.labels,
                drawn.rare,
                drawn.sizes,
                coins,
                left.units.weights,
                groups,
                missing,
                membership.copy_rows(data, drawn.rows),
            ]
        labels = data.labels.numpy()
        made[f"{kind} rare"] = [
            membership._find_rare_rows(labels, 5),
            membership._find_rare_rows(labels[:140], 5),
        ]
    counts = (
        [90, 5, 5],
        [90, 10, 0],
        [50, 50, 11],
        [10, 10, 10],
        [95, 5, 5, 5, 1],
        [22] * 5 + [10],
        [22] * 5 + [11],
    )
    made["rare classes"] = [
        None
        if (rare := membership._find_rare_rows(np.repeat(range(len(each)), each), 6)) is None
        else int(rare.sum())
        for each in counts
    ]
    made["refused"] = [
        or_error(membership._check_request, TrainingSet(torch.ones(n, 2), labels, k))
        for n, k in ((19, 2), (20, 2), (30, 1))
        for labels in (torch.zeros(n).long(), torch.zeros(n, k, dtype=torch.uint8))
    ]
    ends = [np.arange(83) / 100 + shift for shift in (0.0, -0.001, 0.002)]
    ends[1][-1] = math.nan
    roc = membership_attacks.Roc(
        rates=ends[0],
        tpr=ends[0],
        low=ends[1],
        high=ends[2],
        auc=0.75,
        auc_interval=(0.7, 0.8),
        members=5,
        non_members=7,
    )
    made["described"] = membership._describe_roc(roc)
    made["rates"] = [
        membership._by_rate(np.arange(9.0) / 7),
        membership._round_curve(np.array([0.12345678, math.nan, 1.0, 5.0])),
    ]
    record = Membership.model_validate(MEMBERSHIP)
    assert isinstance(record.find_attack(), Attacked)
    assert record.model_copy(update={"rows": record.rows[:1]}).find_attack() is None
    table = torch.arange(14.0).reshape(7, 2)
    read = [(start, table[start:end]) for start, end in ((0, 3), (3, 5), (5, 7))]
    blocks: Any = SimpleNamespace(dimension=2, device="cpu", read_blocks=lambda: read)
    assert torch.equal(membership.copy_rows(blocks, np.array([2, 3, 5, 6])), table[[2, 3, 5, 6]])
    check_values("units_of_membership", made)


def test_scores_of_membership_attacks_are_as_stored() -> None:
    made: dict[str, Any] = {}
    for heads in (2, 3, 20, 66):
        generator = np.random.default_rng(heads)
        members = generator.random((heads, 6)) < 0.5
        members[:, 0], members[1:, 1] = True, False
        scaled = generator.normal(size=(heads, 6)) + members
        scaled[:, 5] = 2.0
        made[f"lira {heads}"] = membership_attacks.score_lira(scaled, members, min(heads, 5))
        logs = -np.exp(scaled)
        made[f"rmia {heads}"] = membership_attacks.score_rmia(logs, members, min(heads, 5))
        made[f"lone {heads}"] = membership_attacks.score_rmia(logs[:, 2:3], members[:, 2:3], 2)
        rates = (0.0, 0.05, 0.1, 0.5, 1.0)
        for name, scores in (("plain", scaled), ("ties", np.round(scaled)), ("in", None)):
            tiled = np.tile(members | (scores is None), 30)
            tiled_scores = np.tile(scaled if scores is None else scores, 30)
            roc = membership_attacks.measure_roc(tiled_scores, tiled, rates, seed=1)
            made[f"roc {name} {heads}"] = roc and {
                name: np.nan_to_num(value) for name, value in vars(roc).items()
            }
    logits: Any = np.array(
        [[3000.0, -3000.0, 0.0], [-1.0, 2.0, 0.5], [0.0, 0.0, 0.0], [3000.0, -3000.0, 2000.0]],
        np.float32,
    )
    for labels in ([0, 1, 2, 0], [[1, 0, 1], [1, 1, 1], [0, 0, 0], [1, 0, 1]]):
        seen = membership_attacks.compute_confidences(logits, np.array(labels))
        made[f"confidences {labels}"] = [*seen]
    for count in (48, 49, 50):
        ranks = np.sin(np.arange(2.0 * count)).reshape(2, count)
        sides = np.array([[True], [False]]) ^ np.zeros((2, count), dtype=bool)
        roc = membership_attacks.measure_roc(ranks, sides, (10 / 49, 9 / 48), seed=1)
        made[f"rates of {count}"] = roc and np.nan_to_num(roc.tpr, nan=-1.0)
    table = measure._make_score_table([{"attack": ["a"], "member": [True], "score": [1]}] * 2)
    made["tables"] = [table, measure._make_score_table([])]
    assert table.schema == measure.SCORES
    check_values("scores_of_membership", made, rel=1e-5)


def test_the_fit_of_a_chosen_penalty_is_kept() -> None:
    data, plan = rows_of("alike"), made_plan((), 150)
    for penalties, kept in (([1e-3], True), ([1e-3, 1e2], False)):
        method = method_options({"head": "nonprivate", "penalties": penalties})
        settled = membership.settle_choice(method, plan, data, seed=1)
        assert (settled is method) == kept
        assert len(settled.penalties) == 1  # type: ignore[attr-defined]
