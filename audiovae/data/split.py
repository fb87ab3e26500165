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
    """Shares for test and dev, near those wanted, that leave no part empty; None if none do."""
    places = sorted({_place(key) for key in keys})
    if len(places) < len(PARTS):
        return None
    test = max(test, places[0] + 1)
    if rest := [place for place in places if place >= test]:
        dev = max(dev, rest[0] + 1 - test)
        if rest[-1] >= test + dev:
            return test, dev
    return places[0] + 1, places[1] - places[0]  # one key each, the rest to train


def _place(key: str) -> int:
    return int(hashlib.sha256(key.encode()).hexdigest(), 16) % 1000
