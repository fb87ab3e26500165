"""Figures of mels, alignments and latents. Each function returns a Figure and writes nothing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from audiovae.config import FeatureConfig


def mel_pair(
    reference: np.ndarray,
    other: np.ndarray,
    feature: FeatureConfig,
    titles: tuple[str, str] = ("original", "reconstruction"),
) -> Figure:
    """Two log-mels (T, M) and (T', M) above each other, with one time axis and one colour scale."""
    figure = Figure(figsize=(8, 5), layout="constrained")
    low, high = np.percentile(reference, 1), reference.max()
    axes = figure.subplots(2, 1, sharex=True)
    for axis, mel, title in zip(axes, (reference, other), titles, strict=True):
        seconds = len(mel) / feature.frame_rate
        image = axis.imshow(
            mel.T, origin="lower", aspect="auto", interpolation="nearest", vmin=low, vmax=high,
            extent=(0, seconds, 0, mel.shape[1]), cmap="magma",
        )  # fmt: skip
        axis.set(title=title, ylabel="mel bin")
    axes[-1].set(xlabel="seconds", xlim=(0, max(len(reference), len(other)) / feature.frame_rate))
    figure.colorbar(image, ax=axes, label="log magnitude, nats")
    return figure


def alignment(weights: np.ndarray, slots_per_step: float, title: str = "alignment") -> Figure:
    """Attention weights (L, K), with the known diagonal dotted."""
    figure = Figure(figsize=(6, 4), layout="constrained")
    axis = figure.subplots()
    image = axis.imshow(
        weights.T, origin="lower", aspect="auto", interpolation="nearest", vmin=0, cmap="viridis"
    )
    steps = np.arange(len(weights))
    diagonal = np.clip((steps + 0.5) * slots_per_step - 0.5, 0, weights.shape[1] - 1)
    axis.plot(steps, diagonal, ":", color="white", linewidth=1)
    axis.set(title=title, xlabel="decoder step", ylabel="memory step")
    figure.colorbar(image, ax=axis, label="weight")
    return figure


def latent_scatter(z: np.ndarray, speakers: Sequence[str]) -> Figure:
    """Posterior means of z (N, Z) on their two main axes, one colour a speaker."""
    figure = Figure(figsize=(6, 5), layout="constrained")
    axis = figure.subplots()
    centred = z - z.mean(0)
    _, scales, directions = np.linalg.svd(centred, full_matrices=False)
    points = centred @ directions[:2].T
    share = scales**2 / max(float((scales**2).sum()), 1e-12)
    labels = np.asarray(speakers)
    for speaker in sorted(set(speakers)):
        rows = points[labels == speaker]
        axis.scatter(rows[:, 0], rows[:, -1], s=14, alpha=0.7, label=speaker)
    axis.set(
        title="z of held-out utterances",
        xlabel=f"first axis, {share[0]:.0%} of the variance",
        ylabel=f"second axis, {share[1]:.0%}" if len(share) > 1 else "",
    )
    if len(set(speakers)) <= 20:
        axis.legend(title="speaker")
    return figure


def kl_per_dim(z: Sequence[float], u: Sequence[float]) -> Figure:
    """Nats in each dimension of z per utterance, and of u per memory step, largest first."""
    figure = Figure(figsize=(8, 3.5), layout="constrained")
    for axis, values, title, unit in zip(
        figure.subplots(1, 2), (z, u), ("z", "u"), ("utterance", "memory step"), strict=True
    ):
        _bars(axis, sorted(values, reverse=True))
        axis.set(title=title, xlabel="dimension, by size", ylabel=f"nats per {unit}")
    return figure


def _bars(axis: Axes, values: Sequence[float]) -> None:
    axis.bar(np.arange(len(values)), values, width=0.9)


def durations(real: Sequence[float], sampled: Sequence[float]) -> Figure:
    """Lengths in seconds of real utterances and of prior samples, as shares of each."""
    figure = Figure(figsize=(6, 4), layout="constrained")
    axis = figure.subplots()
    edges = np.linspace(0, max(*real, *sampled), 31).tolist()
    for seconds, label in ((real, "real"), (sampled, "prior samples")):
        axis.hist(
            seconds, edges, weights=np.full(len(seconds), 1 / len(seconds)), alpha=0.6,
            label=f"{label}: mean {np.mean(seconds):.2f} s, N = {len(seconds)}",
        )  # fmt: skip
    axis.set(title="utterance lengths", xlabel="seconds", ylabel="share of utterances")
    axis.legend()
    return figure
