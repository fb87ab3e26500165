"""train, dev and test by a hash: what is added to a corpus later moves nothing that was there."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

PARTS = ("train", "dev", "test")
TEST, DEV = 80, 40  # per mille of the keys


def part_of(key: str, *, test: int = TEST, dev: int = DEV) -> str:
    """train, dev or test, by a hash of the key (an utterance or a speaker) alone.

    Args:
        key: what must not be in two parts.
        test, dev: shares in per mille; the rest is train.
    """
    place = _place(key)
    return "test" if place < test else "dev" if place < test + dev else "train"


def shares_that_fill(keys: Iterable[str], *, test: int, dev: int) -> tuple[int, int] | None:
    """Shares near those wanted that leave no set empty; None if none do. A share of 0 stays 0."""
    places = sorted({_place(key) for key in keys})
    for wanted in ((test, dev), (min(test, 1), min(dev, 1))):  # the second: one key each
        shares: list[int] = []
        for share in wanted:
            begin = sum(shares)
            first = next((place for place in places if place >= begin), begin)
            shares.append(max(share, first + 1 - begin) if share else 0)
        if places and places[-1] >= sum(shares):
            return shares[0], shares[1]
    return None


def _place(key: str) -> int:
    return int(hashlib.sha256(key.encode()).hexdigest(), 16) % 1000
