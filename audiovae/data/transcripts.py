"""What is said in a folder's audio: LJSpeech's metadata.csv, Kaldi's text, or a .txt a file.

A table speaks for the audio beside and below it; of two above a file the nearer one does. Only
where no table does, the .txt of the same name is read.
"""

from __future__ import annotations

import stat
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from audiovae.data.audio_tree import SUFFIXES, printable
from audiovae.data.kaldi_dir import Entry, Problem, read_table

_TABLES = ("metadata.csv", "text")
_LONGEST = 1 << 20  # bytes of a .txt; more is no transcript of one file


@dataclass
class _Table:
    """Transcripts by utt_id, or by the audio file's name or path without its suffix."""

    path: Path
    entries: dict[str, Entry]
    used: dict[str, str] = field(default_factory=dict)  # id -> audio file


class Transcripts:
    """The transcripts of one folder, looked for as they are asked for.

    Attributes:
        used: name of a source -> audio files it had words for.
    """

    def __init__(self, folder: Path, given: Path | None, problems: list[Problem]) -> None:
        """`given` is a table for all of `folder`: LJSpeech's form if it ends in .csv."""
        self.folder = folder
        self.problems = problems
        self.used: dict[str, int] = {}
        self._tables: dict[PurePosixPath, _Table | None] = {}
        if given:
            self._tables[PurePosixPath()] = _read(given, problems)
        self._given = given is not None

    def find(self, file: str, utt_id: str) -> str:
        """The words of an audio file, on one line; empty if there are none."""
        path = PurePosixPath(file)
        for base in path.parents:
            if self._given and base.name:
                continue
            if base not in self._tables:
                self._tables[base] = self._look_in(base)
            if table := self._tables[base]:
                return self._from_table(table, path, base, utt_id)
        return self._from_txt(path)

    def unmatched(self) -> list[str]:
        """The lines of the tables in use that no audio file belongs to, as `file:line: id`."""
        return [
            f"{printable(table.path)}:{entry.line}: {key}"
            for table in self._tables.values()
            if table
            for key, entry in table.entries.items()
            if key not in table.used
        ]

    def _look_in(self, base: PurePosixPath) -> _Table | None:
        paths = [self.folder / base / name for name in _TABLES]
        found = [path for path in paths if path.is_file()]
        if len(found) > 1:
            message = "two tables of transcripts here, metadata.csv and text; name one with --text"
            self._fault(found[0], 0, "two transcripts", message)
        return _read(found[0], self.problems) if found else None

    def _from_table(
        self, table: _Table, path: PurePosixPath, base: PurePosixPath, utt_id: str
    ) -> str:
        names = (utt_id, str(path.relative_to(base).with_suffix("")), path.stem)
        key = next((name for name in names if name in table.entries), None)
        if key is None:
            return ""
        first = table.used.setdefault(key, str(path))
        if first != str(path):
            message = (
                f"'{key}' fits two files, {printable(first)} and {printable(path)}; "
                f"write their paths below {printable(table.path.parent)} instead"
            )
            self._fault(table.path, table.entries[key].line, "ambiguous id", message)
        return self._words(table.entries[key].value, printable(table.path))

    def _from_txt(self, path: PurePosixPath) -> str:
        file = self.folder / path.with_suffix(".txt")
        try:
            status = file.stat()
            if not stat.S_ISREG(status.st_mode) or status.st_size > _LONGEST:
                raise OSError(f"wanted a regular file of at most {_LONGEST} bytes")
            data = file.read_bytes()
        except FileNotFoundError:
            return ""
        except OSError as error:
            self._fault(file, 0, "transcript", f"not readable: {error.strerror or error}")
            return ""
        text = _decode(file, data, 0, self.problems)
        return self._words(text, ".txt files")

    def _words(self, text: str, source: str) -> str:
        words = " ".join(text.split())
        self.used[source] = self.used.get(source, 0) + bool(words)
        return words

    def _fault(self, file: Path, line: int, kind: str, message: str) -> None:
        self.problems.append(Problem(printable(file), line, kind, message))


def _read(path: Path, problems: list[Problem]) -> _Table:
    if path.suffix.lower() == ".csv":
        entries = _read_metadata(path, problems)
    else:
        entries = read_table(path, problems, may_be_empty=True)
    return _Table(path, {_without_suffix(key): entry for key, entry in entries.items()})


def _without_suffix(key: str) -> str:
    path = PurePosixPath(key)
    return str(path.with_suffix("") if path.suffix.lower() in SUFFIXES else path)


def _read_metadata(path: Path, problems: list[Problem]) -> dict[str, Entry]:
    """LJSpeech's `id|text|normalised text`, nothing quoted; of two texts the normalised one."""
    entries: dict[str, Entry] = {}
    try:
        if path.exists() and not path.is_file():
            raise OSError("not a regular file")
        data = path.read_bytes()
    except OSError as error:
        message = f"not readable: {error.strerror or error}"
        problems.append(Problem(printable(path), 0, "transcript", message))
        return entries
    for number, raw in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), 1):
        if not (line := _decode(path, raw, number, problems).strip()):
            continue
        key, *texts = (part.strip() for part in line.split("|"))
        if not key or not 1 <= len(texts) <= 2:
            message = (
                f"{len(texts) + 1} fields, wanted ID|TEXT or ID|TEXT|NORMALISED (if it is no table "
                f"of transcripts, rename it, or name another with --text)"
            )
            problems.append(Problem(printable(path), number, "fields", message))
        elif key in entries:
            message = f"'{key}' twice (duplicate of line {entries[key].line}); keep one"
            problems.append(Problem(printable(path), number, "duplicate id", message))
        else:
            entries[key] = Entry(texts[-1] or texts[0], number)
    return entries


def _decode(path: Path, data: bytes, line: int, problems: list[Problem]) -> str:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        message = f"not UTF-8 at byte {error.start}; save the file as UTF-8"
        problems.append(Problem(printable(path), line, "not UTF-8", message))
        return ""
    if "\0" in text:
        problems.append(Problem(printable(path), line, "NUL byte", "a NUL byte; remove it"))
        return ""
    return text
