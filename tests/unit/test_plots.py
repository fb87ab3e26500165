"""Figures: made without pyplot, written by nobody, drawable."""

from __future__ import annotations

import io
import sys

import numpy as np
import pytest
from matplotlib.figure import Figure

from audiovae.analysis import plots
from audiovae.config import FeatureConfig


def _drawn(figure: Figure) -> Figure:
    picture = io.BytesIO()
    figure.savefig(picture, format="png")
    assert picture.getvalue().startswith(b"\x89PNG")
    return figure


def test_mel_pair_shares_time_in_seconds() -> None:
    rng = np.random.default_rng(0)
    feature = FeatureConfig()
    figure = _drawn(plots.mel_pair(rng.normal(size=(50, 80)), rng.normal(size=(64, 80)), feature))
    assert figure.axes[0].get_xlim() == figure.axes[1].get_xlim()
    assert figure.axes[0].get_xlim()[1] == pytest.approx(64 * 256 / 22050)


@pytest.mark.parametrize("shape", [(1, 1), (12, 6)])
def test_alignment(shape: tuple[int, int]) -> None:
    weights = np.full(shape, 1 / shape[1])
    _drawn(plots.alignment(weights, shape[1] / shape[0]))


@pytest.mark.parametrize("n", [1, 2, 30])
def test_latent_scatter(n: int) -> None:
    z = np.random.default_rng(0).normal(size=(n, 5))
    speakers = [f"speaker{k % 3}" for k in range(n)]
    axis = _drawn(plots.latent_scatter(z, speakers)).axes[0]
    assert sum(len(points.get_offsets()) for points in axis.collections) == n


def test_kl_per_dim_and_durations() -> None:
    figure = _drawn(plots.kl_per_dim([0.1, 2.0], [1.0, 0.5, 0.2]))
    assert [bar.get_height() for bar in figure.axes[0].patches] == [2.0, 0.1]
    _drawn(plots.durations([1.0, 2.0], [0.5]))


def test_pyplot_is_not_needed() -> None:
    """pyplot keeps every figure alive and picks a window system."""
    assert "plt" not in vars(plots)
    pyplot = sys.modules.get("matplotlib.pyplot")
    plots.durations([1.0], [2.0])
    assert pyplot is None or not pyplot.get_fignums()
