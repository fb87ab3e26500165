"""What changes while training goes on, as plain functions of the step or of the progress."""

from __future__ import annotations

import math

from audiovae.config import TrainConfig


def kl_weight(step: int, warmup_steps: int) -> float:
    """Linear KL warm-up: 0 at step 0, 1 from warmup_steps on."""
    return 1.0 if warmup_steps == 0 else min(1.0, step / warmup_steps)


def learning_rate(step: int, progress: float, config: TrainConfig) -> float:
    """Linear warm-up over steps, cosine to final_learning_rate over progress in [0, 1]."""
    rise = 1.0 if config.warmup_steps == 0 else min(1.0, (step + 1) / config.warmup_steps)
    cosine = 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))
    span = config.learning_rate - config.final_learning_rate
    return rise * (config.final_learning_rate + span * cosine)


def progress(step: int, seconds: float, config: TrainConfig) -> float:
    """Share of the training that is done: of the steps, or of max_minutes if that is further on."""
    done = step / config.steps
    if config.max_minutes is not None:
        done = max(done, seconds / (60 * config.max_minutes))
    return min(1.0, done)
