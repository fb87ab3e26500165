"""The feature archive: interchange with Kaldi's format, and damage."""

from __future__ import annotations

import pickle
from pathlib import Path

import kaldiio
import numpy as np
import pytest

from audiovae.config import FeatureConfig
from audiovae.data.archive import FeatureArchive, write_feature_json, write_matrices
from audiovae.data.kaldi_dir import write_table
from audiovae.errors import DataDirError

FEATURE = FeatureConfig(n_mels=5)


def mels() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        utt_id: rng.standard_normal((frames, 5)).astype(np.float32)
        for utt_id, frames in (("a", 3), ("b", 7), ("ü", 1))
    }


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    folder = tmp_path / "dump dir"
    folder.mkdir()
    with (folder / "feats.ark").open("wb") as file:
        offsets = write_matrices(file, mels().items())
    write_table(folder / "feats.scp", {k: f"feats.ark:{v}" for k, v in offsets.items()})
    write_table(folder / "utt2num_frames", {k: str(len(v)) for k, v in mels().items()})
    write_table(folder / "utt2spk", dict.fromkeys(mels(), "s"))
    write_table(folder / "text", {"a": "hello"})
    write_feature_json(folder, FEATURE)
    return folder


def test_reads_what_was_written(dump: Path) -> None:
    archive = pickle.loads(pickle.dumps(FeatureArchive(dump)))  # noqa: S301 (our own object)
    assert archive.utt_ids == ["a", "b", "ü"] and len(archive) == 3 and "b" in archive
    assert archive.feature == FEATURE
    assert archive.num_frames == {"a": 3, "b": 7, "ü": 1}
    assert archive.text == {"a": "hello"} and archive.utt2spk["b"] == "s"
    for utt_id, mel in mels().items():
        assert archive[utt_id].dtype == np.float32
        np.testing.assert_array_equal(archive[utt_id], mel)


def test_kaldiio_reads_ours_and_we_read_kaldiios(
    dump: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(dump)
    for utt_id, mel in kaldiio.load_scp("feats.scp").items():
        np.testing.assert_array_equal(mel, mels()[utt_id])
    with kaldiio.WriteHelper("ark,scp:feats.ark,feats.scp") as writer:
        for utt_id, mel in mels().items():
            writer(utt_id, mel + 1)
    np.testing.assert_array_equal(FeatureArchive(dump)["b"], mels()["b"] + 1)


def test_the_folder_can_be_moved(dump: Path) -> None:
    moved = dump.rename(dump.with_name("moved"))
    np.testing.assert_array_equal(FeatureArchive(moved)["a"], mels()["a"])


def test_pickles_and_pipes_never_run(dump: Path, tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    (dump / "feats.ark").write_bytes(b"a PKL" + pickle.dumps(Path(canary)))
    with pytest.raises(DataDirError, match="utt_id 'a': found header"):
        FeatureArchive(dump)["a"]
    for value in (
        f"touch {canary} |",
        "../feats.ark:2",
        "/feats.ark:2",
        "feats.ark",
        "feats.ark:-1",
    ):
        write_table(dump / "feats.scp", {"a": value})
        with pytest.raises(DataDirError, match=r"feats\.scp:1: utt_id 'a'"):
            FeatureArchive(dump)
    assert not canary.exists()


def test_damage_names_the_utterance(dump: Path) -> None:
    ark = dump / "feats.ark"
    ark.write_bytes(ark.read_bytes()[:-4])
    archive = FeatureArchive(dump)
    np.testing.assert_array_equal(archive["a"], mels()["a"])
    with pytest.raises(DataDirError, match="utt_id 'ü': found 4 values, wanted 5"):
        archive["ü"]
    with pytest.raises(DataDirError, match="no utt_id 'zz'"):
        archive["zz"]
    ark.unlink()
    with pytest.raises(DataDirError, match="No such file"):
        archive["a"]
    write_table(dump / "utt2num_frames", {"a": "3"})
    with pytest.raises(DataDirError, match="utt_id 'b': no frame count"):
        FeatureArchive(dump)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "did not finish"),
        ("{", "not readable as JSON"),
        ('{"format": 99}', "wanted 'format': 1"),
        ('{"format": 1, "feature": {"hop_lenght": 1}}', "did you mean 'hop_length'"),
    ],
)
def test_feature_json_that_cannot_be_used(dump: Path, content: str | None, message: str) -> None:
    (dump / "feature.json").unlink()
    if content is not None:
        (dump / "feature.json").write_text(content)
    with pytest.raises(DataDirError, match=message):
        FeatureArchive(dump)
