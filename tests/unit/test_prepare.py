"""From a folder of audio to data dirs: nothing lost, nothing moved, nothing half written."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import numpy as np
import pytest
import soundfile

from audiovae.data import audio_io, av_audio
from audiovae.data.corpus_report import CorpusReport
from audiovae.data.kaldi_dir import DataDir, validate
from audiovae.data.prepare import prepare
from audiovae.data.split import part_of, shares_that_fill
from audiovae.errors import ConfigError, DataDirError


def tone(rate: int = 8000, seconds: float = 0.5, scale: float = 0.4) -> np.ndarray:
    return (scale * np.sin(np.arange(round(rate * seconds)) * 0.3)).astype(np.float32)


def write(path: Path, wave: np.ndarray | None = None, rate: int = 8000) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, tone(rate) if wave is None else wave, rate)
    return path


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Two speakers of 20 files; sets of all three kinds come of them."""
    for speaker in ("ann", "bob"):
        for number in range(20):
            write(tmp_path / "speech" / speaker / f"{number}.wav")
    return tmp_path / "speech"


def sets(data_dir: Path) -> dict[str, DataDir]:
    return {p: DataDir.read(data_dir / p) for p in ("train", "dev", "test")}


def utterances(data_dir: Path) -> dict[str, str]:
    """utt_id -> set."""
    return {u: part for part, data in sets(data_dir).items() for u in data.utt_ids}


def texts(data_dir: Path) -> dict[str, str]:
    return {u: t for data in sets(data_dir).values() for u, t in data.text.items()}


def run(folder: Path, data_dir: Path, **options: object) -> CorpusReport:
    """prepare() with large shares, for folders of few files."""
    return prepare(folder, data_dir, **{"test": 200, "dev": 200} | options)  # type: ignore[arg-type]


def test_a_folder_becomes_three_sound_data_dirs(corpus: Path, tmp_path: Path) -> None:
    report = run(corpus, tmp_path / "data")
    parts = sets(tmp_path / "data")
    assert [validate(tmp_path / "data" / part) for part in parts] == [[], [], []]
    everything = utterances(tmp_path / "data")
    assert len(everything) == report.num_in == 40
    assert {u.partition("-")[0] for u in everything} == {"ann", "bob"}
    for part, data in parts.items():
        for utt_id in data.utt_ids:
            assert data.utt2spk[utt_id] == utt_id.partition("-")[0]
            assert part == part_of(utt_id, test=200, dev=200)
            assert Path(data.wav[utt_id]).is_absolute()
        lines = (tmp_path / "data" / part / "utt2spk").read_bytes().splitlines()
        assert lines == sorted(lines)
        speakers = [line.split()[1] for line in lines]
        assert speakers == sorted(speakers)


def test_report_tells_what_is_in_the_folder(corpus: Path, tmp_path: Path) -> None:
    write(corpus / "ann" / "loud.wav", tone(scale=3.0).clip(-1, 1))
    write(corpus / "ann" / "stereo.flac", np.stack([tone(16000)] * 2, 1), 16000)
    (corpus / "README").write_text("about")
    run(corpus, tmp_path / "data")
    report = json.loads((tmp_path / "data" / "prepare.json").read_text("utf-8"))
    assert report["num_in"] == report["num_out"] == 42 and report["num_skipped"] == 0
    assert report["seconds"] == pytest.approx(21.0)
    assert report["speakers"]["ann"]["seconds"] == pytest.approx(11.0)
    assert sum(part["utterances"] for part in report["sets"].values()) == 42
    assert report["sample_rates"] == {"8000": 41, "16000": 1}
    assert report["channels"] == {"1": 41, "2": 1}
    assert report["suffixes"] == {".wav": 41, ".flac": 1}
    assert report["peak"]["utt_id"] == "ann-ann_loud" and report["peak"]["value"] > 0.999
    assert list(report["clipped"]) == ["ann-ann_loud"]
    assert report["other_files"] == {"": 1}


def test_what_cannot_be_used_is_named_with_its_reason(corpus: Path, tmp_path: Path) -> None:
    (corpus / "empty.wav").touch()
    (corpus / "junk.mp3").write_bytes(b"no audio" * 100)
    (corpus / "other.wma").write_bytes(b"1")
    write(corpus / "short.wav", tone(seconds=0.1))
    write(corpus / "silent.wav", tone(scale=0.0))
    cut = write(corpus / "cut.wav")
    cut.write_bytes(cut.read_bytes()[:2000])
    os.mkfifo(corpus / "fifo.wav")
    (corpus / "device.wav").symlink_to("/dev/zero")
    (corpus / "broken.wav").symlink_to("nowhere.wav")
    (corpus / "line\nbreak.wav").write_bytes(b"RIFF")
    Path(os.fsdecode(os.fsencode(corpus) + b"/latin\xe9.wav")).write_bytes(b"RIFF")
    report = run(corpus, tmp_path / "data")
    lines = (tmp_path / "data" / "skipped.tsv").read_text("utf-8").splitlines()
    skipped = dict(line.split("\t") for line in lines)
    wanted = {
        "empty.wav": "0 bytes",
        "junk.mp3": "not readable as audio",
        "other.wma": "ffmpeg",
        "short.wav": "too short: 0.10 s, wanted at least 0.35 s",
        "silent.wav": "silent",
        "cut.wav": "truncated",
        "fifo.wav": "not a regular file",
        "device.wav": "not a regular file",
        "broken.wav": "broken link",
        "line\\nbreak.wav": "line break",
        "latin\\xe9.wav": "not UTF-8",
    }
    assert skipped.keys() == wanted.keys()
    assert all(reason in skipped[file] for file, reason in wanted.items())
    assert report.num_in == 40 + len(wanted) == len(report.utterances) + len(report.skipped)
    assert report.as_json()["silent"] == ["silent.wav"]


def test_each_file_is_taken_once_and_loops_end(corpus: Path, tmp_path: Path) -> None:
    (corpus / "ann" / "up").symlink_to("..")
    (corpus / "ann" / "out").symlink_to(tmp_path)
    (corpus / "alias").symlink_to("ann")
    (corpus / "again.wav").symlink_to(corpus / "bob" / "3.wav")
    (corpus / "round.wav").symlink_to("round.wav")
    write(tmp_path / "elsewhere" / "x.wav")
    (corpus / "cyd").symlink_to(tmp_path / "elsewhere")
    report = run(corpus, tmp_path / "data")
    assert "cyd-cyd_x" in report.utterances and len(report.utterances) == 41
    assert report.skipped.keys() == {"ann/up", "ann/out", "alias", "again.wav", "round.wav"}
    assert report.skipped["alias"] == "duplicate: the same as 'ann'"


def test_more_files_move_nothing(corpus: Path, tmp_path: Path) -> None:
    run(corpus, tmp_path / "before")
    for number in range(20, 40):
        write(corpus / "ann" / f"{number}.wav")
    run(corpus, tmp_path / "after", nj=2)
    before, after = utterances(tmp_path / "before"), utterances(tmp_path / "after")
    assert len(after) == 60 and before.items() <= after.items()


def test_the_same_bytes_for_any_number_of_jobs(corpus: Path, tmp_path: Path) -> None:
    run(corpus, tmp_path / "one")
    run(corpus, tmp_path / "two", nj=2)
    for path in (tmp_path / "one").rglob("*.*"):
        assert (
            path.read_bytes()
            == (tmp_path / "two" / path.relative_to(tmp_path / "one")).read_bytes()
        )


def test_a_speaker_is_in_one_set_if_wanted(tmp_path: Path) -> None:
    for speaker in range(12):
        for number in range(2):
            write(tmp_path / "speech" / f"s{speaker}" / f"{number}.wav")
    run(tmp_path / "speech", tmp_path / "data", split="speaker", test=300, dev=300)
    speakers = [set(data.utt2spk.values()) for data in sets(tmp_path / "data").values()]
    assert len(set.union(*speakers)) == sum(map(len, speakers)) == 12


@pytest.mark.parametrize(
    ("regex", "speaker"),
    [
        (None, "x_y"),
        (r"^([^/]+)/", "x"),
        (r"(?P<speaker>p\d+)_(mic\d)", "p7"),
    ],
)
def test_speaker_of_a_path(regex: str | None, speaker: str, tmp_path: Path) -> None:
    for number in range(12):
        write(tmp_path / "speech" / "x" / "y" / f"p7_mic1 {number}.wav")
    report = run(tmp_path / "speech", tmp_path / "data", speaker_regex=regex, test=0, dev=0)
    assert {u.speaker for u in report.utterances.values()} == {speaker}
    assert f"{speaker}-x_y_p7_mic1_3" in report.utterances


def test_files_in_the_folder_itself_are_of_one_speaker(tmp_path: Path) -> None:
    write(tmp_path / "my-voice" / "a.wav")
    report = run(tmp_path / "my-voice", tmp_path / "data", test=0, dev=0)
    assert list(report.utterances) == ["my_voice-a"]
    assert sorted(path.name for path in (tmp_path / "data").iterdir()) == [
        "prepare.json", "skipped.tsv", "train",
    ]  # fmt: skip


def test_transcripts_of_ljspeech(corpus: Path, tmp_path: Path) -> None:
    lines = ["0|Dr. One|Doctor One", "wavs/1.wav|only one text", "2|raw|", "99|nobody says it", ""]
    for number in range(20):
        (corpus / "bob" / f"{number}.wav").unlink()
    (corpus / "ann" / "metadata.csv").write_text("\n".join(lines).replace("wavs/", ""), "utf-8")
    report = run(corpus, tmp_path / "data")
    assert texts(tmp_path / "data") == {
        "ann-ann_0": "Doctor One",
        "ann-ann_1": "only one text",
        "ann-ann_2": "raw",
    }
    assert len(report.text_unmatched) == 1
    assert report.text_unmatched[0].endswith("metadata.csv:4: 99")


def test_transcripts_of_kaldi(corpus: Path, tmp_path: Path) -> None:
    (corpus / "text").write_text("ann-ann_0 by id\nbob/1  by   path\n", "utf-8")
    run(corpus, tmp_path / "data")
    assert texts(tmp_path / "data") == {"ann-ann_0": "by id", "bob-bob_1": "by path"}


def test_transcripts_beside_the_audio(corpus: Path, tmp_path: Path) -> None:
    (corpus / "ann" / "0.txt").write_bytes(b"\xef\xbb\xbftwo\r\nlines\r\n")
    (corpus / "bob" / "0.txt").write_text(" \n", "utf-8")
    run(corpus, tmp_path / "data")
    assert texts(tmp_path / "data") == {"ann-ann_0": "two lines"}


def test_a_named_table_comes_before_what_lies_there(corpus: Path, tmp_path: Path) -> None:
    (corpus / "ann" / "0.txt").write_text("beside", "utf-8")
    (tmp_path / "words.csv").write_text("ann/0|named\n", "utf-8")
    run(corpus, tmp_path / "data", text=tmp_path / "words.csv")
    assert texts(tmp_path / "data") == {"ann-ann_0": "named"}


def test_all_problems_at_once_and_nothing_written(corpus: Path, tmp_path: Path) -> None:
    write(corpus / "ann" / "0.flac")
    write(corpus / "ann" / "a b.wav")
    write(corpus / "ann" / "a_b.wav")
    write(corpus / "x y" / "1.wav")
    write(corpus / "x_y" / "2.wav")
    (corpus / "ann" / "1.txt").write_bytes(b"\xff\xfe")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(DataDirError) as error:
        run(corpus, tmp_path / "data")
    said = str(error.value)
    assert re.search(r"ann/0\.wav: .*'ann-ann_0' as .*ann/0\.flac", said)
    assert re.search(r"ann/a_b\.wav: .*'ann-ann_a_b' as .*ann/a b\.wav", said)
    assert "'x y' and 'x_y' both give 'x_y'" in said
    assert "1.txt:0" not in said and re.search(r"1\.txt: not UTF-8", said)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("just words\n", "metadata.csv:1: 1 fields"),
        ("0|a\n1|b\n0|c\n", "metadata.csv:3: '0' twice"),
        ("0|words\n", "metadata.csv:1: '0' fits two files, ann/0.wav and bob/0.wav"),
    ],
)
def test_faults_of_a_table_are_named(table: str, said: str, corpus: Path, tmp_path: Path) -> None:
    (corpus / "metadata.csv").write_text(table, "utf-8")
    with pytest.raises(DataDirError, match=re.escape(said)):
        run(corpus, tmp_path / "data")


def test_two_tables_and_a_missing_one_are_refused(corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(DataDirError, match=r"none\.csv: not readable: No such file"):
        run(corpus, tmp_path / "data", text=tmp_path / "none.csv")
    (corpus / "metadata.csv").write_text("ann/0|words\n", "utf-8")
    (corpus / "text").write_text("ann/0 words\n", "utf-8")
    with pytest.raises(DataDirError, match="two tables"):
        run(corpus, tmp_path / "data")


def test_what_is_there_is_not_overwritten(corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "my data").mkdir()
    run(corpus, tmp_path / "my data")  # an empty folder is fine
    with pytest.raises(DataDirError, match=r"not empty; .*: rm -r '.*my data'"):
        run(corpus, tmp_path / "my data")
    for data_dir in (corpus, tmp_path):  # never the advice to remove the audio
        with pytest.raises(DataDirError, match="the audio is in it; name another folder"):
            run(corpus, data_dir)


def test_a_failed_write_leaves_nothing(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, text: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("audiovae.data.prepare.write_text", full)
    with pytest.raises(OSError, match="No space"):
        run(corpus, tmp_path / "data")
    assert [path.name for path in tmp_path.iterdir()] == ["speech"]


def test_nothing_to_use_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "speech").mkdir()
    (tmp_path / "speech" / "notes.txt").touch()
    with pytest.raises(DataDirError, match=r"no audio in it \(found: 1 \.txt\)"):
        run(tmp_path / "speech", tmp_path / "data")
    write(tmp_path / "speech" / "a.wav", tone(scale=0.0))
    with pytest.raises(DataDirError, match=r"none of 1 audio files .*a\.wav: silent"):
        run(tmp_path / "speech", tmp_path / "data")


def test_an_empty_set_is_refused_with_shares_that_work(tmp_path: Path) -> None:
    for number in range(4):
        write(tmp_path / "speech" / f"{number}.wav")
    with pytest.raises(DataDirError, match="would be empty") as error:
        prepare(tmp_path / "speech", tmp_path / "data", test=1, dev=1)
    found = re.search(r"--test (\d+) --dev (\d+)$", str(error.value))
    assert found
    prepare(tmp_path / "speech", tmp_path / "data", test=int(found[1]), dev=int(found[2]))
    assert all(data.utt_ids for data in sets(tmp_path / "data").values())


def test_two_speakers_are_too_few_for_three_sets(corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(DataDirError, match=r"2 speakers split by hash .* --split utterance"):
        run(corpus, tmp_path / "data", split="speaker")


def test_shares_that_fill_do_so_for_any_keys() -> None:
    rng = np.random.default_rng(1)
    for _ in range(200):
        keys = [str(number) for number in rng.integers(0, 10_000, rng.integers(3, 30))]
        shares = shares_that_fill(keys, test=80, dev=40)
        if shares:
            parts = {part_of(key, test=shares[0], dev=shares[1]) for key in keys}
            assert parts == {"train", "dev", "test"}
    assert shares_that_fill(["a", "b", "a"], test=80, dev=40) is None
    without_test = shares_that_fill(["a", "b"], test=0, dev=1)
    assert without_test and without_test[0] == 0


@pytest.mark.parametrize(
    "options",
    [
        {"speaker_regex": "("},
        {"speaker_regex": "p[0-9]+"},
        {"speaker_regex": "(a)(b)"},
        {"test": -1},
        {"test": 600, "dev": 400},
    ],
    ids=str,
)
def test_options_without_sense_are_refused(options: dict[str, object], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="found"):
        run(tmp_path, tmp_path / "data", **options)


def test_a_path_the_regex_does_not_fit_is_named(corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(DataDirError, match=r"bob/0\.wav: --speaker_regex finds no speaker"):
        run(corpus, tmp_path / "data", speaker_regex="(ann)/")


def test_aac_is_read_and_without_pyav_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    av = pytest.importorskip("av")
    for suffix, form in ((".m4a", "mp4"), (".aac", "adts")):
        (tmp_path / "speech").mkdir(exist_ok=True)
        path = tmp_path / "speech" / f"tone{suffix[1:]}{suffix}"
        with av.open(str(path), "w", format=form) as container:
            stream = container.add_stream("aac", rate=22050, layout="mono")
            frame = av.AudioFrame.from_ndarray(tone(22050, 2.0)[None], format="fltp", layout="mono")
            frame.sample_rate = 22050
            container.mux([*stream.encode(frame), *stream.encode(None)])
        wave, rate = audio_io.decode(path)
        part, _ = audio_io.decode(path, start=0.5, end=1.0)
        assert rate == 22050 and abs(len(wave) - 44100) < 0.1 * rate
        assert np.sqrt(np.mean(part**2)) == pytest.approx(0.4 / np.sqrt(2), rel=0.05)
        np.testing.assert_array_equal(part, wave[11025:22050])
    report = run(tmp_path / "speech", tmp_path / "data", test=0, dev=0)
    assert set(report.count("suffix")) == {".m4a", ".aac"} and not report.skipped
    monkeypatch.setattr(av_audio, "is_installed", lambda: False)
    with pytest.raises(
        DataDirError, match=r"2 files need PyAV .*pip install 'audiovae\[formats\]'"
    ):
        run(tmp_path / "speech", tmp_path / "other", test=0, dev=0)
