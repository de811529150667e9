"""jax-privacy: `clipped_grad`, `gaussian_privatizer` and `CyclicPoissonSampling`, one jitted step.

The code follows jax-privacy's example dp_logistic_regression.py and `batch_selection`. Batches are
padded to one size, so that one program suffices. The program gathers the rows, and skips whole
microbatches of padding.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import metadata, util
from typing import Any

import numpy as np
import numpy.typing as npt

from peers import Run, Task

_ON_DEVICE: dict[int, tuple[Any, Any]] = {}


def version() -> str | None:
    return metadata.version("jax-privacy") if util.find_spec("jax_privacy") else None


def trainer(task: Task, features: npt.NDArray[Any], labels: npt.NDArray[Any]) -> Run:
    import dp_accounting
    import jax
    import jax.numpy as jnp
    import optax
    from jax_privacy import noise_addition
    from jax_privacy.clipping import clipped_grad

    def loss(params: Any, row: Any, label: Any) -> Any:
        logits = row @ params["weights"] + params["bias"]
        return optax.softmax_cross_entropy_with_integer_labels(logits, label)

    gradient = clipped_grad(
        loss,
        l2_clip_norm=task.clip,
        normalize_by=task.batch,
        batch_argnums=(1, 2),
        keep_batch_dim=False,
        microbatch_size=task.physical,
    )
    relation = dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
    privatizer = noise_addition.gaussian_privatizer(
        stddev=task.noise_multiplier * gradient.sensitivity(relation), prng_key=0
    )
    optimizer = optax.sgd(task.learning_rate)

    def step(state: Any, rows: Any, targets: Any, index: Any, padding: Any) -> Any:
        params, noise_state, optimizer_state = state
        total = gradient(params, rows[index], targets[index], is_padding_example=padding)
        noisy, noise_state = privatizer.update(total, noise_state)
        updates, optimizer_state = optimizer.update(noisy, optimizer_state)
        return optax.apply_updates(params, updates), noise_state, optimizer_state

    params = {
        "weights": jnp.zeros((features.shape[1], task.classes)),
        "bias": jnp.zeros(task.classes),
    }
    return _loop(
        jax.jit(step),
        (params, privatizer.init(params), optimizer.init(params)),
        (_on_device(features), _on_device(labels)),
        _batches(task),
    )


def _loop(step: Any, state: Any, data: tuple[Any, Any], batches: Iterator[Any]) -> Run:
    import jax

    def run(steps: int) -> None:
        nonlocal state
        for _ in range(steps):
            index = next(batches)
            state = step(state, *data, index, index == -1)
        jax.block_until_ready(state)

    # Compiles the step for later batches, which have the shape of this batch of only padding.
    padding = np.full_like(next(batches), -1)
    jax.block_until_ready(step(state, *data, padding, padding == -1))
    return run


def _on_device(array: npt.NDArray[Any]) -> Any:
    """Returns JAX's copy of an array, which is made only once."""
    import jax.numpy as jnp

    if id(array) not in _ON_DEVICE:
        _ON_DEVICE[id(array)] = (array, jnp.asarray(array))
    return _ON_DEVICE[id(array)][1]


def _batches(task: Task) -> Iterator[npt.NDArray[Any]]:
    """Yields each step's rows, padded with -1 to one size that is a multiple of the microbatch."""
    from jax_privacy import batch_selection

    # A batch over six standard deviations above the mean (1 in 1e9) would be compiled again.
    largest = task.batch if task.full else task.batch + 6 * int(task.batch**0.5 + 1)
    multiple = task.physical or 8
    size = -(-largest // multiple) * multiple
    sampling = batch_selection.CyclicPoissonSampling(
        sampling_prob=task.rate,
        iterations=10**9,
        partition_type=batch_selection.PartitionType.INDEPENDENT,
    )
    everything = np.arange(task.rows, dtype=np.int32)
    drawn = sampling.batch_iterator(task.rows, rng=0)
    while True:
        rows = everything if task.full else next(drawn)
        pieces = batch_selection.split_and_pad_global_batch(rows, size, task.physical)
        assert len(pieces) == 1, "a batch beyond six standard deviations"
        yield pieces[0]
