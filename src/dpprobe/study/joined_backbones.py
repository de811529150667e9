"""Explains why backbones of a study cannot be joined."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from dpprobe.backbones import joined
from dpprobe.backbones.options import BackboneOptions


def joined_faults(backbones: Mapping[str, BackboneOptions]) -> Iterator[str]:
    """Yields reasons why members of joined backbones cannot be combined."""
    for name, options in backbones.items():
        if not isinstance(options, joined.Options):
            continue
        for member in options.of:
            where = f"backbones.{name}.of: {member}"
            if member not in backbones:
                yield f"{where} is not under backbones; add it, or name a backbone that is"
            elif fault := _member_fault(backbones[member]):
                yield f"{where} {fault}"


def _member_fault(member: BackboneOptions) -> str | None:
    if isinstance(member, joined.Options):
        return f"is itself joined; list {', '.join(member.of)} instead"
    if member.takes_vectors:
        return (
            "has vectors of another program; scale each program's rows to norm 1, write them side "
            "by side into one file (np.hstack), and name this file as vectors of one backbone"
        )
    if member.stored_crops:
        return (
            "has preprocessing.crops, whose random crops cannot be joined; remove crops, or add a "
            "backbone without them"
        )
    if member.jpeg_decoding != "full":
        return (
            "has jpeg_decoding scaled, but joined backbones decode each image once; remove it, or "
            "add a backbone without it"
        )
    if not member.network and (member.computed_dimension or member.dimension) is None:
        return "has a number of features that depends on the images; set its size"
    return None
