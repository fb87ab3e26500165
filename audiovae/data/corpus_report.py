"""What was found in a folder of audio, and what became of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

import audiovae
from audiovae.data.audio_tree import printable
from audiovae.data.levels import Levels

_MOST_UNMATCHED = 20  # transcript lines without audio in prepare.json; the rest are counted


@dataclass(frozen=True)
class Utterance:
    """One audio file that was taken."""

    file: str  # relative to the folder
    speaker: str
    part: str  # train, dev or test
    levels: Levels
    text: str


@dataclass(frozen=True)
class Total:
    """So many utterances and seconds of a set or a speaker."""

    utterances: int
    speakers: int
    seconds: float
    with_text: int


@dataclass(frozen=True)
class CorpusReport:
    """The outcome of `audiovae prepare`; num_in = len(utterances) + len(skipped), always.

    Attributes:
        folder: where the audio is.
        num_in: audio files and links seen.
        utterances: utt_id -> what was taken.
        skipped: file -> why not; a reason begins with its kind, as in `silent: ...`.
        others: suffix -> number of files that are no audio.
        text_sources: source -> files it has words for.
        text_unmatched: lines of transcripts no audio belongs to.
        split: how the parts were made.
    """

    folder: str
    num_in: int
    utterances: dict[str, Utterance]
    skipped: dict[str, str]
    others: dict[str, int]
    text_sources: dict[str, int]
    text_unmatched: list[str]
    split: dict[str, str | int]

    @property
    def total(self) -> Total:
        """All that was taken."""
        return _total(self.utterances.values())

    @property
    def parts(self) -> dict[str, Total]:
        """train, dev and test."""
        parts = sorted(
            {u.part for u in self.utterances.values()}, key=("train", "dev", "test").index
        )
        return {p: _total(u for u in self.utterances.values() if u.part == p) for p in parts}

    @property
    def speakers(self) -> dict[str, Total]:
        """Each speaker, the one with most audio first."""
        by_speaker: dict[str, list[Utterance]] = {}
        for utterance in self.utterances.values():
            by_speaker.setdefault(utterance.speaker, []).append(utterance)
        totals = {speaker: _total(by_speaker[speaker]) for speaker in sorted(by_speaker)}
        return dict(sorted(totals.items(), key=lambda item: -item[1].seconds))

    @property
    def clipped(self) -> dict[str, int]:
        """utt_id -> samples in runs at full scale, of those that have any."""
        return {k: u.levels.clipped for k, u in self.utterances.items() if u.levels.clipped}

    @property
    def skipped_kinds(self) -> dict[str, int]:
        """Kind of reason -> number of files."""
        return dict(Counter(reason.partition(":")[0] for reason in self.skipped.values()))

    def count(self, what: str) -> dict[str, int]:
        """How many utterances have each `sample_rate` (Hz), `channels` or `suffix`."""
        if what == "suffix":
            values = Counter(PurePath(u.file).suffix.lower() for u in self.utterances.values())
        else:
            values = Counter(str(getattr(u.levels, what)) for u in self.utterances.values())
        return dict(values.most_common())

    def as_json(self) -> dict[str, Any]:
        """All of it but the list of utterances, for prepare.json."""
        loudest = max(self.utterances, key=lambda utt_id: self.utterances[utt_id].levels.peak)
        return {
            "audiovae": audiovae.__version__,
            "folder": printable(self.folder),
            "split": self.split,
            "num_in": self.num_in,
            "num_out": len(self.utterances),
            "num_skipped": len(self.skipped),
            "skipped_kinds": self.skipped_kinds,
            "seconds": self.total.seconds,
            "sets": {part: vars(total) for part, total in self.parts.items()},
            "speakers": {
                speaker: {
                    "utterances": t.utterances,
                    "seconds": t.seconds,
                    "with_text": t.with_text,
                }
                for speaker, t in self.speakers.items()
            },
            "sample_rates": self.count("sample_rate"),
            "channels": self.count("channels"),
            "suffixes": self.count("suffix"),
            "peak": {"utt_id": loudest, "value": self.utterances[loudest].levels.peak},
            "clipped": self.clipped,
            "silent": [printable(f) for f, r in self.skipped.items() if r.startswith("silent:")],
            "skipped": {printable(file): reason for file, reason in self.skipped.items()},
            "other_files": self.others,
            "text": {
                "sources": self.text_sources,
                "without_audio": len(self.text_unmatched),
                "first_without_audio": self.text_unmatched[:_MOST_UNMATCHED],
            },
        }


def _total(utterances: Iterable[Utterance]) -> Total:
    taken = list(utterances)
    return Total(
        utterances=len(taken),
        speakers=len({u.speaker for u in taken}),
        seconds=sum(u.levels.seconds for u in taken),
        with_text=sum(bool(u.text) for u in taken),
    )
