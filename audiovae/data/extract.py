"""Features of a data dir into a dump dir: parallel, resumable, nothing lost without a reason."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import audiovae
from audiovae.config import Config
from audiovae.data import archive, audio_io
from audiovae.data.atomic import atomic_path, write_text
from audiovae.data.kaldi_dir import DataDir, Segment, copy_subset, read_table, write_table
from audiovae.errors import DataDirError

_SHARD_SIZE = 64  # utterances; the unit of parallel work and of resuming
_TRIM_FRAME = 0.093  # seconds; 2048 samples at 22 050 Hz
_TRIM_HOP = 0.023  # seconds


class _Task(NamedTuple):
    """One utterance to extract; `size` and `mtime` tell whether its file has changed."""

    utt_id: str
    file: str
    start: float
    end: float | None
    size: int
    mtime: int


class _Done(NamedTuple):
    """One extracted utterance: where its matrix is in the shard, and the audio it was made of."""

    utt_id: str
    offset: int  # bytes
    num_frames: int
    start: float  # seconds in the recording, after trimming
    end: float
    seconds_before: float  # before trimming


@dataclass(frozen=True)
class ExtractReport:
    """What came of an extraction; num_in = num_out + len(skipped), always."""

    num_in: int
    num_out: int
    skipped: dict[str, str]  # utt_id -> reason
    seconds_before: float  # of the extracted utterances, before trimming
    seconds_after: float
    shortest: float  # seconds
    median: float
    longest: float
    reused: bool = False  # nothing had to be done

    def __str__(self) -> str:
        return (
            f"{self.num_in} utterances in = {self.num_out} out + {len(self.skipped)} skipped; "
            f"{self.seconds_before / 60:.1f} min before trimming, "
            f"{self.seconds_after / 60:.1f} min after; "
            f"shortest {self.shortest:.2f} s, median {self.median:.2f} s, "
            f"longest {self.longest:.2f} s"
        )


def extract(
    data: DataDir,
    dump: str | Path,
    config: Config,
    *,
    nj: int = 1,
    on_progress: Callable[[int], None] = lambda utterances: None,
) -> ExtractReport:
    """Extract log-mel features of every utterance of a data dir.

    The dump dir gets feats.ark, feats.scp, utt2num_frames, skipped.tsv and feature.json, and is a
    data dir itself whose segments name exactly the audio the features were made of. The same bytes
    for any `nj`. Finished shards of an interrupted run with the same inputs and config are reused.

    Args:
        data: where the audio is.
        dump: folder to make or bring up to date.
        config: its sections feature and data are used.
        nj: parallel jobs of joblib.
        on_progress: called with the number of utterances just finished.

    Raises:
        DataDirError: not one utterance could be used, or the dump dir can't be written.
    """
    dump = Path(dump)
    if dump.resolve() == data.path.resolve():
        raise DataDirError(f"{dump}: the dump dir is the data dir; name another folder")
    tasks = _tasks(data)
    shards = [tasks[i : i + _SHARD_SIZE] for i in range(0, len(tasks), _SHARD_SIZE)]
    names = [_fingerprint(config, shard) for shard in shards]
    fingerprint = hashlib.sha256("".join(names).encode()).hexdigest()
    if report := _finished(dump, fingerprint):
        on_progress(len(tasks))
        _write_data_dir(data, dump, DataDir.read(dump).segments)  # speakers and text may be new
        return report

    work = dump / ".shards"
    work.mkdir(parents=True, exist_ok=True)
    for name in ("feature.json", "stats.json"):  # the first's absence says: not finished
        (dump / name).unlink(missing_ok=True)
    _extract_shards(shards, names, work, config, nj, on_progress)
    report = _merge(data, dump, [work / name for name in names])
    values = {"inputs": fingerprint, **dataclasses.asdict(report)}
    write_text(dump / "extract.json", json.dumps(values, indent=1, ensure_ascii=False) + "\n")
    archive.write_feature_json(dump, config.feature)
    shutil.rmtree(work)
    return report


def _tasks(data: DataDir) -> list[_Task]:
    tasks = []
    for utt_id in data.utt_ids:
        reco_id, start, end = data.segment(utt_id)
        file = os.path.abspath(data.wav[reco_id])  # noqa: PTH100 (resolve() would follow links)
        try:
            status = os.stat(file)  # noqa: PTH116
            size, mtime = status.st_size, status.st_mtime_ns
        except (OSError, ValueError):
            size = mtime = -1  # skipped with its reason when it is read
        tasks.append(_Task(utt_id, file, start, end, size, mtime))
    return tasks


def _fingerprint(config: Config, shard: list[_Task]) -> str:
    data = config.data
    limits = [data.trim_db, data.min_seconds, data.max_seconds]
    inputs = [audiovae.__version__, config.feature.hash, limits, shard]
    return hashlib.sha256(json.dumps(inputs).encode()).hexdigest()


def _finished(dump: Path, fingerprint: str) -> ExtractReport | None:
    """The report of a finished extraction of the same inputs, if that is what lies in `dump`."""
    try:
        values: dict[str, Any] = json.loads((dump / "extract.json").read_text("utf-8"))
        if values.pop("inputs") != fingerprint:
            return None
        archive.FeatureArchive(dump)
        return dataclasses.replace(ExtractReport(**values), reused=True)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _extract_shards(
    shards: list[list[_Task]],
    names: list[str],
    work: Path,
    config: Config,
    nj: int,
    on_progress: Callable[[int], None],
) -> None:
    import joblib

    missing = []
    for name, shard in zip(names, shards, strict=True):
        if _read_shard(work / name) is None:
            missing.append(joblib.delayed(_extract_shard)(shard, work / name, config))
        else:
            on_progress(len(shard))
    parallel = joblib.Parallel(n_jobs=nj, return_as="generator_unordered", batch_size=1)
    for count in parallel(missing):
        on_progress(count)


def _extract_shard(shard: list[_Task], path: Path, config: Config) -> int:
    """Write `path`.ark, then `path`.json; returns the number of utterances seen."""
    from threadpoolctl import threadpool_limits

    done: list[_Done] = []
    skipped: dict[str, str] = {}

    def mels() -> Iterator[tuple[str, np.ndarray]]:
        for task in shard:
            try:
                mel, start, end, before = _extract_one(task, config)
            except DataDirError as error:
                skipped[task.utt_id] = " ".join(str(error).split())
                continue
            done.append(_Done(task.utt_id, 0, len(mel), start, end, before))
            yield task.utt_id, mel

    # One thread in any number of jobs: the same sums in the same order, so the same bytes.
    ark = path.with_suffix(".ark")
    with threadpool_limits(1), atomic_path(ark) as temporary, temporary.open("wb") as file:
        offsets = archive.write_matrices(file, mels())
        size = file.tell()
    done = [d._replace(offset=offsets[d.utt_id]) for d in done]
    write_text(
        path.with_suffix(".json"), json.dumps({"size": size, "done": done, "skipped": skipped})
    )
    return len(shard)


def _extract_one(task: _Task, config: Config) -> tuple[np.ndarray, float, float, float]:
    """Mel (T, n_mels), start and end of its audio in the recording, seconds before trimming."""
    from audiovae.features import log_mel

    wave, rate = audio_io.decode(task.file, start=task.start, end=task.end)
    before = len(wave) / rate
    # Cut at the recording's own rate: the same cut, resampled again, gives the same samples.
    first, last = _sound_span(wave, rate, config.data.trim_db)
    seconds = (last - first) / rate
    if not config.data.min_seconds <= seconds <= config.data.max_seconds:
        name = "min_seconds" if seconds < config.data.min_seconds else "max_seconds"
        raise DataDirError(
            f"too {'short' if name == 'min_seconds' else 'long'}: {seconds:.2f} s "
            f"({before:.2f} s before trimming), data.{name} is {getattr(config.data, name):g}"
        )
    offset = round(task.start * rate)
    wave = audio_io.resample(wave[first:last], rate, config.feature.sample_rate)
    hop = config.feature.hop_length
    mel = log_mel(wave[: len(wave) // hop * hop], config.feature)
    return mel, (offset + first) / rate, (offset + last) / rate, before


def _sound_span(wave: np.ndarray, rate: int, trim_db: float | None) -> tuple[int, int]:
    """The samples [first, last) left when silence at both ends is cut, as librosa.effects.trim.

    Its own lines, because librosa's compile for seconds in every job.
    """
    if trim_db is None:
        return 0, len(wave)
    frame, hop = round(_TRIM_FRAME * rate), round(_TRIM_HOP * rate)
    padded = np.pad(wave.astype(np.float64), frame // 2)
    power = np.concatenate([[0.0], np.cumsum(padded**2)])
    energy = (power[frame:] - power[:-frame])[::hop]
    loud = np.flatnonzero(energy > energy.max() * 10 ** (-trim_db / 10))
    return int(loud[0]) * hop, min((int(loud[-1]) + 1) * hop, len(wave))


def _read_shard(path: Path) -> tuple[list[_Done], dict[str, str]] | None:
    """A finished shard, or None if it has to be made."""
    try:
        values = json.loads(path.with_suffix(".json").read_text("utf-8"))
        if path.with_suffix(".ark").stat().st_size != values["size"]:
            return None
        return [_Done(*entry) for entry in values["done"]], dict(values["skipped"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _merge(data: DataDir, dump: Path, shards: list[Path]) -> ExtractReport:
    """Join the shards, which are in byte order already, and write the tables of the dump dir."""
    done: list[_Done] = []
    skipped: dict[str, str] = {}
    joined = dump / ".shards" / "feats.ark"
    with joined.open("wb") as whole:
        for path in shards:
            shard = _read_shard(path)
            if shard is None:
                raise DataDirError(f"{path}: vanished while extracting; run the command again")
            done += [d._replace(offset=d.offset + whole.tell()) for d in shard[0]]
            skipped |= shard[1]
            with path.with_suffix(".ark").open("rb") as part:
                shutil.copyfileobj(part, whole)
    tsv = "".join(f"{utt_id}\t{skipped[utt_id]}\n" for utt_id in sorted(skipped))
    write_text(dump / "skipped.tsv", tsv)
    if not done:
        first = next(iter(skipped.items()), ("none", "no utterances"))
        raise DataDirError(
            f"{data.path}: none of {len(skipped)} utterances could be used "
            f"(first: {first[0]}: {first[1]}); see {dump / 'skipped.tsv'}"
        )
    joined.replace(dump / "feats.ark")
    write_table(dump / "feats.scp", {d.utt_id: f"feats.ark:{d.offset}" for d in done})
    write_table(dump / "utt2num_frames", {d.utt_id: str(d.num_frames) for d in done})
    segments = {d.utt_id: Segment(data.segment(d.utt_id).reco_id, d.start, d.end) for d in done}
    _write_data_dir(data, dump, segments)
    lengths = [d.end - d.start for d in done]
    return ExtractReport(
        num_in=len(done) + len(skipped),
        num_out=len(done),
        skipped=skipped,
        seconds_before=sum(d.seconds_before for d in done),
        seconds_after=sum(lengths),
        shortest=min(lengths),
        median=statistics.median(lengths),
        longest=max(lengths),
    )


def _write_data_dir(data: DataDir, dump: Path, segments: dict[str, Segment]) -> None:
    subset = copy_subset(data, segments, dump)
    wav = {reco_id: os.path.abspath(file) for reco_id, file in subset.wav.items()}  # noqa: PTH100
    dataclasses.replace(subset, wav=wav, segments=segments).write(dump)
    if (data.path / "utt2lang").is_file():  # only evaluation reads it
        languages = read_table(data.path / "utt2lang", [])
        write_table(dump / "utt2lang", {u: languages[u].value for u in segments if u in languages})
