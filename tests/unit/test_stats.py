"""Statistics against numpy over all frames at once."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from audiovae.config import FeatureConfig
from audiovae.data.stats import Stats
from audiovae.errors import DataDirError, FeatureMismatchError

FEATURE = FeatureConfig(n_mels=6)


def parts() -> list[np.ndarray]:
    rng = np.random.default_rng(1)
    offset = np.array([-11.0, -5, 0, 3, 100, 1e4])  # large means: a naive sum of squares fails
    return [(offset + rng.standard_normal((n, 6))).astype(np.float32) for n in (1, 4, 50, 700)]


def test_merged_equals_all_frames_at_once_in_any_order() -> None:
    everything = np.concatenate(parts()).astype(np.float64)
    for order in (parts(), parts()[::-1]):
        total = Stats.of(order[0], FEATURE)
        for mel in order[1:]:
            total = total.merge(Stats.of(mel, FEATURE))
        assert total.num_frames == len(everything)
        np.testing.assert_allclose(total.mean, everything.mean(0), rtol=1e-12)
        np.testing.assert_allclose(total.std, everything.std(0), rtol=1e-9)
        assert total.scale == pytest.approx(np.sqrt(everything.var(0).mean()), rel=1e-9)


def test_saved_is_loaded_to_the_last_digit(tmp_path: Path) -> None:
    stats = Stats.of(parts()[-1], FEATURE)
    stats.save(tmp_path / "stats.json")
    back = Stats.load(tmp_path / "stats.json")
    assert (back.feature, back.num_frames, back.scale) == (FEATURE, 700, stats.scale)
    np.testing.assert_array_equal(back.mean, stats.mean)
    np.testing.assert_array_equal(back.std, stats.std)


def test_statistics_of_other_features_do_not_merge() -> None:
    other = FeatureConfig(n_mels=6, hop_length=512)
    mel = parts()[-1]
    with pytest.raises(FeatureMismatchError, match="hop_length"):
        Stats.of(mel, FEATURE).merge(Stats.of(mel, other))


@pytest.mark.parametrize(
    ("field", "value"),
    [("mean", [0.0]), ("std", [-1.0] * 6), ("mean", [float("nan")] * 6), ("scale", 0),
     ("num_frames", 0), ("feature", None), ("mean", None)],
)  # fmt: skip
def test_wrong_values_are_refused(tmp_path: Path, field: str, value: object) -> None:
    path = tmp_path / "stats.json"
    Stats.of(parts()[-1], FEATURE).save(path)
    path.write_text(json.dumps({**json.loads(path.read_text()), field: value}))
    with pytest.raises(DataDirError, match=r"stats\.json"):
        Stats.load(path)


def test_a_missing_file_names_the_command(tmp_path: Path) -> None:
    with pytest.raises(DataDirError, match="run audiovae stats"):
        Stats.load(tmp_path / "stats.json")
