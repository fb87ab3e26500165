"""The audio files of a folder and all below it, without opening one."""

from __future__ import annotations

import os
import stat
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path, PurePath

from audiovae.data import av_audio
from audiovae.data.kaldi_dir import Problem

# What libsndfile or PyAV reads.
SUFFIXES = {".wav", ".flac", ".ogg", ".oga", ".opus", ".mp3", ".aif", ".aiff", ".au", ".sph"} | set(
    av_audio.FORMATS
)
# Audio too, so not to be passed over in silence.
_UNREAD = {".wma", ".amr", ".mp4", ".webm", ".mka", ".ape", ".wv", ".mp2", ".3gp", ".ra"}


@dataclass
class AudioTree:
    """What a folder holds; paths are relative to it, with `/`.

    Attributes:
        folder: absolute; links in it are kept as the user wrote them.
        files: regular audio files, in byte order.
        skipped: audio files, and links to folders, that are not taken -> why.
        others: suffix -> number of files that are no audio.
    """

    folder: Path
    files: list[str] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    others: Counter[str] = field(default_factory=Counter)


def printable(path: str | PurePath) -> str:
    """A path on one line of UTF-8, whatever bytes it has."""
    text = os.fsencode(path).decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def find_audio(folder: Path, problems: list[Problem]) -> AudioTree:
    """Look through a folder in byte order; folders that cannot be read go to `problems`.

    Links are followed once all else was seen, so that a file is taken where it lies, and once.
    """
    return _Walk(folder, problems).tree


class _Walk:
    """One pass over a folder."""

    def __init__(self, folder: Path, problems: list[Problem]) -> None:
        self.tree = AudioTree(Path(os.path.abspath(folder)))  # noqa: PTH100 (keeps links)
        self.problems = problems
        self.seen: dict[tuple[int, int], str] = {}  # device and inode -> where it was met
        self.links: list[str] = []
        self._folder("", self._full("").stat())
        while self.links:
            self._link(self.links.pop(0))
        self.tree.files.sort(key=os.fsencode)

    def _full(self, name: str) -> Path:
        return self.tree.folder / name

    def _folder(self, name: str, status: os.stat_result) -> None:
        """A folder and all below it; the links met are kept for later."""
        todo = [(name, status)]
        while todo:
            name, status = todo.pop()
            if self._met(name, status):
                continue
            try:
                with os.scandir(self._full(name)) as entries:
                    children = sorted(entries, key=lambda entry: os.fsencode(entry.name))
                for child in children:
                    below = f"{name}/{child.name}" if name else child.name
                    if child.is_symlink():
                        self.links.append(below)
                    elif child.is_dir():
                        todo.append((below, self._full(below).stat()))
                    else:
                        self._file(below, self._full(below).stat())
            except OSError as error:
                message = f"not readable: {error.strerror or error}; make it so, or move it away"
                where = printable(self._full(name))
                self.problems.append(Problem(where, 0, "unreadable folder", message))

    def _link(self, name: str) -> None:
        path = self._full(name)
        try:
            status = path.stat()
        except OSError as error:  # broken, or links in a circle
            if self._is_audio(name):
                self.tree.skipped[name] = f"broken link: {error.strerror or error}"
            return
        if not stat.S_ISDIR(status.st_mode):
            self._file(name, status)
        elif self.tree.folder.resolve().is_relative_to(path.resolve()):
            self.tree.skipped[name] = "link loop: it leads to a folder that it is in"
        else:
            self._folder(name, status)

    def _file(self, name: str, status: os.stat_result) -> None:
        if not self._is_audio(name):
            self.tree.others[printable(PurePath(name).suffix.lower())] += 1
        elif reason := _fault(self._full(name), status):
            self.tree.skipped[name] = reason
        elif not self._met(name, status):
            self.tree.files.append(name)

    def _met(self, name: str, status: os.stat_result) -> bool:
        """Whether this file or folder was met before under another name; then it is skipped."""
        first = self.seen.setdefault((status.st_dev, status.st_ino), name)
        if first == name:
            return False
        self.tree.skipped[name] = f"duplicate: the same as '{printable(first) or '.'}'"
        return True

    def _is_audio(self, name: str) -> bool:
        return PurePath(name).suffix.lower() in SUFFIXES | _UNREAD


def _fault(path: Path, status: os.stat_result) -> str:
    """Why a file cannot be an entry of wav.scp; empty if it can."""
    if not stat.S_ISREG(status.st_mode):
        return "not a regular file"
    if status.st_size == 0:
        return "empty file, 0 bytes"
    if path.suffix.lower() in _UNREAD:
        return (
            f"format: {path.suffix} is not read; convert it: ffmpeg -i FILE{path.suffix} FILE.flac"
        )
    try:
        text = os.fsencode(path).decode("utf-8")
    except UnicodeDecodeError:
        return "file name: not UTF-8; rename it"
    return "file name: a line break in it; rename it" if set(text) & set("\n\r") else ""
