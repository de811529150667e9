"""What options of networks mean, and which are refused, held against the stored answers."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from dpprobe.finetune.options import Options, TuneBlocks, blocks_fault
from dpprobe.wrong_keys_and_values import explain_first
from tests.support.stored_records import check_values

FULL = {"steps": 7, "learning_rate": 0.5}
SAMPLED = {"batch_size": 32, "epochs": 2}
COVARIANCE = {"head": "feature_covariance", "normalize": {"kind": "l2"}}
FILE = {"init": "file", "init_file": "text/{dataset}.safetensors"}
SEARCH = {"trials": 3, "space": {"learning_rate": [0.1, 1.0]}}
SETTINGS: dict[str, dict[str, Any]] = {
    "full batches": FULL,
    "sampled": SAMPLED,
    "only the head": FULL | {"tune": "head"},
    "blocks": SAMPLED | {"tune": {"blocks": 3}},
    "lora": SAMPLED | {"tune": {"lora": {"rank": 8, "alpha": 16, "targets": ["attn.qkv"]}}},
    "bias": FULL | {"tune": "bias"},
    "norm in bfloat16": FULL | {"tune": "norm", "precision": "bfloat16"},
    "no such tune": FULL | {"tune": "last"},
    "two forms of tune": FULL | {"tune": {"blocks": 1, "lora": {}}},
    "no block": FULL | {"tune": {"blocks": 0}},
    "views of blocks": FULL | {"tune": {"blocks": 2}, "augment": {"views": 4, "pad": 2}},
    "views of the head": FULL | {"tune": "head", "augment": {}},
    "equal views": FULL | {"augment": {"flip": False}},
    "shifted views": FULL | {"augment": {"flip": False, "pad": 1}},
    "a slower backbone": FULL | {"backbone_rate": 0.1},
    "a frozen one that is slower": FULL | {"tune": "head", "backbone_rate": 0.1},
    "adam, automatic": SAMPLED | {"optimiser": "adam", "clipping": "automatic"},
    "several labels": FULL | {"loss": "sigmoid"},
    "a probe": FULL | {"probe": {"method": COVARIANCE}},
    "a sampled probe with half": SAMPLED
    | {"probe": {"share": 0.5, "method": {"head": "sgd", "batch_size": 16, "steps": 9}}},
    "a priced normalisation": FULL | {"normalize": {"kind": "centred"}},
    "a probe with priced statistics": FULL | {"probe": {"method": {"head": "feature_covariance"}}},
    "a probe that is not private": FULL | {"probe": {"method": {"head": "nonprivate"}}},
    "a probe that chooses": FULL | {"probe": {"method": {"head": "auto"}}},
    "a network as a probe": FULL | {"probe": {"method": {"head": "fine_tune", "tune": "head"}}},
    "a probe and a start": FULL
    | {"init": "scaled", "init_scale": 1, "probe": {"method": COVARIANCE}},
    "a probe and a bias": FULL | {"init_bias": -2.0, "probe": {"method": COVARIANCE}},
    "a probe of another link": FULL | {"loss": "sigmoid", "probe": {"method": {"head": "sgd"}}},
    "a probe with two normalisations": FULL
    | {"normalize": "none", "probe": {"method": COVARIANCE}},
    "a probe with priors": FULL
    | {"probe": {"method": {"head": "sgd", "class_priors": "released"}}},
    "priors": FULL | {"class_priors": "released"},
    "a probe of several labels": FULL
    | {
        "loss": "sigmoid",
        "probe": {"method": {"head": "momentum", "loss": "sigmoid", "class_weights": [1, 0.5]}},
    },
    "a start from a file": FULL | FILE,
    "a probe with public rows": FULL
    | {"probe": {"method": COVARIANCE | {"public_covariance": "public/{backbone}.json"}}},
    "a probe with two public files": FULL
    | {"probe": {"method": COVARIANCE | FILE | {"public_covariance": "public/{backbone}.json"}}},
    "a search of a path": FULL | FILE | {"search": SEARCH | {"space": {"init_file": ["a", "b"]}}},
    "a search": FULL | {"search": SEARCH},
    "a search of what is no option": FULL | {"search": SEARCH | {"space": {"speed": [1, 2]}}},
    "a search of steps": FULL | {"search": SEARCH | {"space": {"steps": [1, 2]}}},
    "a search of a fixed option": FULL | {"search": SEARCH | {"space": {"tune": ["head", "all"]}}},
    "a search of wrong values": FULL
    | {"search": SEARCH | {"space": {"learning_rate": [0.1, -1.0]}}},
    "a search of the loss": FULL | {"search": SEARCH | {"space": {"loss": ["softmax", "sigmoid"]}}},
    "a search of two": FULL
    | {
        "search": SEARCH
        | {
            "space": {
                "learning_rate": {"low": 0.1, "high": 10, "log": True},
                "optimiser": ["adam", "sgd"],
            }
        }
    },
    "one trial": FULL | {"search": SEARCH | {"trials": 1}},
    "no noise at all": FULL | {"max_grad_norm": 0},
}


def describe(options: Options) -> dict[str, Any]:
    faults = [
        options.class_fault(classes, multi_label=several)
        for classes, several in (
            (1, False),
            (2, False),
            (2, True),
            (10, False),
            (10, True),
        )
    ]
    return {
        "mechanisms": options.list_mechanisms(1000),
        "few": options.list_mechanisms(33)[-1],
        "dumped": options.model_dump(mode="json"),
        "identity": options.identity_options(),
        "class faults": faults,
        "choices": options.private_choices,
        "limits": options.engine_limits,
        "cut": [options.cut, options.cut_blocks, options.from_images, options.is_exact],
        "files": options.public_files(),
        "link": options.link,
        "filled": options.fill_paths(dataset="d", backbone="b").public_files(),
    }


def test_options_of_networks_mean_what_is_stored() -> None:
    answers: dict[str, Any] = {}
    first: dict[str, Any] = {}
    for name, values in SETTINGS.items():
        try:
            told = describe(Options.model_validate({"tune": "all", **values}))
        except ValidationError as error:
            answers[name] = explain_first(error)
            with pytest.raises(ValidationError):  # a search hides no fault
                Options.model_validate({"tune": "all", "search": SEARCH, **values})
            continue
        answers[name] = {key: value for key, value in told.items() if first.get(key) != value}
        first = first or told
    assert Options(tune=TuneBlocks(blocks=2)) == Options(tune={"blocks": 2})
    blocks = [blocks_fault(blocks, shown, "vit") for blocks in (0, 1, 4, 5) for shown in (0, 4)]
    check_values("options_of_networks", {**answers, "blocks": blocks})
