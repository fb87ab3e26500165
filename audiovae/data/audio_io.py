"""Audio files: check, decode a file or a part of it, resample, write. Imports no torch."""

from __future__ import annotations

import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from audiovae.data import av_audio
from audiovae.data.atomic import atomic_path
from audiovae.errors import DataDirError

END_TOLERANCE = 0.1  # seconds a segment may end after its recording; the rest is an error
LOUDEST = 8.0  # |x| above it is not audio
QUIETEST = 1e-5  # root mean square below it is silence (-100 dB)
_BLOCK = 1 << 16  # samples decoded at a time
_RATES = (1_000, 384_000)  # Hz
_MOST_CHANNELS = 16
# Data sizes that programs write when they stream and cannot know the length.
_STREAMED = (0, 0x7FFFFFFF, 0x7FFFF000, 0x80000000, 0xFFFFFFFF)


@dataclass(frozen=True)
class AudioInfo:
    """What the header says."""

    sample_rate: int  # Hz
    channels: int
    num_samples: int  # per channel


def probe(path: str | Path) -> AudioInfo:
    """Read the header of an audio file, decoding nothing.

    Raises:
        DataDirError: not a regular file, empty, cut short, or nothing we can decode.
    """
    path = Path(path)
    with _opened(path) as file:
        if av_audio.is_av(path):
            return AudioInfo(*_av_header(path, file))
        with _sound_file(path, file) as sound:
            return AudioInfo(sound.samplerate, sound.channels, sound.frames)


def read_audio(
    path: str | Path, *, sample_rate: int, start: float = 0.0, end: float | None = None
) -> np.ndarray:
    """Decode a file or a part of it, mix down to mono and resample.

    Args:
        path: anything libsndfile knows; `.m4a`, `.aac` and raw `.g722` need the extra `formats`.
        sample_rate: wanted, Hz.
        start: seconds.
        end: seconds; None is the end of the file.

    Returns:
        (N,) float32.

    Raises:
        DataDirError: the file cannot be used; says why.
    """
    wave, rate = decode(path, start=start, end=end)
    return resample(wave, rate, sample_rate)


def decode(
    path: str | Path, *, start: float = 0.0, end: float | None = None
) -> tuple[np.ndarray, int]:
    """Decode a file or a part of it at its own rate, mixed down to mono.

    Returns:
        (N,) float32, and the sample rate in Hz.

    Raises:
        DataDirError: the file cannot be used: missing, cut short, silent, not finite, ...
    """
    blocks: list[np.ndarray] = []
    rate = 0
    for block, its_rate in stream(path, start=start, end=end):
        rate = its_rate
        blocks.append(mix_down(block))
    wave = np.concatenate(blocks) if blocks else np.zeros(0, np.float32)
    _check_signal(Path(path), wave)
    return wave, rate


def stream(
    path: str | Path, *, start: float = 0.0, end: float | None = None
) -> Iterator[tuple[np.ndarray, int]]:
    """Decode a file or a part of it block by block: (n, C) float32, and the sample rate in Hz.

    Raises:
        DataDirError: the file cannot be decoded; what the samples are is not looked at.
    """
    path = Path(path)
    with _opened(path) as file:
        if av_audio.is_av(path):
            rate, _, total = _av_header(path, file)
            first, last = _span(path, rate, start, end, total)
            for block in av_audio.read_blocks(path, file, first, last):
                yield block, rate
        else:
            with _sound_file(path, file) as sound:
                for block in _sound_blocks(path, sound, start, end):
                    yield block, sound.samplerate


def mix_down(block: np.ndarray) -> np.ndarray:
    """(n, C) to (n,): the mean of the channels."""
    return block[:, 0] if block.shape[1] == 1 else block.mean(1)


def resample(wave: np.ndarray, rate: int, wanted: int) -> np.ndarray:
    """(N,) float32 from one sample rate in Hz to another, by soxr at high quality."""
    if rate == wanted:
        return wave
    import soxr

    return soxr.resample(wave, rate, wanted, quality="HQ").astype(np.float32, copy=False)


def write_wav(
    path: str | Path, wave: np.ndarray, sample_rate: int, *, float32: bool = False
) -> int:
    """Write mono (N,) as wav, PCM16 or float32, atomically.

    Returns:
        The number of samples outside [-1, 1]: clipped in PCM16, kept in float32.

    Raises:
        DataDirError: a sample is not finite.
    """
    import soundfile

    wave = np.asarray(wave, dtype=np.float32)
    if not np.isfinite(wave).all():
        raise DataDirError(f"{path}: {np.sum(~np.isfinite(wave))} samples are NaN or infinite")
    # Quantised here: libsndfile's own scale is 32767 one way and 32768 the other.
    data = wave if float32 else np.clip(np.round(wave * 32768), -32768, 32767).astype(np.int16)
    with atomic_path(path) as temporary, temporary.open("wb") as file:
        soundfile.write(
            file, data, sample_rate, format="WAV", subtype="FLOAT" if float32 else "PCM_16"
        )
    return int(np.count_nonzero(np.abs(wave) > 1))


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    """The file, open and known to be a regular one with something in it."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):  # opening a FIFO or a device may never return
            raise DataDirError(f"{path}: not a regular file")
        if status.st_size == 0:
            raise DataDirError(f"{path}: empty file, 0 bytes")
        file = path.open("rb")
    except (OSError, ValueError) as error:
        if isinstance(error, DataDirError):
            raise
        reason = getattr(error, "strerror", None) or error
        raise DataDirError(f"{path}: not readable: {reason}") from error
    with file:
        yield file


@contextmanager
def _sound_file(path: Path, file: BinaryIO) -> Iterator[Any]:
    """A soundfile.SoundFile whose header has been checked."""
    import soundfile

    _check_riff_size(path, file)
    try:
        with soundfile.SoundFile(file) as sound:
            _check_header(path, sound.samplerate, sound.channels, sound.frames)
            yield sound
    except (soundfile.SoundFileError, RuntimeError, TypeError) as error:
        # libsndfile's own words; soundfile puts the file object before them.
        reason = getattr(error, "error_string", error)
        raise DataDirError(f"{path}: not readable as audio: {reason}") from error


def _av_header(path: Path, file: BinaryIO) -> tuple[int, int, int]:
    header = av_audio.read_header(path, file)
    _check_header(path, *header)
    return header


def _check_header(path: Path, rate: int, channels: int, num_samples: int) -> None:
    low, high = _RATES
    if not low <= rate <= high:
        raise DataDirError(f"{path}: {rate} Hz, wanted {low} to {high} Hz")
    if channels > _MOST_CHANNELS:
        raise DataDirError(f"{path}: {channels} channels, wanted 1 to {_MOST_CHANNELS}")
    if num_samples <= 0:
        raise DataDirError(f"{path}: no samples in it (0 frames)")


def _check_riff_size(path: Path, file: BinaryIO) -> None:
    """Refuse a wav whose data chunk promises more bytes than there are; libsndfile reads on."""
    size = file.seek(0, 2)
    file.seek(0)
    magic = file.read(12)
    if magic[:4] == b"RIFF" and magic[8:] == b"WAVE":
        while len(head := file.read(8)) == 8:
            name, declared = struct.unpack("<4sI", head)
            begin = file.tell()
            if name == b"data":
                if declared not in _STREAMED and begin + declared > size:
                    raise DataDirError(
                        f"{path}: truncated: the header says {declared} bytes of audio, "
                        f"{size - begin} are there"
                    )
                break
            file.seek(declared + declared % 2, 1)
    file.seek(0)


def _span(path: Path, rate: int, start: float, end: float | None, total: int) -> tuple[int, int]:
    """The samples [first, last) of a part; its end may lie a little after the recording's."""
    first = round(start * rate)
    last = total if end is None else round(end * rate)
    if first < 0 or first >= min(last, total) or last > total + END_TOLERANCE * rate:
        raise DataDirError(
            f"{path}: wanted {start} to {end if end is not None else 'the end'} s, "
            f"but the file is {total / rate:.3f} s long"
        )
    return first, min(last, total)


def _sound_blocks(path: Path, sound: Any, start: float, end: float | None) -> Iterator[np.ndarray]:
    # A stream without a length reports 2^63 - 1 frames: count what comes instead.
    first, last = _span(path, sound.samplerate, start, end, sound.frames)
    if first:
        sound.seek(first)
    left = last - first
    while left > 0:
        block = sound.read(min(left, _BLOCK), dtype="float32", always_2d=True)
        if not len(block):
            break
        yield block
        left -= len(block)
    if left and sound.frames < 1 << 60:
        raise DataDirError(f"{path}: truncated: {last - first} samples promised, {left} missing")


def check_range(path: Path, num_samples: int, not_finite: int, peak: float) -> None:
    """Refuse what is no audio.

    Raises:
        DataDirError: no samples, NaN or infinite ones, or a peak above `LOUDEST`.
    """
    if not num_samples:
        raise DataDirError(f"{path}: no samples in it (0 frames)")
    if not_finite:
        raise DataDirError(f"{path}: {not_finite} samples are NaN or infinite")
    if peak > LOUDEST:
        raise DataDirError(f"{path}: peak {peak:.3g}, wanted at most {LOUDEST:g}")


def _check_signal(path: Path, wave: np.ndarray) -> None:
    peak = np.abs(wave).max(initial=0.0)
    not_finite = 0 if np.isfinite(peak) else int(np.sum(~np.isfinite(wave)))
    check_range(path, len(wave), not_finite, peak)
    if np.sqrt(np.mean(np.square(wave, dtype=np.float64))) < QUIETEST:
        raise DataDirError(f"{path}: silent: root mean square below {QUIETEST:g}")
