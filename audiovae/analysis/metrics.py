"""Distances between log-mels and between sets of them; numpy only.

Every mel here has shape (T, M) in natural-log units ("nats" in the names of differences).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy.fft
import scipy.linalg
import scipy.spatial.distance
import scipy.stats

PATCH_FRAMES = 16
PATCH_HOP = 4  # frames from one patch to the next
PATCH_COMPONENTS = 48
PATCHES = 1000  # per side of a Frechet distance: its floor depends on this number
PATCH_DRAWS = 16  # Frechet distances averaged, each of other patches
CEPSTRA = 13  # c1 to c13; c0, the level, is left out


def dtw_path(reference: np.ndarray, other: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Dynamic time warping with steps (1, 1), (1, 0), (0, 1) of equal weight, over all cells.

    The cost of a cell is the mean absolute difference of its two frames. Cells are filled one
    anti-diagonal at a time, so a step of the loop is one array operation.

    Returns:
        The path's frames in `reference` and in `other`, both with shape (P,), ascending.
    """
    cost = scipy.spatial.distance.cdist(reference, other, "cityblock") / reference.shape[1]
    rows, columns = cost.shape
    moves = np.zeros((rows + columns - 1, rows), np.int8)
    # Index i + 1 of a diagonal holds row i; infinity stands outside the matrix.
    before = np.full(rows + 1, np.inf)
    last = np.full(rows + 1, np.inf)
    for d in range(rows + columns - 1):
        low, high = max(0, d - columns + 1), min(rows, d + 1)
        row = np.arange(low, high)
        total = np.full(rows + 1, np.inf)
        if d == 0:
            total[1] = cost[0, 0]
        else:
            options = np.stack((before[low:high], last[low:high], last[low + 1 : high + 1]))
            moves[d, low:high] = options.argmin(0)
            total[low + 1 : high + 1] = cost[row, d - row] + options.min(0)
        before, last = last, total
    return _backtrack(moves, rows, columns)


def _backtrack(moves: np.ndarray, rows: int, columns: int) -> tuple[np.ndarray, np.ndarray]:
    i, j = rows - 1, columns - 1
    path = [(i, j)]
    while i or j:
        move = moves[i + j, i]  # 0 both, 1 the reference, 2 the other goes one frame back
        i, j = i - (move != 2), j - (move != 1)
        path.append((i, j))
    steps = np.array(path[::-1])
    return steps[:, 0], steps[:, 1]


@dataclass(frozen=True)
class MelDistance:
    """Two distances along one DTW path."""

    l1: float  # mean absolute difference, nats
    mcd: float  # mel-cepstral distortion, dB


def mel_distance(reference: np.ndarray, other: np.ndarray, *, power: float = 1.0) -> MelDistance:
    """Distances of two log-mels after DTW, each averaged over the steps of the path.

    Args:
        reference, other: (T, M) and (T', M).
        power: 1 where the mels are of magnitudes, 2 of powers (FeatureConfig.power).
    """
    i, j = dtw_path(reference, other)
    difference = reference[i].astype(np.float64) - other[j]
    return MelDistance(
        l1=float(np.abs(difference).mean()),
        mcd=float(cepstral_distortion(difference, power=power).mean()),
    )


def cepstral_distortion(difference: np.ndarray, *, power: float = 1.0) -> np.ndarray:
    """Mel-cepstral distortion of each frame in dB (Kubichek 1993).

    (10 / ln 10) sqrt(2 sum_{m=1..13} (c_m - c'_m)^2) with ln|X_n| = c_0 + sum_m c_m cos(pi m
    (n + 1/2) / M), so it is the root mean square over the mel bins of the level difference between
    the two spectra, both without their mean and smoothed to 13 cosines. It is larger than what
    vocoder analysis (WORLD, SPTK) with its smoother envelope gives: compare only with itself.

    Args:
        difference: (P, M), difference of two natural-log mels, frame by frame.
    """
    n_mels = difference.shape[1]
    cepstra = scipy.fft.dct(difference, axis=1)[:, 1 : CEPSTRA + 1] / n_mels
    return 10 / math.log(10) / power * np.sqrt(2 * np.square(cepstra).sum(1))


def flux(mel: np.ndarray) -> float:
    """Mean |change from frame to frame|, nats: falls when a mel is over-smooth."""
    return float(np.abs(np.diff(mel, axis=0)).mean()) if len(mel) > 1 else 0.0


def expected_position(alignment: np.ndarray) -> np.ndarray:
    """Where each decoder step looks, in memory steps: (L, K) weights -> (L,)."""
    return alignment @ np.arange(alignment.shape[1])


def alignment_error(alignment: np.ndarray, slots_per_step: float) -> np.ndarray:
    """|expected position - the known diagonal| of each decoder step, in memory steps.

    Decoder step i makes the frames around memory position (i + 1/2) * slots_per_step - 1/2
    (Config.slots_per_step); a last, partly used group is held to the last memory step.

    Args:
        alignment: (L, K), rows sum to 1, padding cut off.
    """
    steps, slots = alignment.shape
    diagonal = np.clip((np.arange(steps) + 0.5) * slots_per_step - 0.5, 0, slots - 1)
    return np.abs(expected_position(alignment) - diagonal)


@dataclass(frozen=True)
class Durations:
    """Lengths of two sets of utterances, seconds."""

    mean: float
    std: float
    reference_mean: float
    reference_std: float
    ratio: float  # mean / reference_mean
    ratio_error: float  # its standard error, from the spread and number of both
    ks: float  # Kolmogorov-Smirnov statistic, 0 to 1
    ks_p: float  # its p-value


def compare_durations(seconds: Sequence[float], reference: Sequence[float]) -> Durations:
    """Compare the lengths of samples with those of real utterances."""
    test = scipy.stats.ks_2samp(seconds, reference)
    ratio = float(np.mean(seconds) / np.mean(reference))
    relative = [np.std(x) / np.mean(x) / math.sqrt(len(x)) for x in (seconds, reference)]
    return Durations(
        mean=float(np.mean(seconds)),
        std=float(np.std(seconds)),
        reference_mean=float(np.mean(reference)),
        reference_std=float(np.std(reference)),
        ratio=ratio,
        ratio_error=ratio * math.hypot(*relative),
        ks=float(test.statistic),
        ks_p=float(test.pvalue),
    )


def count_patches(frames: Sequence[int]) -> int:
    """How many patches of 16 frames, one every 4 frames, mels of these lengths hold."""
    return sum((n - PATCH_FRAMES) // PATCH_HOP + 1 for n in frames if n >= PATCH_FRAMES)


def draw_patches(mels: Sequence[np.ndarray], number: int, rng: np.random.Generator) -> np.ndarray:
    """Different patches chosen at random from all patches of all mels, each equally likely.

    Mels of fewer than 16 frames hold none.

    Returns:
        (N, 16 * M) float32, N = min(number, count_patches).
    """
    counts = [count_patches([len(mel)]) for mel in mels]
    ends = np.cumsum(counts)
    chosen = np.sort(rng.permutation(sum(counts))[:number])
    owners = np.searchsorted(ends, chosen, side="right")
    starts = (chosen - (ends - counts)[owners]) * PATCH_HOP
    patches = np.empty((len(chosen), PATCH_FRAMES * mels[0].shape[1]), np.float32)
    for n, (owner, start) in enumerate(zip(owners, starts, strict=True)):
        patches[n] = mels[owner][start : start + PATCH_FRAMES].ravel()
    return patches


@dataclass(frozen=True)
class PatchSpace:
    """Principal components of the patches of a training set."""

    mean: np.ndarray  # (D,)
    components: np.ndarray  # (D, C)

    @classmethod
    def fit(cls, patches: np.ndarray) -> PatchSpace:
        """Fit on (N, D) patches: at most 48 components, no scaling."""
        mean = patches.mean(0)
        centred = patches - mean
        size = patches.shape[1]
        _, vectors = scipy.linalg.eigh(
            centred.T @ centred, subset_by_index=(max(0, size - PATCH_COMPONENTS), size - 1)
        )
        return cls(mean, vectors[:, ::-1])

    def project(self, patches: np.ndarray) -> np.ndarray:
        """(N, D) -> (N, C) float64."""
        return ((patches - self.mean) @ self.components).astype(np.float64)


def frechet_distance(a: np.ndarray, b: np.ndarray) -> float:
    """Squared Frechet distance of two Gaussians fitted to (N, C) and (N', C) points.

    |m - m'|^2 + tr(S + S' - 2 (S S')^(1/2)), the root by way of the symmetric S^(1/2) S' S^(1/2).
    """
    mean = a.mean(0) - b.mean(0)
    cov_a, cov_b = np.cov(a, rowvar=False), np.cov(b, rowvar=False)
    values, vectors = np.linalg.eigh(cov_a)
    root = (vectors * np.sqrt(values.clip(0))) @ vectors.T
    cross = np.sqrt(np.linalg.eigvalsh(root @ cov_b @ root).clip(0)).sum()
    return float(mean @ mean + np.trace(cov_a) + np.trace(cov_b) - 2 * cross)


def mean_frechet_distance(
    a: np.ndarray, b: np.ndarray, number: int, rng: np.random.Generator
) -> float:
    """Frechet distance of `number` points of each of two sets, averaged over 16 random choices.

    Few points make it too large, so only distances with the same `number` can be compared.
    """

    def some(points: np.ndarray) -> np.ndarray:
        return points[rng.permutation(len(points))[:number]]

    return float(np.mean([frechet_distance(some(a), some(b)) for _ in range(PATCH_DRAWS)]))
