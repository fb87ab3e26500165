"""Distances against librosa, scipy, scikit-learn, and cases with a known answer."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.linalg
import scipy.spatial.distance

from audiovae.analysis import metrics
from audiovae.analysis.quality import SpeechLikeness
from audiovae.analysis.voices import SHRINKAGE, VoiceClassifier, voice_features


def _naive_path(cost: np.ndarray) -> list[tuple[int, int]]:
    rows, columns = cost.shape
    total = np.full((rows + 1, columns + 1), np.inf)
    total[0, 0] = 0
    for i in range(rows):
        for j in range(columns):
            total[i + 1, j + 1] = cost[i, j] + min(total[i, j], total[i, j + 1], total[i + 1, j])
    i, j = rows - 1, columns - 1
    path = [(i, j)]
    while (i, j) != (0, 0):
        options = [(total[i, j], i - 1, j - 1), (total[i, j + 1], i - 1, j)]
        options.append((total[i + 1, j], i, j - 1))
        _, i, j = min(options, key=lambda option: option[0])
        path.append((i, j))
    return path[::-1]


@pytest.mark.parametrize("shape", [(1, 1), (1, 7), (7, 1), (5, 5), (9, 14), (31, 22)])
def test_dtw_path_is_that_of_the_plain_recursion(shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(sum(shape))
    a, b = rng.standard_normal((shape[0], 6)), rng.standard_normal((shape[1], 6))
    i, j = metrics.dtw_path(a, b)
    cost = scipy.spatial.distance.cdist(a, b, "cityblock") / 6
    assert list(zip(i.tolist(), j.tolist(), strict=True)) == _naive_path(cost)


def test_dtw_path_is_librosas() -> None:
    librosa = pytest.importorskip("librosa")
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((40, 8)), rng.standard_normal((53, 8))
    cost = scipy.spatial.distance.cdist(a, b, "cityblock") / 8
    _, path = librosa.sequence.dtw(C=cost)
    np.testing.assert_array_equal(np.stack(metrics.dtw_path(a, b), 1), path[::-1])


def test_a_stretched_mel_is_at_no_distance() -> None:
    mel = np.random.default_rng(0).standard_normal((30, 80)).astype(np.float32)
    distance = metrics.mel_distance(mel, np.repeat(mel, 2, axis=0))
    assert (distance.l1, distance.mcd) == (0, 0)


def test_l1_of_a_constant_offset() -> None:
    mel = np.random.default_rng(0).standard_normal((30, 80)) * 10
    distance = metrics.mel_distance(mel, mel + 0.25)
    assert distance.l1 == pytest.approx(0.25)
    assert distance.mcd == pytest.approx(0, abs=1e-9)  # c0 is left out


@pytest.mark.parametrize("order", [1, 5, 13])
def test_cepstral_distortion_is_the_root_mean_square_level_difference(order: int) -> None:
    """One cosine of amplitude a over the bins differs by a / sqrt(2) nats, in decibels."""
    difference = 0.7 * np.cos(math.pi * order * (np.arange(80) + 0.5) / 80)[None]
    expected = 20 / math.log(10) * 0.7 / math.sqrt(2)
    assert metrics.cepstral_distortion(difference)[0] == pytest.approx(expected)
    assert metrics.cepstral_distortion(difference, power=2.0)[0] == pytest.approx(expected / 2)


def test_cepstral_distortion_leaves_out_fine_structure() -> None:
    difference = np.cos(math.pi * 14 * (np.arange(80) + 0.5) / 80)[None]
    assert metrics.cepstral_distortion(difference)[0] == pytest.approx(0, abs=1e-9)


def test_alignment_error_in_memory_steps() -> None:
    """Two decoder steps per memory step: the diagonal lies at 0, 0.25, 0.75, 1.25, ..."""
    diagonal = np.clip((np.arange(8) + 0.5) * 0.5 - 0.5, 0, 3)
    low = np.floor(diagonal).astype(int)
    weights = np.zeros((8, 4))
    weights[np.arange(8), low] = 1 - (diagonal - low)
    weights[np.arange(8), np.minimum(low + 1, 3)] += diagonal - low
    np.testing.assert_allclose(metrics.alignment_error(weights, 0.5), 0, atol=1e-12)
    late = np.zeros((3, 6))
    late[np.arange(3), np.arange(3) + 2] = 1
    np.testing.assert_allclose(metrics.alignment_error(late, 1.0), 2)


def test_durations() -> None:
    same = metrics.compare_durations([1.0, 2.0, 3.0], [1.0, 2.0, 3.0])
    assert (same.ratio, same.ks) == (1, 0)
    half = metrics.compare_durations([0.5, 1.0, 1.5], [10.0, 20.0, 30.0])
    assert (half.ratio, half.ks) == (pytest.approx(0.05), 1)
    rng = np.random.default_rng(0)
    ratios = [
        metrics.compare_durations(rng.gamma(2, 1, 160), rng.gamma(2, 1, 170)) for _ in range(300)
    ]
    error = np.std([r.ratio for r in ratios])
    assert np.mean([r.ratio_error for r in ratios]) == pytest.approx(error, rel=0.15)


def test_flux() -> None:
    assert metrics.flux(np.arange(5.0)[:, None] * np.ones((1, 3))) == 1
    assert metrics.flux(np.ones((1, 3))) == 0


def test_every_patch_is_drawn_once() -> None:
    rng = np.random.default_rng(0)
    mels = [rng.standard_normal((n, 3)).astype(np.float32) for n in (15, 16, 19, 20, 41)]
    frames = [len(mel) for mel in mels]
    assert metrics.count_patches(frames) == 0 + 1 + 1 + 2 + 7
    drawn = metrics.draw_patches(mels, 100, rng)
    expected = [m[t : t + 16].ravel() for m in mels for t in range(0, len(m) - 15, 4)]
    np.testing.assert_array_equal(drawn, np.array(expected))
    some = metrics.draw_patches(mels, 5, rng)
    assert len(np.unique(some, axis=0)) == 5


def test_patch_space_spans_the_main_components() -> None:
    rng = np.random.default_rng(0)
    points = (rng.standard_normal((400, 60)) * np.geomspace(10, 0.1, 60)).astype(np.float32)
    space = metrics.PatchSpace.fit(points)
    assert space.components.shape == (60, 48)
    _, scales, _ = np.linalg.svd(points - points.mean(0), full_matrices=False)
    np.testing.assert_allclose(
        space.project(points).var(0), scales[:48] ** 2 / len(points), rtol=1e-3
    )


def test_frechet_distance_against_the_matrix_square_root() -> None:
    rng = np.random.default_rng(0)
    a = rng.standard_normal((300, 6)) @ rng.standard_normal((6, 6))
    b = rng.standard_normal((200, 6)) @ rng.standard_normal((6, 6)) + 1
    cov_a, cov_b = np.cov(a.T), np.cov(b.T)
    root = scipy.linalg.sqrtm(cov_a @ cov_b).real
    expected = np.sum((a.mean(0) - b.mean(0)) ** 2) + np.trace(cov_a + cov_b - 2 * root)
    assert metrics.frechet_distance(a, b) == pytest.approx(expected)
    assert metrics.frechet_distance(a, a) == pytest.approx(0, abs=1e-6)


def test_patch_distance_tells_noise_from_speech_like_mels() -> None:
    rng = np.random.default_rng(0)

    def smooth(n: int) -> list[np.ndarray]:
        walks = rng.standard_normal((n, 60, 8)).cumsum(1)
        return [walk.astype(np.float32) for walk in walks]

    train, held_out = smooth(60), smooth(60)
    noise = [rng.standard_normal((60, 8)).astype(np.float32) for _ in range(60)]
    likeness = SpeechLikeness(train, held_out)
    near, far = likeness.compare(smooth(60)), likeness.compare(noise)
    assert near and far and near.patches == far.patches == 60 * 12
    assert 0.5 < near.ratio < 2 and far.ratio > 5
    assert likeness.compare([mel[:15] for mel in noise]) is None


def _voices(rng: np.random.Generator, number: int) -> tuple[list[np.ndarray], list[str]]:
    speakers = [f"speaker{n % 3}" for n in range(number)]
    tilt = np.linspace(-1, 1, 20)
    levels = {f"speaker{k}": 0.4 * (k - 1) * tilt for k in range(3)}
    mels = [
        rng.standard_normal((int(rng.integers(20, 60)), 20)) * 0.5 + levels[speaker]
        for speaker in speakers
    ]
    return mels, speakers


def test_voice_classifier_is_scikit_learns() -> None:
    pytest.importorskip("sklearn")
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

    rng = np.random.default_rng(0)
    mels, speakers = _voices(rng, 120)
    others, _ = _voices(rng, 60)
    mine = VoiceClassifier.fit(mels, speakers)
    theirs = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=SHRINKAGE, priors=[1 / 3] * 3).fit(
        voice_features(mels), speakers
    )
    assert mine.voices == list(theirs.classes_)
    scores = voice_features(others) @ mine.weights.T + mine.bias
    reference = theirs.decision_function(voice_features(others))
    # equal up to what all classes share
    centre = scores - scores.mean(1, keepdims=True)
    np.testing.assert_allclose(centre, reference - reference.mean(1, keepdims=True), atol=1e-6)


def test_voice_classifier_knows_held_out_voices() -> None:
    rng = np.random.default_rng(1)
    classifier = VoiceClassifier.fit(*_voices(rng, 120))
    assert classifier.accuracy(*_voices(rng, 60)) > 0.95
