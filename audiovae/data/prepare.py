"""A folder of audio to the Kaldi data dirs train, dev and test."""

from __future__ import annotations

import json
import re
import shlex
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Literal, NamedTuple

from audiovae.config import DataConfig
from audiovae.data import av_audio
from audiovae.data.atomic import atomic_folder, write_text
from audiovae.data.audio_tree import SUFFIXES, AudioTree, find_audio, printable
from audiovae.data.corpus_report import CorpusReport, Utterance
from audiovae.data.kaldi_dir import DataDir, Problem, raise_if
from audiovae.data.levels import Levels, measure
from audiovae.data.split import DEV, PARTS, TEST, part_of, shares_that_fill
from audiovae.data.transcripts import Transcripts
from audiovae.errors import ConfigError, DataDirError

SplitBy = Literal["utterance", "speaker"]


class _Named(NamedTuple):
    """An audio file, relative to its folder, and who speaks in it."""

    file: str
    speaker: str


def prepare(
    folder: str | Path,
    data_dir: str | Path,
    *,
    speaker_regex: str | None = None,
    text: str | Path | None = None,
    split: SplitBy = "utterance",
    test: int = TEST,
    dev: int = DEV,
    min_seconds: float = DataConfig.min_seconds,
    nj: int = 1,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> CorpusReport:
    """Make data_dir/{train,dev,test}, prepare.json and skipped.tsv from the audio below a folder.

    All or nothing: the folder appears when it is complete.

    Args:
        folder: audio, at any depth.
        data_dir: must be missing or empty.
        speaker_regex: searched in the relative path; its group is the speaker. Without, the
            speaker is the folder of the file, relative to `folder`.
        text: a table of transcripts; without, they are looked for.
        split: what must not be in two sets.
        test, dev: shares in per mille; 0 makes no such set.
        min_seconds: shorter files are skipped.
        nj: parallel jobs of joblib.
        on_progress: called with the files measured so far, and of how many.

    Raises:
        ConfigError: a regex or shares that make no sense.
        DataDirError: everything else that stands in the way, all at once.
    """
    folder, data_dir = Path(folder), Path(data_dir)
    _check_shares(test, dev)
    pattern = _compile(speaker_regex)
    problems = _check_folders(folder, data_dir)
    raise_if(problems)
    tree = find_audio(folder, problems)
    named = _name(tree, pattern, problems)
    transcripts = Transcripts(tree.folder, Path(text) if text else None, problems)
    words = {utt_id: transcripts.find(named[utt_id].file, utt_id) for utt_id in named}
    _check_tree(tree, problems)
    raise_if(problems)

    num_in = len(tree.files) + len(tree.skipped)
    levels = _measure_all(tree, named, min_seconds, nj, on_progress)
    if not levels:
        first = next(iter(tree.skipped.items()))
        raise DataDirError(
            f"{folder}: none of {num_in} audio files could be used "
            f"(first: {printable(first[0])}: {first[1]}); nothing was written"
        )
    keys = {u: u if split == "utterance" else named[u].speaker for u in levels}
    _check_parts(folder, set(keys.values()), split, test, dev)
    utterances = {
        utt_id: Utterance(
            *named[utt_id], part_of(keys[utt_id], test=test, dev=dev), levels[utt_id], words[utt_id]
        )
        for utt_id in sorted(levels)
    }
    report = CorpusReport(
        folder=str(tree.folder),
        num_in=num_in,
        utterances=utterances,
        skipped={file: tree.skipped[file] for file in sorted(tree.skipped)},
        others=dict(tree.others),
        text_sources={source: n for source, n in transcripts.used.items() if n},
        text_unmatched=transcripts.unmatched(),
        split={"by": split, "test": test, "dev": dev},
    )
    assert num_in == len(report.utterances) + len(report.skipped)
    _write(report, data_dir)
    return report


def _check_shares(test: int, dev: int) -> None:
    if test < 0 or dev < 0 or test + dev >= 1000:
        raise ConfigError(
            f"--test, --dev: found {test} and {dev}, wanted per mille, at least 0, "
            f"that leave some of 1000 to train, as in --test {TEST} --dev {DEV}"
        )


def _compile(regex: str | None) -> re.Pattern[str] | None:
    if regex is None:
        return None
    try:
        pattern = re.compile(regex)
    except re.error as error:
        raise ConfigError(f"--speaker_regex: found {regex!r}, no regex: {error}") from error
    if pattern.groups != 1 and "speaker" not in pattern.groupindex:
        raise ConfigError(
            f"--speaker_regex: found {regex!r} with {pattern.groups} groups, wanted one, or one "
            f"named speaker, as in '^([^/]+)/' or '(?P<speaker>p[0-9]+)_'"
        )
    return pattern


def _check_folders(folder: Path, data_dir: Path) -> list[Problem]:
    problems = []
    if not folder.is_dir():
        found = "not a folder" if folder.exists() else "no such folder"
        problems.append(Problem(printable(folder), 0, "folder", f"{found}, wanted one of audio"))
    elif folder.resolve().is_relative_to(data_dir.resolve()):
        message = "the audio is in it; name another folder for the data dirs"
        problems.append(Problem(printable(data_dir), 0, "data dir", message))
    elif data_dir.exists() and not data_dir.is_dir():
        message = "there is a file of that name; name another folder"
        problems.append(Problem(printable(data_dir), 0, "data dir", message))
    elif data_dir.is_dir() and any(data_dir.iterdir()):
        command = f"rm -r {shlex.quote(printable(data_dir))}"
        message = f"not empty; name another folder or, if nothing in it is needed: {command}"
        problems.append(Problem(printable(data_dir), 0, "data dir", message))
    return problems


def _name(
    tree: AudioTree, pattern: re.Pattern[str] | None, problems: list[Problem]
) -> dict[str, _Named]:
    """utt_id -> file and speaker, of the files whose names and speakers are their own."""
    named: dict[str, _Named] = {}
    speakers: dict[str, str] = {}  # as written in an id -> as found
    for file in tree.files:

        def fault(kind: str, message: str, file: str = file) -> None:
            problems.append(Problem(printable(tree.folder / file), 0, kind, message))

        found = _find_speaker(tree.folder, file, pattern)
        if not found:
            fault("speaker", "--speaker_regex finds no speaker in this path; widen it")
            continue
        # Without '-', so that the order of the ids is the order of the speakers.
        speaker = _safe(found).replace("-", "_")
        if speakers.setdefault(speaker, found) != found:
            other = printable(speakers[speaker])
            fault("speaker", f"speakers '{other}' and '{printable(found)}' both give '{speaker}'; "
                  "rename one of the folders")  # fmt: skip
            continue
        utt_id = f"{speaker}-{_safe(str(PurePosixPath(file).with_suffix('')))}"
        if utt_id in named:
            other = printable(tree.folder / named[utt_id].file)
            fault("duplicate id", f"the same utt_id '{utt_id}' as {other}; rename or remove one")
            continue
        named[utt_id] = _Named(file, speaker)
    return named


def _find_speaker(folder: Path, file: str, pattern: re.Pattern[str] | None) -> str:
    if pattern:
        match = pattern.search(file)
        group = "speaker" if "speaker" in pattern.groupindex else 1
        return (match[group] or "") if match else ""
    parent = str(PurePosixPath(file).parent)
    return parent if parent != "." else folder.name or "root"


def _safe(name: str) -> str:
    """A name of letters, digits and `_.-`, the same wherever the file system wrote its accents."""
    return re.sub(r"[^\w.-]", "_", unicodedata.normalize("NFC", name))


def _check_tree(tree: AudioTree, problems: list[Problem]) -> None:
    folder = printable(tree.folder)
    if not tree.files and not tree.skipped:
        others = ", ".join(f"{n} {suffix or 'without suffix'}" for suffix, n in tree.others.items())
        message = (
            f"no audio in it (found: {others or 'nothing'}), wanted {' '.join(sorted(SUFFIXES))}"
        )
        problems.append(Problem(folder, 0, "audio", message))
    special = [file for file in tree.files if av_audio.is_av(Path(file))]
    if special and not av_audio.is_installed():
        message = (
            f"{len(special)} files need PyAV (first: {printable(special[0])}); "
            f"run: {av_audio.INSTALL}"
        )
        problems.append(Problem(folder, 0, "PyAV", message))


def _measure_all(
    tree: AudioTree,
    named: dict[str, _Named],
    min_seconds: float,
    nj: int,
    on_progress: Callable[[int, int], None],
) -> dict[str, Levels]:
    """utt_id -> levels of all that can be used; the others go to `tree.skipped`."""
    levels: dict[str, Levels] = {}
    files = [str(tree.folder / name.file) for name in named.values()]
    outcomes = _measure_in_jobs(files, min_seconds, nj)
    for done, ((utt_id, name), outcome) in enumerate(zip(named.items(), outcomes, strict=True), 1):
        if isinstance(outcome, str):
            tree.skipped[name.file] = outcome
        else:
            levels[utt_id] = outcome
        on_progress(done, len(named))
    return levels


def _measure_in_jobs(files: list[str], min_seconds: float, nj: int) -> Iterator[Levels | str]:
    import joblib

    parallel = joblib.Parallel(n_jobs=nj, return_as="generator", batch_size=16 if nj > 1 else 1)
    return parallel(joblib.delayed(_measure_one)(file, min_seconds) for file in files)


def _measure_one(file: str, min_seconds: float) -> Levels | str:
    """The levels of a file, or why it cannot be used."""
    try:
        levels = measure(file)
    except DataDirError as error:
        return " ".join(str(error).removeprefix(f"{file}: ").split())
    if levels.is_silent:
        return f"silent: {levels.seconds:.2f} s, root mean square {levels.rms:.1g}"
    if levels.seconds < min_seconds:
        return f"too short: {levels.seconds:.2f} s, wanted at least {min_seconds:g} s"
    return levels


def _check_parts(folder: Path, keys: set[str], split: SplitBy, test: int, dev: int) -> None:
    """Refuse a split that leaves a wanted set empty: nothing after it could use that set."""
    there = {part_of(key, test=test, dev=dev) for key in keys}
    wanted = {"train": 1, "dev": dev, "test": test}
    empty = [part for part in PARTS if wanted[part] and part not in there]
    if not empty:
        return
    shares = shares_that_fill(keys, test=test, dev=dev)
    if shares:
        advice = f"give other shares, in per mille: --test {shares[0]} --dev {shares[1]}"
    else:
        way = "take --split utterance" if split == "speaker" else "add audio"
        advice = f"{way}, or make no such set: --test 0 --dev 0"
    raise DataDirError(
        f"{printable(folder)}: {' and '.join(empty)} would be empty: "
        f"{len(keys)} {split}s split by hash with --test {test} --dev {dev}; {advice}"
    )


def _write(report: CorpusReport, data_dir: Path) -> None:
    with atomic_folder(data_dir) as temporary:
        for part in report.parts:
            taken = {k: u for k, u in report.utterances.items() if u.part == part}
            DataDir(
                data_dir / part,
                wav={k: str(Path(report.folder) / u.file) for k, u in taken.items()},
                utt2spk={k: u.speaker for k, u in taken.items()},
                text={k: u.text for k, u in taken.items() if u.text},
            ).write(temporary / part)
        lines = (f"{printable(file)}\t{reason}\n" for file, reason in report.skipped.items())
        write_text(temporary / "skipped.tsv", "".join(lines))
        values = json.dumps(report.as_json(), indent=1, ensure_ascii=False)
        write_text(temporary / "prepare.json", values + "\n")
