"""Writes the passport of a bundle: documents for reviewers, derived only from the bundle.

    bundle/                  the bundle's files, unchanged
    ro-crate-metadata.json   an RO-Crate of all files: sizes, hashes, software, guarantee, licence
    questions.md             questions of a privacy officer, answered from the bundle
    registry.yaml            an entry of the public registry of DP deployments
    leaderboard.yaml         a claim for the leaderboard of private image classification

Every value comes from a field of bundle.json or privacy.json, from the user's `published`, or from
the user's answers, which questions.md marks. Unknown values are left out, never guessed.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable, Iterator
from datetime import date
from pathlib import Path
from typing import Any

from dpprobe.errors import ConfigError, DataError
from dpprobe.files.atomic_writes import flush_to_disk, write_text
from dpprobe.files.json_files import write_json
from dpprobe.files.output_paths import check_output_path
from dpprobe.files.plain_files import sha256_file
from dpprobe.release.bundle import (
    BUNDLE_FILES,
    CARD_FILE,
    FACTS_FILE,
    HEAD_FILE,
    PAGE_FILE,
    SIGNATURE_FILE,
    STATEMENT_FILE,
    SUMS_FILE,
    BackboneFacts,
    Bundle,
    bundle_digest,
    check_outside,
    damaged_files,
)
from dpprobe.release.passport_answers import read_answers
from dpprobe.release.passport_forms import (
    ANSWERS,
    WORDS,
    Fields,
    answer_questions,
    find_stated,
    list_fields,
    list_forms,
    write_form,
)
from dpprobe.release.verification.verify import read_verified

CRATE_FILE, QUESTIONS_FILE = "ro-crate-metadata.json", "questions.md"
COPY = "bundle"

CRATE = "https://w3id.org/ro/crate/1.1"
# The context of RO-Crate 1.1 is older than schema.org's `sha256`.
CONTEXT = [f"{CRATE}/context", {"sha256": "http://schema.org/sha256"}]
SOFTWARE, RUN, DATA, BACKBONE, LICENSE = "#dpprobe", "#run", "#data", "#backbone", "#license"
NO_LICENSE = "empty: the bundle states no license"

# Content and media type of each file of a bundle.
FILES = {
    CARD_FILE: ("Model card", "text/markdown"),
    FACTS_FILE: ("Classes, preprocessing, backbone and options", "application/json"),
    HEAD_FILE: ("Weights of the head", "application/octet-stream"),
    STATEMENT_FILE: ("Privacy statement", "application/json"),
    PAGE_FILE: ("Page for a privacy officer", "text/html"),
    SUMS_FILE: ("SHA-256 of the other files", "text/plain"),
    SIGNATURE_FILE: ("Ed25519 signature of SHA256SUMS", "application/octet-stream"),
}
# Fields that the crate repeats as values, with their meaning.
GUARANTEE = {
    "epsilon_realised": "Most that the weights of the head cost one training unit",
    "delta": "Delta of epsilon_realised and of ledger.epsilon",
    "unit": "Whom or what the guarantee protects",
    "relation": "How two datasets differ that the guarantee compares",
    "n": "Number of training units",
    "patients.epsilon": "Most that the weights of the head cost a patient with several images",
    "sites.names": "Sites that trained the head together",
    "ledger.epsilon": "Most that the releases in the ledger, with their test results, cost one "
    "unit, when the bundle was made",
}
# Fields of the guarantee whose value is a sentence.
SAID = ("unit", "relation")

Entity = dict[str, Any]


def write_passport(
    bundle: Path,
    output: Path | None = None,
    *,
    published: date,
    public_key: Path | None = None,
    answers: Path | None = None,
) -> Path:
    """Writes the passport of a bundle into a new folder; returns the folder.

    The folder appears whole or not at all. By default it is NAME.passport beside the bundle.
    `public_key` is the signer's key, `answers` a filled form. Raises DataError for a
    bundle that does not verify, and ConfigError for faulty answers, or if the folder already has
    files or is inside a bundle.
    """
    read = read_verified(bundle, public_key=public_key)
    fields = list_fields(read, read_answers(read, answers) if answers else None)
    folder = output or bundle.resolve().with_name(f"{bundle.resolve().name}.passport")
    empty = folder.is_dir() and not any(folder.iterdir())
    if folder.is_symlink() or (folder.exists() and not empty):
        raise ConfigError(
            f"--output {folder}: already exists, and is not overwritten; delete it, or name "
            "another folder"
        )
    if not empty:
        check_output_path(folder, "--output")
    check_outside(folder / CRATE_FILE)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as place:
        made = Path(place) / "passport"
        _copy_bundle(read, made / COPY)
        write_text(made / QUESTIONS_FILE, answer_questions(fields))
        for name in list_forms():
            write_text(made / name, write_form(fields, name, published))
        write_json(made / CRATE_FILE, describe_crate(made, read, fields, published))
        made.replace(folder)
    flush_to_disk(folder.parent)
    return folder


def _copy_bundle(read: Bundle, target: Path) -> None:
    """Copies the verified files; raises DataError if the bundle changed since it was read."""
    target.mkdir(parents=True)
    digest = bundle_digest(read.folder)
    for name in (*BUNDLE_FILES, SIGNATURE_FILE):
        if (read.folder / name).exists():
            shutil.copyfile(read.folder / name, target / name)
            flush_to_disk(target / name)
    if bundle_digest(target) != digest or damaged_files(target):
        raise DataError(f"{read.folder}: changed while it was copied; run the command again")


def describe_crate(folder: Path, read: Bundle, fields: Fields, published: date) -> dict[str, Any]:
    """Returns the RO-Crate 1.1 metadata of all files in a passport's folder."""
    facts = read.facts
    copies = [name for name in FILES if (folder / COPY / name).exists()]
    values = list(_state_values(fields))
    forms, people = list_forms(), _describe_people(read, fields[ANSWERS])
    stated_license = facts.card.license or fields[ANSWERS].get("license")
    graph: list[Entity] = [
        {
            "@id": CRATE_FILE,
            "@type": "CreativeWork",
            "about": {"@id": "./"},
            "conformsTo": {"@id": CRATE},
        },
        {
            "@id": "./",
            "@type": "Dataset",
            "name": facts.name,
            "description": fields[WORDS]["promise"],
            "datePublished": published.isoformat(),
            "hasPart": _refer([f"{COPY}/", QUESTIONS_FILE, *forms]),
            "mentions": {"@id": RUN},
            "variableMeasured": _refer(value["@id"] for value in values),
            "license": {"@id": LICENSE},
            **{key: _refer(each["@id"] for each in made) for key, made in people.items() if made},
        },
        *(each for made in people.values() for each in made),
        {
            "@id": f"{COPY}/",
            "@type": "Dataset",
            "name": f"The bundle {facts.name}",
            "description": "The released head, its privacy statement and its documents.",
            "hasPart": _refer(f"{COPY}/{name}" for name in copies),
            "license": {"@id": LICENSE},
        },
        *(_describe_file(folder, f"{COPY}/{name}", *FILES[name]) for name in copies),
        _describe_file(folder, QUESTIONS_FILE, "Questions of a privacy officer", "text/markdown"),
        *(_describe_file(folder, name, forms[name], "application/yaml") for name in forms),
        *_describe_run(read, copies),
        *values,
        # RO-Crate 1.1 requires a license, which may be any text.
        {"@id": LICENSE, "@type": "CreativeWork", "name": stated_license or NO_LICENSE},
    ]
    return {"@context": CONTEXT, "@graph": graph}


def _describe_people(read: Bundle, answers: Fields) -> dict[str, list[Entity]]:
    """Describes the people responsible for the release, by property of the crate's root."""
    named = {
        "author": ("Person", answers.get("authors", ())),
        "publisher": ("Organization", answers.get("organisation", ())),
    }
    people = {
        key: [
            {"@id": f"#{key}-{number}", "@type": kind, "name": name}
            for number, name in enumerate(names, 1)
        ]
        for key, (kind, names) in named.items()
    }
    contact = {"name": read.facts.card.contact, "email": answers.get("contact")}
    known = {key: value for key, value in contact.items() if value}
    made = [{"@id": "#contact", "@type": "ContactPoint", **known}] if known else []
    return {**people, "contactPoint": made}


def _describe_file(folder: Path, place: str, name: str, media_type: str) -> Entity:
    path = folder / place
    return {
        "@id": place,
        "@type": "File",
        "name": name,
        "contentSize": str(path.stat().st_size),
        "encodingFormat": media_type,
        "sha256": sha256_file(path),
    }


def _describe_run(read: Bundle, copies: Iterable[str]) -> list[Entity]:
    """Describes the training run, without time and person, which a bundle does not state."""
    facts, backbone = read.facts, read.facts.backbone
    members = {f"{BACKBONE}-{one.name}": one for one in backbone.members}
    signed = {SUMS_FILE, SIGNATURE_FILE}
    return [
        {
            "@id": RUN,
            "@type": "CreateAction",
            "name": f"Training of the head {facts.name} by the method {facts.head.method}",
            "instrument": {"@id": SOFTWARE},
            "object": _refer([DATA, BACKBONE]),
            "result": _refer(f"{COPY}/{name}" for name in copies if name not in signed),
        },
        {
            "@id": SOFTWARE,
            "@type": "SoftwareApplication",
            "name": "dpprobe",
            "version": facts.dpprobe,
        },
        {
            "@id": DATA,
            "@type": "CreativeWork",
            "name": facts.dataset,
            "description": "The private dataset, which is not in this crate.",
        },
        {
            "@id": BACKBONE,
            "@type": "CreativeWork",
            "name": backbone.name,
            "description": "The frozen backbone, whose weights are not in this crate.",
            **_state_weights(backbone),
            **({"hasPart": _refer(members)} if members else {}),
        },
        *(
            {"@id": place, "@type": "CreativeWork", "name": one.name, **_state_weights(one)}
            for place, one in members.items()
        ),
    ]


def _state_weights(backbone: BackboneFacts) -> dict[str, str]:
    stated = {"version": backbone.architecture, "sha256": backbone.weights_sha256}
    return {key: value for key, value in stated.items() if value is not None}


def _state_values(fields: Fields) -> Iterator[Entity]:
    for name, meaning in GUARANTEE.items():
        field = f"{WORDS if name in SAID else STATEMENT_FILE}: {name}"
        for value in find_stated(fields, field):
            yield {
                "@id": f"#{name}",
                "@type": "PropertyValue",
                "name": name,
                "description": meaning,
                "value": value,
                "propertyID": field,
            }


def _refer(places: Iterable[str]) -> list[dict[str, str]]:
    return [{"@id": place} for place in places]
