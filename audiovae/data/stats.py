"""Mean and deviation of the mel bins over a set of utterances, mergeable."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from audiovae.config import FeatureConfig
from audiovae.config_file import config_to_dict, feature_config_from_dict
from audiovae.data.archive import FeatureArchive
from audiovae.data.atomic import write_text
from audiovae.errors import ConfigError, DataDirError


@dataclass(frozen=True)
class Stats:
    """What the model needs to know of its training features.

    Attributes:
        feature: the mel contract of the features.
        num_frames: frames counted.
        mean: (n_mels,) float64, log-mel.
        std: (n_mels,) float64, log-mel, of each bin around its mean.
        scale: one global deviation, the root of the mean over bins of std ** 2.
    """

    feature: FeatureConfig
    num_frames: int
    mean: np.ndarray
    std: np.ndarray
    scale: float

    @classmethod
    def of(cls, mel: np.ndarray, feature: FeatureConfig) -> Stats:
        """Statistics of one log-mel (T, n_mels), T > 0."""
        mel = mel.astype(np.float64)
        return cls._of_moments(feature, len(mel), mel.mean(0), mel.var(0))

    @classmethod
    def _of_moments(
        cls, feature: FeatureConfig, num_frames: int, mean: np.ndarray, variance: np.ndarray
    ) -> Stats:
        return cls(feature, num_frames, mean, np.sqrt(variance), float(np.sqrt(variance.mean())))

    def merge(self, other: Stats) -> Stats:
        """Statistics of both sets together (Chan et al. 1979, the pairwise form of Welford)."""
        self.feature.require_same(other.feature, "these statistics", "the merged ones")
        num_frames = self.num_frames + other.num_frames
        share = other.num_frames / num_frames
        shift = other.mean - self.mean
        variance = (1 - share) * self.std**2 + share * other.std**2 + share * (1 - share) * shift**2
        return self._of_moments(self.feature, num_frames, self.mean + share * shift, variance)

    def save(self, path: str | Path) -> None:
        """Write as JSON; every digit survives."""
        values = {
            "feature": config_to_dict(self.feature),
            "num_frames": self.num_frames,
            "scale": self.scale,
            "mean": self.mean.tolist(),
            "std": self.std.tolist(),
        }
        write_text(path, json.dumps(values, indent=1) + "\n")

    @classmethod
    def load(cls, path: str | Path) -> Stats:
        """Read what `save` wrote.

        Raises:
            DataDirError: missing, not JSON, or with values that cannot be statistics.
        """
        hint = f"run audiovae stats {Path(path).parent}"
        try:
            values: Any = json.loads(Path(path).read_text("utf-8"))
            feature = feature_config_from_dict(values["feature"], str(path))
            mean, std = (np.array(values[name], dtype=np.float64) for name in ("mean", "std"))
            stats = cls(feature, int(values["num_frames"]), mean, std, float(values["scale"]))
        except FileNotFoundError:
            raise DataDirError(f"{path}: no such file; {hint}") from None
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            if isinstance(error, ConfigError):
                raise DataDirError(str(error)) from error
            raise DataDirError(f"{path}: not statistics ({error!r}); {hint}") from error
        shape = (feature.n_mels,)
        sound = mean.shape == shape == std.shape and bool(np.isfinite([*mean, *std]).all())
        if not (sound and bool((std >= 0).all()) and 0 < stats.scale < np.inf and stats.num_frames):
            raise DataDirError(f"{path}: wanted {feature.n_mels} finite means and stds; {hint}")
        return stats


def compute_stats(archive: FeatureArchive) -> Stats:
    """Statistics over all utterances of an archive.

    Raises:
        DataDirError: no utterances, a damaged one, or features that never vary.
    """
    total: Stats | None = None
    for utt_id in archive.utt_ids:
        one = Stats.of(archive[utt_id], archive.feature)
        total = one if total is None else total.merge(one)
    if total is None or not 0 < total.scale < np.inf:
        raise DataDirError(
            f"{archive.path}: {len(archive)} utterances, scale "
            f"{total.scale if total else 'unknown'}; wanted features that vary and are finite"
        )
    return total
