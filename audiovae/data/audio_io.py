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

from audiovae.data.atomic import atomic_path
from audiovae.errors import DataDirError

END_TOLERANCE = 0.1  # seconds a segment may end after its recording; the rest is an error
LOUDEST = 8.0  # |x| above it is not audio
QUIETEST = 1e-5  # root mean square below it is silence (-100 dB)
_BLOCK = 1 << 16  # samples decoded at a time
_RATES = (1_000, 384_000)  # Hz
_MOST_CHANNELS = 16
_G722_RATE = 16_000  # Hz; 64 kbit/s, so one byte is two samples
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
        if path.suffix.lower() == ".g722":
            return AudioInfo(_G722_RATE, 1, 2 * path.stat().st_size)
        with _sound_file(path, file) as sound:
            return AudioInfo(sound.samplerate, sound.channels, sound.frames)


def read_audio(
    path: str | Path, *, sample_rate: int, start: float = 0.0, end: float | None = None
) -> np.ndarray:
    """Decode a file or a part of it, mix down to mono and resample.

    Args:
        path: anything libsndfile knows, or raw `.g722` (needs the extra `formats`).
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
    path = Path(path)
    with _opened(path) as file:
        if path.suffix.lower() == ".g722":
            wave, rate = _decode_g722(path, file, start, end), _G722_RATE
        else:
            with _sound_file(path, file) as sound:
                wave, rate = _decode_sound(path, sound, start, end), sound.samplerate
    _check_signal(path, wave)
    return wave, rate


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
            low, high = _RATES
            if not low <= sound.samplerate <= high:
                raise DataDirError(f"{path}: {sound.samplerate} Hz, wanted {low} to {high} Hz")
            if sound.channels > _MOST_CHANNELS:
                raise DataDirError(f"{path}: {sound.channels} channels, wanted 1 to 16")
            if sound.frames <= 0:
                raise DataDirError(f"{path}: no samples in it (0 frames)")
            yield sound
    except (soundfile.SoundFileError, RuntimeError, TypeError) as error:
        raise DataDirError(f"{path}: not readable as audio: {error}") from error


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


def _decode_sound(path: Path, sound: Any, start: float, end: float | None) -> np.ndarray:
    # A stream without a length reports 2^63 - 1 frames: count what comes instead.
    first, last = _span(path, sound.samplerate, start, end, sound.frames)
    if first:
        sound.seek(first)
    blocks: list[np.ndarray] = []
    left = last - first
    while left > 0:
        block = sound.read(min(left, _BLOCK), dtype="float32", always_2d=True)
        if not len(block):
            break
        blocks.append(block[:, 0] if sound.channels == 1 else block.mean(1))
        left -= len(block)
    if left and sound.frames < 1 << 60:
        raise DataDirError(f"{path}: truncated: {last - first} samples promised, {left} missing")
    return np.concatenate(blocks) if blocks else np.zeros(0, np.float32)


def _decode_g722(path: Path, file: BinaryIO, start: float, end: float | None) -> np.ndarray:
    """Raw G.722. Its state runs from the first byte on, so decode from there and keep the part."""
    try:
        import av
    except ImportError:
        raise DataDirError(
            f"{path}: G.722 needs PyAV; run: pip install 'audiovae[formats]'"
        ) from None

    first, last = _span(path, _G722_RATE, start, end, 2 * path.stat().st_size)
    blocks: list[np.ndarray] = []
    at = 0
    try:
        with av.open(file, format="g722", mode="r") as container:
            for frame in container.decode(audio=0):
                block = frame.to_ndarray().reshape(-1)
                if at + len(block) > first:
                    blocks.append(block[max(first - at, 0) : last - at])
                at += len(block)
                if at >= last:
                    break
    except av.error.FFmpegError as error:
        raise DataDirError(f"{path}: not readable as G.722: {error}") from error
    if at < last:
        raise DataDirError(f"{path}: truncated: {last} samples promised, {last - at} missing")
    return (np.concatenate(blocks) / np.float32(32768)).astype(np.float32, copy=False)


def _check_signal(path: Path, wave: np.ndarray) -> None:
    if not len(wave):
        raise DataDirError(f"{path}: no samples in it (0 frames)")
    peak = np.abs(wave).max()
    if not np.isfinite(peak):
        raise DataDirError(f"{path}: {np.sum(~np.isfinite(wave))} samples are NaN or infinite")
    if peak > LOUDEST:
        raise DataDirError(f"{path}: peak {peak:.3g}, wanted at most {LOUDEST:g}")
    if np.sqrt(np.mean(np.square(wave, dtype=np.float64))) < QUIETEST:
        raise DataDirError(f"{path}: silent: root mean square below {QUIETEST:g}")
