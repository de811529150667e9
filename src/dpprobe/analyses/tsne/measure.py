"""t-SNE of features, and the share of neighbours that are preserved in the plane; not private."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from dpprobe.counted_nouns import count_noun
from dpprobe.errors import DataError
from dpprobe.files.json_files import check_not_newer
from dpprobe.files.table_files import read_table, write_table

if TYPE_CHECKING:
    from dpprobe.features.feature_store import FeatureStore

logger = logging.getLogger("dpprobe")

EMBEDDING_FORMAT = "dpprobe-embedding"
EMBEDDING_FORMAT_VERSION = 1
METADATA_KEY = b"dpprobe"
NEIGHBOURS = 15  # number of nearest neighbours that are compared
LARGEST = 1e15  # the largest feature whose square, summed over features, fits float32
ANCHORS = 2000  # number of rows whose neighbours are compared
ENOUGH = 0.9  # PCA must keep this share of neighbours, or the number of components is doubled
DOUBLINGS = 3
NO_TSNE: dict[str, Any] = {
    "method": None,
    "perplexity": None,
    "components": None,
    "neighbours": None,
    "pca_agreement": None,
    "tsne_agreement": None,
}
FEWEST_ROWS = 10  # fewest rows of a plot


def embed_tsne(
    manifest: Path, output: Path, *, options: Mapping[str, Any], seed: int, threads: int
) -> None:
    """Embeds the features of a split in the plane, and measures how many neighbours are preserved.

    Applies PCA, then openTSNE (Policar, Strazar and Zupan, 2024), initialised with PCA. While PCA
    keeps less than 90% of the points' 15 nearest neighbours in feature space, its number of
    components is doubled, up to three times. Equal seeds and numbers of threads give equal plots.

    Fewer than 10 rows, or only equal rows, give a table without points instead of an error. The
    metadata of a table without points has a `note` with the reason, and `method` is null.

    Args:
      output: a parquet file with columns id, label, x and y. For several labels per row, label is
        the number of positive labels. The metadata has `pca_agreement` and `tsne_agreement`, the
        mean shares of neighbours that PCA and t-SNE keep; null for a table without points.
      options: the study's block `tsne`, with points (larger splits are sampled with the seed),
        perplexity (lowered to a third of the rows) and components (before any doubling).

    Raises:
      DataError: if a feature shard is missing or damaged.
    """
    # The import of HDF5 is slow, and figures import this module without reading features.
    from dpprobe.features.feature_store import FeatureStore

    store = FeatureStore(manifest).leave_out_nulls()
    rows = _draw_sample(store.rows, options["points"], seed)
    features = store.read_rows(rows)
    note = None
    if len(rows) < FEWEST_ROWS:
        note = f"no points: {len(rows)} rows, t-SNE needs at least {FEWEST_ROWS}"
    elif not np.ptp(features, axis=0).any():
        note = f"no points: the features of all {len(rows)} rows are equal"
    if note is not None:
        logger.warning("t-SNE: %s", note)
        rows, plane, facts = rows[:0], np.empty((0, 2)), dict(NO_TSNE)
    else:
        plane, facts = compute_embedding(
            features,
            perplexity=options["perplexity"],
            components=options["components"],
            seed=seed,
            threads=threads,
        )
    labels, class_names, legend = _choose_colours(store)
    facts |= {
        "format": EMBEDDING_FORMAT,
        "format_version": EMBEDDING_FORMAT_VERSION,
        "private": False,
        "rows": store.rows,
        "points": len(rows),
        "note": note,
        "class_names": class_names,
        "legend": legend,
        "features": store.fingerprint,
    }
    columns = {
        "id": pa.array([store.ids[row] for row in rows], pa.string()),
        "label": pa.array(labels[rows], pa.int64()),
        "x": pa.array(plane[:, 0].astype(np.float32)),
        "y": pa.array(plane[:, 1].astype(np.float32)),
    }
    metadata = {METADATA_KEY: json.dumps(facts).encode()}
    write_table(output, pa.table(columns).replace_schema_metadata(metadata))


def read_embedding(path: Path) -> tuple[pa.Table, dict[str, Any]]:
    """Reads a table from `embed_tsne` and the table's metadata; DataError for another file."""
    table = read_table(path)
    facts = json.loads((table.schema.metadata or {}).get(METADATA_KEY, b"{}"))
    check_not_newer(path, facts, kind=EMBEDDING_FORMAT, version=EMBEDDING_FORMAT_VERSION)
    written = facts.get("format"), facts.get("format_version")
    if written != (EMBEDDING_FORMAT, EMBEDDING_FORMAT_VERSION):
        raise DataError(
            f"{path}: not a t-SNE embedding of this dpprobe version; delete it and run again"
        )
    return table, facts


def compute_embedding(
    features: np.ndarray, *, perplexity: float, components: int, seed: int, threads: int
) -> tuple[np.ndarray, dict[str, Any]]:
    """Computes PCA and t-SNE of features [m, d]; returns points [m, 2], and facts for metadata."""
    import openTSNE
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    generator = np.random.Generator(np.random.Philox(seed))
    anchors = np.sort(generator.permutation(len(features))[:ANCHORS])
    largest = float(np.abs(features).max())
    if largest > LARGEST:
        features = features / np.float32(largest)
    allowed = (len(features) - 1) / 3
    if perplexity > allowed:
        logger.warning(
            "t-SNE: perplexity %g needs more than %d rows, so perplexity %g is used",
            perplexity,
            len(features),
            allowed,
        )
    with threadpool_limits(threads):
        truth = find_nearest(features, anchors)
        reduced, kept = _reduce_dimension(
            features, anchors, truth, components=components, seed=seed
        )
        plane = np.asarray(
            openTSNE.TSNE(
                perplexity=min(perplexity, allowed),
                initialization="pca",
                n_jobs=threads,
                random_state=seed,
            ).fit(_at_least_two_columns(reduced))
        )
        flat = measure_agreement(truth, find_nearest(plane, anchors))
    logger.info(
        "t-SNE: %d rows, PCA to %d keeps %.0f %% of neighbours, t-SNE %.0f %%",
        len(features),
        reduced.shape[1],
        100 * kept,
        100 * flat,
    )
    facts = {
        "method": "t-SNE",
        "seed": seed,
        "threads": threads,
        "perplexity": min(perplexity, allowed),
        "components": reduced.shape[1],
        "neighbours": truth.shape[1],
        "pca_agreement": kept,
        "tsne_agreement": flat,
        "openTSNE": openTSNE.__version__,
    }
    return plane, facts


def find_nearest(rows: np.ndarray, anchors: np.ndarray, *, k: int = NEIGHBOURS) -> np.ndarray:
    """Returns indices [a, k] of the k other rows nearest to each anchor [a], in any order."""
    k = min(k, len(rows) - 1)
    # Subtracting the mean changes no distance, but makes float32 products more precise.
    centred = np.ascontiguousarray(rows - rows.mean(axis=0), dtype=np.float32)
    squares = np.einsum("ij,ij->i", centred, centred)
    result = np.empty((len(anchors), k), dtype=np.int64)
    for start in range(0, len(anchors), 256):
        block = anchors[start : start + 256]
        distance = squares[None, :] - 2 * (centred[block] @ centred.T)
        distance[np.arange(len(block)), block] = np.inf
        result[start : start + 256] = np.argpartition(distance, k - 1, axis=1)[:, :k]
    return result


def measure_agreement(first: np.ndarray, second: np.ndarray) -> float:
    """Returns the mean share of a row's neighbours in `first` [a, k] that are also in `second`."""
    shared = [np.isin(one, two).mean() for one, two in zip(first, second, strict=True)]
    return float(np.mean(shared))


def _reduce_dimension(
    features: np.ndarray, anchors: np.ndarray, truth: np.ndarray, *, components: int, seed: int
) -> tuple[np.ndarray, float]:
    """Returns enough principal components to keep most neighbours, and the share of neighbours."""
    from sklearn.decomposition import PCA

    most = min(len(features) - 1, features.shape[1])
    dimension = min(components, most)
    for attempt in range(DOUBLINGS + 1):
        reduced = PCA(dimension, random_state=seed).fit_transform(features)
        kept = measure_agreement(truth, find_nearest(reduced, anchors))
        if kept >= ENOUGH or dimension == most or attempt == DOUBLINGS:
            break
        dimension = min(2 * dimension, most)
    if kept < ENOUGH:
        logger.warning(
            "t-SNE: %d components keep only %.0f %% of neighbours", dimension, 100 * kept
        )
    return np.asarray(reduced, dtype=np.float64), kept


def _choose_colours(store: FeatureStore) -> tuple[np.ndarray, list[str], str]:
    """Returns labels [n] for the colours of rows, names of labels, and the legend's title."""
    labels = np.asarray(store.labels)
    if labels.ndim == 1:
        return labels, list(store.class_names), "class"
    counts = np.asarray((labels > 0).sum(axis=1))
    names = [count_noun(count, "label") for count in range(counts.max() + 1)]
    return counts, names, "positive labels"


def _at_least_two_columns(reduced: np.ndarray) -> np.ndarray:
    """Adds a column of zeros to a single column, because t-SNE needs two columns."""
    return np.pad(reduced, ((0, 0), (0, max(0, 2 - reduced.shape[1]))))


def _draw_sample(rows: int, points: int, seed: int) -> np.ndarray:
    """Returns sorted indices of at most `points` rows, drawn without replacement."""
    if rows <= points:
        return np.arange(rows)
    generator = np.random.Generator(np.random.Philox(seed))
    return np.sort(generator.choice(rows, size=points, replace=False))
