"""An audit's observers see exactly the releases, and a replay is exact."""

from __future__ import annotations

import math
from itertools import chain

import numpy as np
import pytest
import torch

from dpprobe.analyses.audit.canary_attack import Attack, Shape, Worlds, make_worlds
from dpprobe.analyses.audit.transcripts import (
    Block,
    FixedCanaries,
    Recorder,
    Replayer,
    SeenBatches,
    join_blocks,
)
from dpprobe.errors import PrivacyError
from dpprobe.heads.fit import fit_heads
from dpprobe.heads.options import MethodOptions
from dpprobe.privacy.accountants import gaussian_mu
from dpprobe.privacy.entropy import SystemEntropy
from dpprobe.privacy.plan import Plan
from dpprobe.privacy.randomness import derived_seed, open_stream
from dpprobe.privacy.releases import Releases
from dpprobe.privacy.sampling import PoissonSampler
from tests.support.audits import METHODS, plan_of

SHAPE = Shape(n=300, dimension=8, num_classes=3, multi_label=False)
UNSAMPLED = [name for name in METHODS if not name.startswith("sampled")]


def worlds(group: int = 2) -> Worlds:
    return make_worlds(SHAPE, group=group, length=1.0, seed=3)


def seeds(count: int) -> list[int]:
    return [derived_seed(11, f"run {index}") for index in range(count)]


def recorded(method: MethodOptions, plan: Plan, data: Worlds, *, present: bool) -> Recorder:
    recorder = Recorder()
    world = data.present if present else data.absent
    fit_heads(method, world, plan, seeds(3), observer=recorder)
    return recorder


@pytest.mark.parametrize("name", METHODS)
def test_an_observer_sees_every_release_and_changes_no_head(name: str) -> None:
    method, plan = METHODS[name], plan_of(METHODS[name], SHAPE.n)
    recorder, data = Recorder(), worlds()
    observed = fit_heads(method, data.present, plan, seeds(3), observer=recorder)
    alone = fit_heads(method, data.present, plan, seeds(3))
    if method.is_exact:
        np.testing.assert_array_equal(observed.weights, alone.weights)
    else:  # float32 sums in another order
        np.testing.assert_allclose(observed.weights, alone.weights, rtol=2e-3, atol=2e-3)
    assert set(recorder.transcripts) == set(seeds(3))
    for transcript in recorder.transcripts.values():
        for mechanism in plan.mechanisms:
            (seen,) = [item for item in join_blocks(transcript) if item.name == mechanism.name]
            parts = SHAPE.num_classes if name == "newton_per_class" else 1
            expected = mechanism.count * (parts if mechanism.name == "hessians" else 1)
            assert len(seen.sums) == expected
            noise = seen.outputs - seen.sums
            if not parts > 1 and noise.ndim == 3 and noise.shape[1] == noise.shape[2]:
                noise = noise.diagonal(dim1=1, dim2=2)
            deviation = mechanism.noise_multiplier * mechanism.sensitivity
            if noise.numel() > 300 and parts == 1:
                ratio = float(noise.square().mean().sqrt()) / deviation
                assert abs(ratio - 1) < 5 / math.sqrt(2 * noise.numel())


@pytest.mark.parametrize("name", METHODS)
def test_a_replay_in_the_same_world_has_the_same_sums(name: str) -> None:
    method, plan, data = METHODS[name], plan_of(METHODS[name], SHAPE.n), worlds()
    recorder = recorded(method, plan, data, present=False)
    replayer = Replayer(recorder.transcripts, data.canaries, sampled=0)
    fit_heads(method, data.absent, plan, seeds(3), observer=replayer)
    for seed, transcript in recorder.transcripts.items():
        sums = replayer.joined_sums[seed]
        assert list(sums) == [block.name for block in join_blocks(transcript)]
        for block in join_blocks(transcript):
            assert torch.equal(block.sums, sums[block.name])


def test_compiled_steps_are_seen_as_steps_one_by_one() -> None:
    method, data = METHODS["sampled_sgd"].model_copy(update={"steps": 100}), worlds()
    plan = plan_of(method, SHAPE.n)
    compiled, one_by_one = Recorder(), Recorder()
    one_by_one.sees_each_step = True
    for recorder in (compiled, one_by_one):
        fit_heads(method, data.present, plan, seeds(3), observer=recorder)
    for seen, other in zip(compiled.batches, one_by_one.batches, strict=True):
        np.testing.assert_array_equal(seen.unit_counts, other.unit_counts)
    for seed in seeds(3):
        assert len(compiled.transcripts[seed]) < len(one_by_one.transcripts[seed])
        (block,), (singles,) = (
            join_blocks(recorder.transcripts[seed]) for recorder in (compiled, one_by_one)
        )
        torch.testing.assert_close(block.sums, singles.sums, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(block.outputs, singles.outputs, rtol=1e-5, atol=1e-5)


def test_compiled_steps_replay_what_was_recorded_one_by_one() -> None:
    """Controls record step by step; a replay may use other blocks."""
    method, data = METHODS["sampled_sgd"].model_copy(update={"steps": 100}), worlds()
    plan = plan_of(method, SHAPE.n)
    recorder = Recorder()
    recorder.sees_each_step = True
    heads = fit_heads(method, data.absent, plan, seeds(3), observer=recorder)
    replayer = Replayer(recorder.transcripts, data.canaries, sampled=0)
    again = fit_heads(method, data.absent, plan, seeds(3), observer=replayer)
    np.testing.assert_allclose(again.weights, heads.weights, rtol=1e-5, atol=1e-6)
    for seed in seeds(3):
        (block,) = join_blocks(recorder.transcripts[seed])
        assert len(replayer.sums[seed][block.name]) < len(block.sums)
        sums = replayer.joined_sums[seed][block.name]
        torch.testing.assert_close(block.sums, sums, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", METHODS)
def test_a_canary_changes_each_sum_by_no_more_than_its_sensitivity(name: str) -> None:
    method, plan, data = METHODS[name], plan_of(METHODS[name], SHAPE.n), worlds(group=1)
    recorder = recorded(method, plan, data, present=False)
    replayer = Replayer(recorder.transcripts, data.canaries, sampled=1)
    fit_heads(method, data.present, plan, seeds(3), observer=replayer)
    slack = 0.0 if method.is_exact else 1e-5
    for seed, transcript in recorder.transcripts.items():
        for mechanism in plan.mechanisms:
            (block,) = [item for item in join_blocks(transcript) if item.name == mechanism.name]
            steps = list(replayer.joined_sums[seed][mechanism.name] - block.sums)
            if len(steps) > mechanism.count:  # a release in parts
                parts = len(steps) // mechanism.count
                steps = [torch.cat(steps[i : i + parts]) for i in range(0, len(steps), parts)]
            longest = max(float(step.norm()) for step in steps)
            assert 0 < longest <= mechanism.sensitivity * (1 + slack)


@pytest.mark.parametrize("name", UNSAMPLED)
def test_the_canary_uses_up_the_whole_promise(name: str) -> None:
    """The canary's share is measured over all mechanisms together."""
    method, plan = METHODS[name], plan_of(METHODS[name], SHAPE.n)
    attack = Attack(method=method, plan=plan, worlds=[worlds(group=3)], claim=plan)
    claimed = 3 * gaussian_mu(plan.mechanisms)
    assert 0.9 * claimed <= attack.compute_strength(seeds(3)) <= claimed * (1 + 1e-5)


def test_releases_with_system_entropy_refuse_an_observer() -> None:
    plan = plan_of(METHODS["least_squares"], SHAPE.n)
    with pytest.raises(PrivacyError, match="noise, so it must not read the sums of a release"):
        Releases(plan, (0,), torch.device("cpu"), entropy=SystemEntropy(), observer=Recorder())


@pytest.mark.parametrize("at_once", [1, 3, 40])
def test_pairs_in_batches_are_counted_as_a_plain_loop_counts_them(at_once: int) -> None:
    """Blocks may have any number of steps, and batches may be empty."""
    drawn = [[1, 2, 5, 6], [], [2, 5], [5], [0, 1, 5, 7], [0, 1, 2, 3, 5]] * 7
    left = list(drawn)

    class Given:
        def draw_block(self, steps: int) -> tuple[np.ndarray, np.ndarray]:
            batches = [left.pop(0) for _ in range(steps)]
            sizes = np.array([len(batch) for batch in batches])
            return np.array([*chain(*batches)], dtype=np.int64), sizes

    seen = SeenBatches(Given())
    while left:
        seen.draw_block(min(at_once, len(left)))
    again, beside = [0, 0], [0, 0]
    for step, batch in enumerate(drawn):
        for unit in batch:
            again[step % 2] += step + 1 < len(drawn) and unit in drawn[step + 1]
            beside[unit % 2] += unit + 1 in batch
    assert seen.again.tolist() == again
    assert seen.beside.tolist() == beside
    assert seen.sizes == [len(batch) for batch in drawn]
    assert seen.unit_counts.tolist() == [sum(unit in batch for batch in drawn) for unit in range(8)]


def block(name: str, releases: int, value: float, step: float | None = None) -> Block:
    """Returns a block with the sums `value` and the outputs `value` + 0.5, + 1.5, ..."""
    sums = torch.full((releases, 2), value)
    return Block(name, sums, sums + torch.arange(releases)[:, None] + 0.5, step)


def test_blocks_of_a_mechanism_are_joined_in_the_order_of_its_first_release() -> None:
    first, other, later = block("a", 3, 1.0, 0.5), block("b", 1, 7.0), block("a", 2, 2.0, 0.5)
    joined = join_blocks([first, other, later])
    assert [(each.name, each.step) for each in joined] == [("a", 0.5), ("b", None)]
    assert torch.equal(joined[0].sums, torch.cat([first.sums, later.sums]).double())
    assert torch.equal(joined[0].outputs, torch.cat([first.outputs, later.outputs]).double())
    assert torch.equal(joined[1].sums, other.sums.double())
    assert all(each.sums.dtype == torch.float64 for each in joined)


def fail() -> torch.Tensor:
    raise AssertionError("a replay draws no noise")


def test_a_replay_gives_recorded_outputs_in_order_whatever_the_blocks_and_keeps_new_sums() -> None:
    blocks = [block("a", 3, 1.0), block("b", 1, 7.0), block("a", 2, 2.0)]
    replayer = Replayer({3: blocks, 4: blocks[:1]}, range(2), sampled=1)
    one = replayer.observe_release("a", 3, torch.full((2,), 5.0), fail)
    assert one.tolist() == [1.5, 1.5]
    steps = replayer.observe_steps("a", 3, 2, (2,))
    assert steps.given
    assert steps.outputs.tolist() == [[2.5, 2.5], [3.5, 3.5]]
    steps.sums[:] = 6.0
    with pytest.raises(PrivacyError, match="a release of a did not occur in the recorded run"):
        replayer.observe_release("a", 3, torch.ones(2), fail)
    assert replayer.observe_release("b", 3, torch.ones(2), fail).tolist() == [7.5, 7.5]
    with pytest.raises(PrivacyError, match="a release of a did not occur"):
        replayer.observe_steps("a", 3, 4, (2,))  # only two are left
    alone = replayer.observe_steps("a", 4, 2, (2,)).outputs
    assert alone.tolist() == [[1.5, 1.5], [2.5, 2.5]], "each seed has its own place"
    sums = replayer.joined_sums[3]
    assert sums["a"].tolist() == [[5.0, 5.0], [6.0, 6.0], [6.0, 6.0]]
    assert sums["b"].tolist() == [[1.0, 1.0]]


def test_a_recorder_counts_the_batches_that_a_fit_draws() -> None:
    recorder = Recorder()
    sampler = recorder.replace_sampler(1, PoissonSampler(20, 0.3, open_stream(5, "sampling")))
    units, sizes = sampler.draw_block(7)
    (seen,) = recorder.batches
    assert seen.sizes == sizes.tolist()
    assert seen.unit_counts.tolist() == np.bincount(units).tolist()


@pytest.mark.parametrize("canaries", [range(4, 7), range(0, 2), range(18, 20)])
@pytest.mark.parametrize("sampled", [0, 1, 2])
def test_fixed_canaries_are_placed_at_the_end_of_each_batch(canaries: range, sampled: int) -> None:
    free = PoissonSampler(20, 0.3, open_stream(5, "sampling")).draw_block(30)
    sampler = PoissonSampler(20, 0.3, open_stream(5, "sampling"))
    units, sizes = FixedCanaries(sampler, canaries, sampled).draw_block(30)
    batches = [np.split(each[0], np.cumsum(each[1])[:-1]) for each in ((units, sizes), free)]
    for fixed, drawn in zip(*batches, strict=True):
        kept = [unit for unit in drawn if unit not in canaries]
        assert fixed.tolist() == kept + list(canaries[:sampled])
