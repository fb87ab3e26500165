"""Kaldi data dirs: wav.scp, segments, utt2spk and text. Imports no torch."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from audiovae.data import audio_io
from audiovae.data.atomic import write_text
from audiovae.errors import DataDirError

_MOST_SHOWN = 20  # problems of one kind in a message; the rest are counted


class Entry(NamedTuple):
    """The value of a table line, and where it stands."""

    value: str
    line: int


class Segment(NamedTuple):
    """A part of a recording; `end` None is the recording's end."""

    reco_id: str
    start: float  # seconds
    end: float | None  # seconds


@dataclass(frozen=True)
class Problem:
    """One fault of a data dir; `line` 0 is the file as a whole."""

    file: str
    line: int
    kind: str
    message: str

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}" if self.line else self.file
        return f"{where}: {self.message}"


def raise_if(problems: list[Problem]) -> None:
    """Raise one DataDirError that lists every problem (20 of a kind, then a count)."""
    if not problems:
        return
    shown: list[str] = []
    counts: Counter[str] = Counter()
    for problem in problems:
        counts[problem.kind] += 1
        if counts[problem.kind] <= _MOST_SHOWN:
            shown.append(str(problem))
    rest = [f"and {n - _MOST_SHOWN} more: {kind}" for kind, n in counts.items() if n > _MOST_SHOWN]
    raise DataDirError("\n".join([*shown, *rest]))


def read_table(
    path: Path, problems: list[Problem], *, required: bool = True, may_be_empty: bool = False
) -> dict[str, Entry]:
    """A Kaldi table: `key value` a line, split at the first run of spaces and tabs.

    Strict UTF-8; a byte order mark, CRLF line ends, blank lines and any order are fine.

    Args:
        path: the file.
        problems: every fault is appended here.
        required: a missing or empty file is a fault.
        may_be_empty: a key without a value is no fault.
    """
    table: dict[str, Entry] = {}

    def fault(line: int, kind: str, message: str) -> None:
        problems.append(Problem(str(path), line, kind, message))

    try:
        if path.exists() and not path.is_file():  # opening a FIFO would wait for ever
            raise OSError("not a regular file")
        data = path.read_bytes()
    except FileNotFoundError:
        if required:
            fault(0, "missing file", "no such file (missing)")
        return table
    except OSError as error:
        fault(0, "unreadable file", f"not readable: {error.strerror or error}")
        return table
    for number, raw in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), 1):
        try:
            line = raw.removesuffix(b"\r").decode("utf-8").strip(" \t")
        except UnicodeDecodeError as error:
            fault(number, "not UTF-8", f"not UTF-8 at byte {error.start}; save the file as UTF-8")
            continue
        if not line:
            continue
        key, *rest = re.split(r"[ \t]+", line, maxsplit=1)
        if "\0" in line:
            fault(number, "NUL byte", f"'{key!r}': a NUL byte in the line; remove it")
        elif key in table:
            first = table[key].line
            fault(number, "duplicate id", f"'{key}' twice (duplicate of line {first}); keep one")
        elif not rest and not may_be_empty:
            fault(number, "missing field", f"'{key}': one field, wanted '{key} VALUE' on the line")
        else:
            table[key] = Entry(rest[0] if rest else "", number)
    if required and not table:
        fault(0, "empty file", "empty, wanted at least one line")
    return table


@dataclass
class DataDir:
    """A corpus in Kaldi's form.

    Attributes:
        path: the folder.
        wav: reco_id -> audio file; a relative one is relative to the current directory.
        segments: utt_id -> Segment; empty when each recording is one utterance of the same id.
        utt2spk: utt_id -> speaker.
        text: utt_id -> transcript, of all, some or no utterances.
    """

    path: Path
    wav: dict[str, str]
    utt2spk: dict[str, str]
    segments: dict[str, Segment] = field(default_factory=dict)
    text: dict[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, path: str | Path) -> DataDir:
        """Read a data dir without opening its audio.

        Raises:
            DataDirError: all faults of all files, each with file and line.
        """
        data, problems, _ = _read(Path(path))
        raise_if(problems)
        return data

    @property
    def utt_ids(self) -> list[str]:
        """All utterances in byte order (the code point order of str is the order of UTF-8)."""
        return sorted(self.segments or self.wav)

    def segment(self, utt_id: str) -> Segment:
        """Where an utterance lies; the whole recording if there are no segments.

        Raises:
            DataDirError: no such utterance.
        """
        if not self.segments and utt_id in self.wav:
            return Segment(utt_id, 0.0, None)
        if utt_id not in self.segments:
            raise DataDirError(f"{self.path}: no utt_id '{utt_id}'")
        return self.segments[utt_id]

    def wave(self, utt_id: str, sample_rate: int) -> np.ndarray:
        """Audio (N,) float32 mono of an utterance at a sample rate in Hz.

        Raises:
            DataDirError: no such utterance, or audio that cannot be used.
        """
        reco_id, start, end = self.segment(utt_id)
        try:
            return audio_io.read_audio(
                self.wav[reco_id], sample_rate=sample_rate, start=start, end=end
            )
        except DataDirError as error:
            raise DataDirError(f"utt_id '{utt_id}': {error}") from error

    def write(self, path: str | Path) -> None:
        """Write wav.scp, utt2spk and, unless empty, segments and text, sorted in byte order."""
        folder = Path(path)
        folder.mkdir(parents=True, exist_ok=True)
        segments = {
            utt_id: f"{s.reco_id} {_seconds(s.start)} {_seconds(s.end)}"
            for utt_id, s in self.segments.items()
        }
        write_table(folder / "wav.scp", self.wav)
        write_table(folder / "utt2spk", self.utt2spk)
        for name, table in (("segments", segments), ("text", self.text)):
            if table:
                write_table(folder / name, table)
            else:
                (folder / name).unlink(missing_ok=True)


def write_table(path: Path, table: Mapping[str, str]) -> None:
    """Write `key value` lines in byte order, atomically."""
    write_text(path, "".join(f"{key} {table[key]}".rstrip(" ") + "\n" for key in sorted(table)))


def _seconds(seconds: float | None) -> str:
    # Kaldi's -1 is the end; nine digits find the sample again at any rate.
    return "-1" if seconds is None else f"{seconds:.9f}".rstrip("0").rstrip(".")


_Tables = dict[str, dict[str, Entry]]


def _read(path: Path) -> tuple[DataDir, list[Problem], _Tables]:
    problems: list[Problem] = []
    if not path.is_dir():
        problems.append(Problem(str(path), 0, "missing file", "no such data dir (missing)"))
        return DataDir(path, {}, {}), problems, {}
    tables = {
        "wav.scp": read_table(path / "wav.scp", problems),
        "utt2spk": read_table(path / "utt2spk", problems),
        "segments": read_table(path / "segments", problems, required=False),
        "text": read_table(path / "text", problems, required=False, may_be_empty=True),
    }
    data = DataDir(
        path,
        wav={reco_id: entry.value for reco_id, entry in tables["wav.scp"].items()},
        utt2spk={utt_id: entry.value for utt_id, entry in tables["utt2spk"].items()},
        segments=_parse_segments(path, tables, problems),
        text={utt_id: entry.value for utt_id, entry in tables["text"].items()},
    )
    _check_wav(path, tables, problems)
    _check_ids(path, tables, problems)
    return data, problems, tables


def _parse_segments(path: Path, tables: _Tables, problems: list[Problem]) -> dict[str, Segment]:
    segments: dict[str, Segment] = {}
    for utt_id, (value, line) in tables["segments"].items():

        def fault(kind: str, message: str, utt_id: str = utt_id, line: int = line) -> None:
            where = str(path / "segments")
            problems.append(Problem(where, line, kind, f"utt_id '{utt_id}': {message}"))

        fields = re.split(r"[ \t]+", value)
        if len(fields) != 3:
            fault("fields", f"{len(fields) + 1} fields, wanted UTT_ID RECORDING START END")
            continue
        try:
            start, end = float(fields[1]), float(fields[2])
        except ValueError:
            fault("times", f"found times '{fields[1]} {fields[2]}', wanted numbers in seconds")
            continue
        if not 0 <= start < np.inf or not (end == -1 or start < end < np.inf):
            fault("times", f"found {start} to {end} s, wanted 0 <= start < end (or end -1)")
            continue
        if fields[0] not in tables["wav.scp"]:
            fault("unknown recording", f"recording '{fields[0]}' is not in wav.scp")
        segments[utt_id] = Segment(fields[0], start, None if end == -1 else end)
    return segments


def _is_command(file: str) -> bool:
    return file.startswith("|") or file.endswith("|") or file == "-"


def _check_wav(path: Path, tables: _Tables, problems: list[Problem]) -> None:
    for reco_id, (file, line) in tables["wav.scp"].items():
        if _is_command(file):
            message = (
                f"'{reco_id}': a pipe (shell command) or standard input is refused; "
                f"run the command once and name the file it makes"
            )
            problems.append(Problem(str(path / "wav.scp"), line, "pipe", message))


def _check_ids(path: Path, tables: _Tables, problems: list[Problem]) -> None:
    """utt2spk covers exactly the utterances; text has no other ids."""
    source = "segments" if tables["segments"] else "wav.scp"
    utterances = tables[source]
    for utt_id, (speaker, line) in tables["utt2spk"].items():
        where = str(path / "utt2spk")
        if len(re.split(r"[ \t]+", speaker)) != 1:
            message = f"utt_id '{utt_id}': more than two fields, wanted UTT_ID SPEAKER on the line"
            problems.append(Problem(where, line, "fields", message))
        if utt_id not in utterances:
            message = f"utt_id '{utt_id}' is not in {source}"
            problems.append(Problem(where, line, "unknown id", message))
    for utt_id, (_, line) in utterances.items():
        if utt_id not in tables["utt2spk"]:
            message = f"utt_id '{utt_id}' has no speaker in utt2spk"
            problems.append(Problem(str(path / source), line, "no speaker", message))
    for utt_id, (_, line) in tables["text"].items():
        if utt_id not in utterances:
            message = f"utt_id '{utt_id}' is not in {source}"
            problems.append(Problem(str(path / "text"), line, "unknown id", message))


def validate(path: str | Path) -> list[Problem]:
    """Every problem of a data dir, audio headers and segment ends included; empty if sound."""
    path = Path(path)
    data, problems, tables = _read(path)
    probed: dict[str, float | str] = {}  # audio file -> seconds, or what is wrong with it
    lengths: dict[str, float] = {}
    for reco_id, (file, line) in tables.get("wav.scp", {}).items():
        if _is_command(file):
            continue
        if file not in probed:
            probed[file] = _length_or_fault(file)
        length = probed[file]
        if isinstance(length, str):
            message = f"'{reco_id}': {length}"
            problems.append(Problem(str(path / "wav.scp"), line, "audio", message))
        else:
            lengths[reco_id] = length
    for utt_id, segment in data.segments.items():
        length = lengths.get(segment.reco_id, np.inf)
        end = segment.start if segment.end is None else segment.end
        if segment.start >= length or end > length + audio_io.END_TOLERANCE:
            message = (
                f"utt_id '{utt_id}': {segment.start} to {end} s, but "
                f"recording '{segment.reco_id}' is {length:.3f} s long"
            )
            line = tables["segments"][utt_id].line
            problems.append(Problem(str(path / "segments"), line, "times", message))
    return problems


def _length_or_fault(file: str) -> float | str:
    try:
        info = audio_io.probe(file)
    except DataDirError as error:
        return str(error)
    return info.num_samples / info.sample_rate


def copy_subset(data: DataDir, utt_ids: Iterable[str], path: Path) -> DataDir:
    """The part of a data dir that some utterances need."""
    wanted = set(utt_ids)
    recordings = {data.segment(utt_id).reco_id for utt_id in wanted}
    return DataDir(
        path,
        wav={reco_id: file for reco_id, file in data.wav.items() if reco_id in recordings},
        utt2spk={utt_id: s for utt_id, s in data.utt2spk.items() if utt_id in wanted},
        segments={utt_id: s for utt_id, s in data.segments.items() if utt_id in wanted},
        text={utt_id: t for utt_id, t in data.text.items() if utt_id in wanted},
    )
