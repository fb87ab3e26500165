"""Schedules: plain functions with known values."""

from __future__ import annotations

import math

import pytest

from audiovae.config import TrainConfig
from audiovae.training.schedules import kl_weight, learning_rate, progress


def test_kl_weight_is_linear_then_one() -> None:
    assert [kl_weight(s, 100) for s in (0, 25, 100, 500)] == [0, 0.25, 1, 1]
    assert kl_weight(0, 0) == 1


def test_learning_rate_rises_then_falls_along_a_cosine() -> None:
    config = TrainConfig(learning_rate=1e-3, final_learning_rate=1e-4, warmup_steps=10)
    assert learning_rate(0, 0.0, config) == pytest.approx(1e-4)  # never a step of nothing
    assert learning_rate(9, 0.0, config) == learning_rate(50, 0.0, config) == 1e-3
    assert learning_rate(50, 0.5, config) == pytest.approx((1e-3 + 1e-4) / 2)
    assert learning_rate(50, 1.0, config) == learning_rate(50, 7.0, config) == pytest.approx(1e-4)
    wanted = 1e-4 + 9e-4 * 0.5 * (1 + math.cos(math.pi * 0.3))
    assert learning_rate(50, 0.3, config) == pytest.approx(wanted)
    at_once = TrainConfig(warmup_steps=0)
    assert learning_rate(0, 0.0, at_once) == at_once.learning_rate


def test_progress_is_of_steps_or_of_time_whichever_is_further() -> None:
    by_steps = TrainConfig(steps=100)
    assert [progress(s, 1e9, by_steps) for s in (0, 25, 100, 200)] == [0, 0.25, 1, 1]
    by_time = TrainConfig(steps=100, max_minutes=2.0)
    assert progress(10, 60.0, by_time) == 0.5
    assert progress(80, 60.0, by_time) == 0.8
    assert progress(1, 121.0, by_time) == 1.0
