"""The whole evaluation on a tiny model and synthetic voices: files, names, seeds."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from audiovae.analysis import evaluation, figures, listening, quality, report
from audiovae.analysis.evaluation import evaluate
from audiovae.config import Config, FeatureConfig
from audiovae.config_file import load_config
from audiovae.data.archive import FeatureArchive
from audiovae.data.audio_io import write_wav
from audiovae.data.batches import length_sorted
from audiovae.data.extract import extract
from audiovae.data.kaldi_dir import DataDir
from audiovae.errors import FeatureMismatchError
from audiovae.models.vae import AudioVAE
from audiovae.synthesis import item_seed
from audiovae.vocoder import GriffinLim

TINY = [
    "encoder.dim=16", "encoder.blocks=1", "encoder.heads=2", "latent.z_dim=4", "latent.u_dim=4",
    "latent.prior_dim=16", "decoder.memory_dim=16", "decoder.prenet_dim=16",
    "decoder.attention_rnn_dim=16", "decoder.decoder_rnn_dim=16", "decoder.attention_dim=8",
]  # fmt: skip


def _data_dir(folder: Path, number: int) -> DataDir:
    """Two synthetic voices, low and high, of different lengths."""
    rng = np.random.default_rng(number)
    data = DataDir(folder, {}, {})
    folder.mkdir(parents=True)
    for n in range(number):
        utt_id, pitch = f"voice{n % 2}-{n:02d}", (110, 240)[n % 2]
        time = np.arange(int(22050 * (0.4 + 0.05 * n))) / 22050
        wave = sum(np.sin(2 * math.pi * pitch * h * time) / h for h in range(1, 12))
        loudness = 0.1 * (1 + np.sin(2 * math.pi * 4 * time + rng.uniform(0, 6)))
        wave = (loudness * wave + 0.001 * rng.standard_normal(len(time))).astype(np.float32)
        write_wav(folder / f"{utt_id}.wav", wave, 22050)
        data.wav[utt_id] = str(folder / f"{utt_id}.wav")
        data.utt2spk[utt_id] = f"voice{n % 2}"
        data.text[utt_id] = "one two three" if n < 6 else "yes"
    data.write(folder)
    return data


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("evaluation dump")
    for name, number in (("train", 12), ("test", 10)):
        extract(_data_dir(root / "data" / name, number), root / name, Config(), nj=1)
    return root


@pytest.fixture(scope="module")
def model(dump: Path) -> AudioVAE:
    torch.manual_seed(0)
    mels = np.concatenate([FeatureArchive(dump / "train")[f"voice{n % 2}-{n:02d}"] for n in (0, 1)])
    return AudioVAE(load_config(None, TINY), mels.mean(0), float(mels.std())).eval()


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "SAMPLES", 6)
    monkeypatch.setattr(evaluation, "EXAMPLES", 1)
    monkeypatch.setattr(figures, "PAIRS", 8)
    monkeypatch.setattr(listening, "PROMPTS", 2)


def _run(model: AudioVAE, dump: Path, out: Path, **options: Any) -> dict[str, Any]:
    test, train = FeatureArchive(dump / "test"), FeatureArchive(dump / "train")
    return evaluate(model, test, train, out, **{"vocoder": None, **options})


def test_evaluation_writes_all_it_promises(model: AudioVAE, dump: Path, tmp_path: Path) -> None:
    out = tmp_path / "eval" / "test"
    made = _run(model, dump, out, vocoder=GriffinLim(FeatureConfig(), iterations=4))
    assert made == json.loads((out / "metrics.json").read_text("utf-8"))
    for name in report.DEFINITIONS:
        assert name in made
    for target in report.TARGETS:
        value = report.look_up(made, target.name)
        assert value is None or math.isfinite(value)
    parts = made["neg_elbo_parts_nats_per_frame"]
    assert sum(parts.values()) == pytest.approx(made["neg_elbo_nats_per_frame"], rel=1e-4)
    assert made["classifier_accuracy"] == 1
    assert made["wer_message"] and made["wer"] == {"natural": None, "copy": None, "model": None}
    # the audio that stands beside the features is the audio they were made of
    assert made["side_by_side"]["natural"]["logmel_l1"] < 0.01
    assert 0.01 < made["copy_synthesis_logmel_l1"] < made["side_by_side"]["model"]["logmel_l1"]
    table = [line.split("\t") for line in (out / "utt.tsv").read_text("utf-8").splitlines()]
    assert len(table) == 1 + 10 and {len(row) for row in table} == {len(table[0])}
    plots = {path.name for path in (out / "plots").iterdir()}
    assert plots == {"z.png", "kl.png", "durations.png", "mel_1.png", "alignment_1.png"}
    assert "recon_logmel_l1" in (out / "report.md").read_text("utf-8")


def test_the_same_seed_gives_the_same_figures(model: AudioVAE, dump: Path, tmp_path: Path) -> None:
    torch.manual_seed(1)
    first = _run(model, dump, tmp_path / "a", limit=4)
    torch.manual_seed(2)
    second = _run(model, dump, tmp_path / "b", limit=4)
    del first["seconds"], second["seconds"]
    assert first == second
    assert first["counts"]["test_utterances"] == 4
    assert first["wer_message"] == "no vocoder was given"


def test_bound_is_the_models(model: AudioVAE, dump: Path) -> None:
    """The parts of each utterance add up to the model's -ELBO."""
    archive = FeatureArchive(dump / "test")
    batches = length_sorted({u: archive[u] for u in archive.utt_ids}, "cpu")
    with torch.no_grad():
        bounds = quality.bounds(model, batches, seed=4)
        torch.manual_seed(item_seed(4, "bound", 0))
        expected = model(batches[0].mel, batches[0].lengths).negative_elbo
    found = [bounds[utt_id].total for utt_id in batches[0].utt_ids]
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_another_mel_contract_is_refused(model: AudioVAE, dump: Path, tmp_path: Path) -> None:
    with pytest.raises(FeatureMismatchError, match="f_max"):
        _run(model, dump, tmp_path, vocoder=GriffinLim(FeatureConfig(f_max=7600.0)))


def test_prompts_are_english_and_long_enough(dump: Path, tmp_path: Path) -> None:
    archive = FeatureArchive(dump / "test")
    nothing_known = listening.choose_prompts(archive, archive.utt_ids, None)
    assert len(nothing_known.utt_ids) == 2 and not nothing_known.references
    assert "utt2lang" in str(nothing_known.message)
    assumed = listening.choose_prompts(archive, archive.utt_ids, None, assume_english=True)
    assert assumed.references == ["one two three"] * 2
    languages = {u: "en-GB" if u.endswith("03") else "it" for u in archive.utt_ids}
    (tmp_path / "utt2lang").write_text("".join(f"{u} {v}\n" for u, v in languages.items()))
    known = listening.choose_prompts(archive, archive.utt_ids, tmp_path)
    assert known.utt_ids == ["voice1-03"]
