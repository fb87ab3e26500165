"""Audio that libsndfile does not know, by PyAV (the extra `formats`): G.722, AAC in m4a, aac."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from audiovae.errors import DataDirError

# The demuxer of each suffix. Named, since FFmpeg's own guess may take a file for a playlist.
FORMATS = {".g722": "g722", ".m4a": "mov", ".aac": "aac"}
INSTALL = "pip install 'audiovae[formats]'"
_G722_RATE = 16_000  # Hz; 64 kbit/s, so one byte is two samples
_AAC_EDGE = 8192  # samples at both ends of AAC that a decoder may leave out


def is_av(path: Path) -> bool:
    """Whether the file is one for PyAV, by its suffix."""
    return path.suffix.lower() in FORMATS


def is_installed() -> bool:
    """Whether PyAV is there."""
    return importlib.util.find_spec("av") is not None


def read_header(path: Path, file: BinaryIO) -> tuple[int, int, int]:
    """Sample rate in Hz, channels, samples per channel.

    Raises:
        DataDirError: PyAV is missing, or cannot read it.
    """
    if path.suffix.lower() == ".g722":
        return _G722_RATE, 1, 2 * path.stat().st_size
    with _container(path, file) as container:
        stream = container.streams.audio[0]
        # An m4a says how long it is; raw AAC does not, and FFmpeg guesses from the bit rate.
        if path.suffix.lower() == ".m4a" and stream.duration:
            seconds = stream.duration * stream.time_base
        else:
            packets = (packet for packet in container.demux(stream) if packet.size)
            seconds = sum((packet.duration or 0) * packet.time_base for packet in packets)
        return stream.rate, stream.channels, round(seconds * stream.rate)


def read_blocks(path: Path, file: BinaryIO, first: int, last: int) -> Iterator[np.ndarray]:
    """The samples [first, last) as blocks (n, C) float32.

    Decoded from the first byte on whatever `first` is: the state of these codecs starts there.

    Raises:
        DataDirError: PyAV is missing, cannot read it, or finds less than `last` samples.
    """
    at = 0
    with _container(path, file) as container:
        for frame in container.decode(audio=0):
            block = _samples(frame)
            if at + len(block) > first and at < last:
                yield block[max(first - at, 0) : last - at]
            at += len(block)
            if at >= last:
                break
    edge = 0 if path.suffix.lower() == ".g722" else _AAC_EDGE
    if at < last - edge:
        raise DataDirError(f"{path}: truncated: {last} samples promised, {last - at} missing")


def _samples(frame: Any) -> np.ndarray:
    """(n, C) float32 of a frame, whatever its sample format is."""
    data = frame.to_ndarray()
    data = data.T if frame.format.is_planar else data.reshape(-1, frame.layout.nb_channels)
    if data.dtype.kind == "f":
        return data.astype(np.float32, copy=False)
    return data.astype(np.float32) / np.float32(-float(np.iinfo(data.dtype).min))


@contextmanager
def _container(path: Path, file: BinaryIO) -> Iterator[Any]:
    name = "G.722" if path.suffix.lower() == ".g722" else "AAC"
    try:
        import av
    except ImportError:
        raise DataDirError(f"{path}: {name} needs PyAV; run: {INSTALL}") from None
    file.seek(0)
    try:
        with av.open(file, format=FORMATS[path.suffix.lower()], mode="r") as container:
            if not container.streams.audio:
                raise DataDirError(f"{path}: no audio in it")
            yield container
    except av.error.FFmpegError as error:
        reason = getattr(error, "strerror", None) or error
        raise DataDirError(f"{path}: not readable as {name}: {reason}") from error
