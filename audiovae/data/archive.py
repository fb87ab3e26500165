"""The features of a dump dir: feats.ark, feats.scp, utt2num_frames and feature.json."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from audiovae.config import FeatureConfig
from audiovae.config_file import config_to_dict, feature_config_from_dict
from audiovae.data import kaldi_dir
from audiovae.data.atomic import write_text
from audiovae.errors import ConfigError, DataDirError

FORMAT = 1  # of feature.json

# Kaldi binary float matrix: "\0B" "FM " "\4" rows "\4" columns, little endian (kaldi-matrix.cc).
_HEADER = struct.Struct("<5s1si1si")


class FeatureArchive:
    """Read-only log-mel features of a dump dir, by utterance id; small, picklable, thread-safe.

    Reads the one kind of archive `audiovae extract` writes, an uncompressed float32 matrix per
    utterance, so neither a pipe in feats.scp nor a pickle in feats.ark can ever run.

    Args:
        path: a dump dir, e.g. dump/train.

    Raises:
        DataDirError: a file is missing, damaged, or disagrees with another.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.feature: FeatureConfig = read_feature_json(self.path)
        problems: list[kaldi_dir.Problem] = []
        offsets = kaldi_dir.read_table(self.path / "feats.scp", problems)
        frames = kaldi_dir.read_table(self.path / "utt2num_frames", problems)
        speakers = kaldi_dir.read_table(self.path / "utt2spk", problems)
        text = kaldi_dir.read_table(self.path / "text", problems, required=False, may_be_empty=True)
        self.utt_ids: list[str] = sorted(offsets)
        self._offsets: dict[str, int] = {}
        self.num_frames: dict[str, int] = {}
        for utt_id in self.utt_ids:
            where = f"{self.path / 'feats.scp'}:{offsets[utt_id].line}: utt_id '{utt_id}'"
            name, _, offset = offsets[utt_id].value.rpartition(":")
            if name != "feats.ark" or not offset.isdecimal():
                raise DataDirError(
                    f"{where}: found {offsets[utt_id].value!r}, wanted feats.ark:BYTES. "
                    f"Run audiovae extract again"
                )
            if utt_id not in frames or not frames[utt_id].value.isdecimal():
                raise DataDirError(f"{where}: no frame count in utt2num_frames; extract again")
            if utt_id not in speakers:
                raise DataDirError(f"{where}: no speaker in utt2spk; extract again")
            self._offsets[utt_id] = int(offset)
            self.num_frames[utt_id] = int(frames[utt_id].value)
        kaldi_dir.raise_if(problems)
        self.utt2spk: dict[str, str] = {utt_id: e.value for utt_id, e in speakers.items()}
        self.text: dict[str, str] = {utt_id: entry.value for utt_id, entry in text.items()}

    def __len__(self) -> int:
        return len(self.utt_ids)

    def __contains__(self, utt_id: object) -> bool:
        return utt_id in self._offsets

    def __getitem__(self, utt_id: str) -> np.ndarray:
        """Log-mel (T, n_mels) float32 of one utterance.

        Raises:
            DataDirError: no such utterance, or its matrix is damaged.
        """
        ark = self.path / "feats.ark"
        if utt_id not in self._offsets:
            raise DataDirError(f"{self.path / 'feats.scp'}: no utt_id '{utt_id}'")
        try:
            with ark.open("rb") as file:
                file.seek(self._offsets[utt_id])
                return _read_matrix(file, self.num_frames[utt_id], self.feature.n_mels)
        except (OSError, DataDirError) as error:
            raise DataDirError(f"{ark}: utt_id '{utt_id}': {error}; extract again") from error


def _read_matrix(file: BinaryIO, rows: int, columns: int) -> np.ndarray:
    header = file.read(_HEADER.size)
    wanted = _HEADER.pack(b"\0BFM ", b"\4", rows, b"\4", columns)
    if header != wanted:
        raise DataDirError(f"found header {header!r}, wanted a float32 matrix ({rows}, {columns})")
    mel = np.fromfile(file, dtype="<f4", count=rows * columns)
    if mel.size != rows * columns:
        raise DataDirError(f"found {mel.size} values, wanted {rows * columns}: file cut short")
    return mel.reshape(rows, columns)


def write_matrices(file: BinaryIO, mels: Iterable[tuple[str, np.ndarray]]) -> dict[str, int]:
    """Append (utt_id, mel (T, n_mels)) to an open ark; returns the offset of each matrix."""
    import kaldiio

    offsets: dict[str, int] = {}
    for utt_id, mel in mels:
        start = file.tell()
        kaldiio.save_ark(file, {utt_id: np.ascontiguousarray(mel, dtype="<f4")})
        offsets[utt_id] = start + len(utt_id.encode()) + 1
    return offsets


def read_feature_json(path: Path) -> FeatureConfig:
    """The mel contract of a dump dir.

    Raises:
        DataDirError: feature.json is missing (the extraction did not finish) or damaged.
    """
    file = path / "feature.json"
    try:
        values: Any = json.loads(file.read_text("utf-8"))
    except FileNotFoundError:
        raise DataDirError(
            f"{file}: no such file. No features here, or an extraction that did not finish: "
            f"run audiovae extract DATA_DIR {path} (it resumes)"
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise DataDirError(f"{file}: not readable as JSON: {error}; extract again") from error
    if not isinstance(values, dict) or values.get("format") != FORMAT:
        raise DataDirError(f"{file}: wanted 'format': {FORMAT}; extract again")
    try:
        return feature_config_from_dict(values.get("feature"), str(file))
    except ConfigError as error:
        raise DataDirError(str(error)) from error


def write_feature_json(path: Path, feature: FeatureConfig) -> None:
    """Write the mel contract; the last file of an extraction, so it marks a whole dump dir."""
    values = {"format": FORMAT, "hash": feature.hash, "feature": config_to_dict(feature)}
    write_text(path / "feature.json", json.dumps(values, indent=2) + "\n")
