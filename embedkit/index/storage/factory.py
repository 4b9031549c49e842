"""Which strings of the Faiss index factory embedkit accepts.

Faiss itself accepts numbers that make it crash, hang or fill the memory (``HNSW1``, ``PQ16x0``, ``NSG0``), so
strings are checked first.
"""

from __future__ import annotations

import re

__all__ = ["check_factory", "check_rows", "codes_of", "fitting_factory", "least_rows"]

_CODE = r"(?:Flat|SQ(?:4|6|8|fp16)|RaBitQ|PQ(?P<{0}m>\d+)(?:x(?P<{0}bits>\d+))?(?:fsr?)?)"
_GRAMMAR = re.compile(
    r"(?:(?:PCAR?|RR)(?P<dimensions>\d+),|OPQ(?P<opq>\d+)(?:_(?P<opq_dimensions>\d+))?,)?"
    r"(?:"
    r"IVF(?P<nlist>\d+)(?:_HNSW(?P<coarse>\d+))?," + _CODE.format("ivf_") + "|"
    r"HNSW(?P<hnsw>\d+)(?:[,_](?:Flat|SQ8))?|" + _CODE.format("") + ")"
    r"(?:,(?:RFlat|Refine\((?:Flat|SQ8)\)))?"
)
# SQ codes a vector whatever its list; PQ and RaBitQ code how it differs from the list's centroid
_FINDS = re.compile(r"IVF\d+(?:_HNSW\d+)?,(?=SQ|Flat)|HNSW\d+[,_]")
_OPQ_CENTROIDS = 256  # of the quantizer of 8 bits that Faiss trains with the rotation

# What a number means, its minimum and maximum; None is the dimension of the vectors.
_BOUNDS: dict[str, tuple[str, int, int | None]] = {
    "dimensions": ("dimensions after the transform", 1, None),
    "opq": ("subvectors of OPQ", 1, None),
    "opq_dimensions": ("dimensions after OPQ", 1, None),
    "nlist": ("lists of IVF", 1, 1 << 24),
    "coarse": ("neighbors of HNSW", 2, 256),
    "hnsw": ("neighbors of HNSW", 2, 256),
    "m": ("subvectors of PQ", 1, None),
    "bits": ("bits of PQ", 1, 8),
    "ivf_m": ("subvectors of PQ", 1, None),
    "ivf_bits": ("bits of PQ", 1, 8),
}


def check_factory(factory: str, dimension: int) -> None:
    """Raise ValueError unless embedkit can build ``factory`` for vectors of ``dimension`` columns."""
    match = _GRAMMAR.fullmatch(factory)
    if match is None:
        raise ValueError(
            f"unknown factory {factory[:80]!r}; use 'auto', 'Flat', 'IVF1024,Flat', 'HNSW32', "
            "'IVF1024,PQ48' or the like: an optional PCA, RR or OPQ, then IVF<lists> or HNSW<neighbors>, "
            "then Flat, SQ4, SQ6, SQ8, SQfp16, PQ<subvectors>[x<bits>][fs|fsr] or RaBitQ, then an optional RFlat"
        )
    for name, (meaning, least, most) in _BOUNDS.items():
        text = match[name]
        greatest = dimension if most is None else most
        if text is not None and not (len(text) < 10 and least <= int(text) <= greatest):
            raise ValueError(
                f"the factory {factory[:80]!r} has {text[:20]} {meaning}, expected {least} to {greatest}"
            )


def codes_of(factory: str) -> str:
    """Of ``factory`` what the scores come from, its transform and codes, and not what only finds them: HNSW or IVF."""
    return _FINDS.sub("", factory)


def least_rows(factory: str) -> int:
    """The number of vectors that Faiss needs to train ``factory``, which `check_factory` accepts."""
    match = _GRAMMAR.fullmatch(factory)
    if match is None:
        return 1
    found = match.groupdict()
    needed = [1, int(found["nlist"] or 1)]
    for subvectors, bits in (("m", "bits"), ("ivf_m", "ivf_bits")):
        if found[subvectors] is not None:
            needed.append(1 << int(found[bits] or 8))
    if factory.startswith("PCA"):
        needed.append(int(found["dimensions"]))
    if found["opq"] is not None:
        needed.append(_OPQ_CENTROIDS)
    return max(needed)


def fitting_factory(factory: str, rows: int) -> str:
    """``factory``, or exact search if ``rows`` vectors are too few to train it."""
    return factory if rows >= least_rows(factory) else "Flat"


def check_rows(factory: str, rows: int) -> None:
    """Raise ValueError if ``rows`` vectors are too few to train ``factory``."""
    needed = least_rows(factory)
    if 0 < rows < needed:  # of none, there is another error
        raise ValueError(
            f"the factory {factory!r} needs at least {needed:,} vectors, and there are {rows:,}; use 'auto', 'Flat', "
            "or fewer lists or bits"
        )
