"""Extraction: nothing lost, the same bytes always, resumable, and the audio of the features."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import librosa
import numpy as np
import pytest
import soundfile
import typer
from threadpoolctl import threadpool_limits
from typer.testing import CliRunner

from audiovae.cli import data as cli_data
from audiovae.config import Config, DataConfig
from audiovae.data import extract as extract_module
from audiovae.data.archive import FeatureArchive
from audiovae.data.extract import extract
from audiovae.data.kaldi_dir import DataDir, Segment
from audiovae.data.stats import Stats
from audiovae.errors import DataDirError
from audiovae.features import log_mel

CONFIG = Config(data=DataConfig(trim_db=30.0, min_seconds=0.3, max_seconds=1.5))


def burst(seconds: float, rate: int = 16000, seed: int = 0) -> np.ndarray:
    """Near silence, noise, near silence: 0.2 s + seconds + 0.3 s."""
    rng = np.random.default_rng(seed)
    loud = np.ones(int(seconds * rate))
    envelope = np.concatenate([np.zeros(rate // 5), loud, np.zeros(3 * rate // 10)])
    return ((0.1 * envelope + 1e-4) * rng.standard_normal(len(envelope))).astype(np.float32)


@pytest.fixture
def corpus(tmp_path: Path) -> DataDir:
    """Seven good utterances in files and a segment, and three that must be skipped."""
    wav, folder = {}, tmp_path / "my audio"
    folder.mkdir()
    for i in range(6):
        wav[f"u{i}"] = str(folder / f"{i}.wav")
        rate = (16000, 22050, 44100)[i % 3]
        soundfile.write(wav[f"u{i}"], burst(0.5 + i / 10, rate, i), rate, subtype="FLOAT")
    for name, seconds in (("short", 0.05), ("long", 2.0), ("two", 2.0)):
        wav[name] = str(folder / f"{name}.wav")
        soundfile.write(wav[name], burst(seconds), 16000)
    wav["gone"] = str(folder / "gone.wav")
    segments = {utt_id: Segment(utt_id, 0.0, None) for utt_id in wav if utt_id != "two"}
    segments["part"] = Segment("two", 0.7, 1.6)
    path = tmp_path / "data"
    DataDir(path, wav, dict.fromkeys(segments, "s"), segments, {"u1": "one"}).write(path)
    return DataDir.read(path)


def test_in_is_out_plus_skipped_each_with_a_reason(corpus: DataDir, tmp_path: Path) -> None:
    seen: list[int] = []
    report = extract(corpus, tmp_path / "dump", CONFIG, on_progress=seen.append)
    assert (report.num_in, report.num_out, sum(seen)) == (10, 7, 10)
    assert set(report.skipped) == {"gone", "long", "short"}
    lines = (tmp_path / "dump/skipped.tsv").read_text().splitlines()
    assert [line.split("\t")[0] for line in lines] == ["gone", "long", "short"]
    assert "No such file" in lines[0] and "too long: 2." in lines[1] and "too short" in lines[2]
    archive = FeatureArchive(tmp_path / "dump")
    assert archive.utt_ids == ["part", "u0", "u1", "u2", "u3", "u4", "u5"]
    assert archive.text == {"u1": "one"}
    assert report.seconds_after < report.seconds_before - 6 * 0.3
    kept = DataDir.read(tmp_path / "dump").wav
    assert sorted(kept) == ["two", "u0", "u1", "u2", "u3", "u4", "u5"]


def test_the_dump_dir_names_the_audio_of_its_features(corpus: DataDir, tmp_path: Path) -> None:
    extract(corpus, tmp_path / "dump", CONFIG)
    archive, data = FeatureArchive(tmp_path / "dump"), DataDir.read(tmp_path / "dump")
    feature = archive.feature
    for utt_id in archive.utt_ids:
        wave = data.wave(utt_id, feature.sample_rate)
        frames = archive.num_frames[utt_id]
        assert len(wave) // feature.hop_length == frames
        with threadpool_limits(1):  # as the workers: more threads round apart
            mel = log_mel(wave[: frames * feature.hop_length], feature)
        np.testing.assert_array_equal(archive[utt_id], mel)


@pytest.mark.parametrize("trim_db", [10.0, 30.0, 50.0, 90.0])
@pytest.mark.parametrize("seconds", [0.01, 0.5, 1.0])
def test_trimming_is_librosas(trim_db: float, seconds: float) -> None:
    for rate in (8000, 16000, 22050):
        wave = burst(seconds, rate)
        frame, hop = round(0.093 * rate), round(0.023 * rate)
        _, span = librosa.effects.trim(wave, top_db=trim_db, frame_length=frame, hop_length=hop)
        assert extract_module._sound_span(wave, rate, trim_db) == tuple(span)


def test_trimming_cuts_the_silence_and_not_the_sound(corpus: DataDir, tmp_path: Path) -> None:
    extract(corpus, tmp_path / "dump", CONFIG)
    segment = DataDir.read(tmp_path / "dump").segments["u1"]
    assert segment.end is not None
    assert 0.05 < segment.start <= 0.2 and 0.8 <= segment.end < 0.95


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_same_bytes_for_any_number_of_jobs(
    corpus: DataDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extract_module, "_SHARD_SIZE", 3)
    extract(corpus, tmp_path / "one", CONFIG, nj=1)
    extract(corpus, tmp_path / "two", CONFIG, nj=2)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


def test_an_interrupted_run_resumes_to_the_same_bytes(
    corpus: DataDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extract_module, "_SHARD_SIZE", 3)
    extract(corpus, tmp_path / "whole", CONFIG)

    calls: list[str] = []
    one = extract_module._extract_one

    def counted(task: Any, config: Config) -> Any:
        calls.append(task.utt_id)
        if len(calls) == 8:
            raise KeyboardInterrupt
        return one(task, config)

    monkeypatch.setattr(extract_module, "_extract_one", counted)
    dump = tmp_path / "dump"
    with pytest.raises(KeyboardInterrupt):
        extract(corpus, dump, CONFIG)
    with pytest.raises(DataDirError, match="did not finish"):
        FeatureArchive(dump)
    extract(corpus, dump, CONFIG)
    assert len(calls) == 8 + 4  # two shards of three were kept
    assert contents(dump) == contents(tmp_path / "whole")

    calls.clear()
    assert extract(corpus, dump, CONFIG).reused
    assert not calls


def test_changes_are_noticed(corpus: DataDir, tmp_path: Path) -> None:
    dump = tmp_path / "dump"
    extract(corpus, dump, CONFIG)
    before = FeatureArchive(dump)["u0"]
    corpus.text["u0"] = "new words"  # no audio to read again
    assert extract(corpus, dump, CONFIG).reused
    assert FeatureArchive(dump).text == {"u0": "new words", "u1": "one"}
    (dump / "stats.json").write_text("of the features so far")
    soundfile.write(corpus.wav["u0"], burst(0.7, seed=9), 16000)
    assert not extract(corpus, dump, CONFIG).reused
    assert not (dump / "stats.json").exists()
    assert FeatureArchive(dump)["u0"].shape != before.shape
    assert not extract(corpus, dump, Config(data=DataConfig(max_seconds=3.0))).reused
    assert "long" in FeatureArchive(dump)


def test_nothing_usable_is_an_error(tmp_path: Path) -> None:
    data = DataDir(tmp_path / "data", {"a": str(tmp_path / "gone.wav")}, {"a": "s"})
    with pytest.raises(DataDirError, match=r"none of 1 utterances .*No such file"):
        extract(data, tmp_path / "dump", CONFIG)
    data.write(tmp_path / "data")
    with pytest.raises(DataDirError, match="is the data dir"):
        extract(data, tmp_path / "data", CONFIG)


def test_nothing_usable_leaves_the_features_there_were(corpus: DataDir, tmp_path: Path) -> None:
    extract(corpus, tmp_path / "dump", CONFIG)
    before = (tmp_path / "dump" / "feats.ark").read_bytes()
    with pytest.raises(DataDirError, match="none of"):
        extract(corpus, tmp_path / "dump", Config(data=DataConfig(min_seconds=30, max_seconds=60)))
    assert (tmp_path / "dump" / "feats.ark").read_bytes() == before


@pytest.fixture
def app() -> Iterator[typer.Typer]:
    app = typer.Typer()
    cli_data.register(app)
    yield app


def test_the_three_verbs(corpus: DataDir, tmp_path: Path, app: typer.Typer) -> None:
    def run(*arguments: str | Path) -> Any:
        return CliRunner().invoke(app, [str(a) for a in arguments])

    bad = run("validate", corpus.path, "--json")
    assert bad.exit_code == 3
    problems = json.loads(bad.stdout)["problems"]
    assert [(Path(p["file"]).name, p["line"]) for p in problems] == [("wav.scp", 1)]
    assert isinstance(run("validate", corpus.path).exception, DataDirError)

    dump = tmp_path / "dump"
    done = run("extract", corpus.path, dump, "--nj", "1", "data.trim_db=30", "data.min_seconds=0.3")
    assert done.exit_code == 0, done.output
    assert FeatureArchive(dump).utt_ids[0] == "long"
    assert run("validate", dump).exit_code == 0
    assert run("stats", dump).exit_code == 0
    stats = Stats.load(dump / "stats.json")
    frames = np.concatenate([FeatureArchive(dump)[u] for u in FeatureArchive(dump).utt_ids])
    np.testing.assert_allclose(stats.mean, frames.mean(0, dtype=np.float64), rtol=1e-9)
    assert stats.num_frames == len(frames)
