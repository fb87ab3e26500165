"""Kaldi data dirs: read, write, and all faults at once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile

from audiovae.data.kaldi_dir import DataDir, Segment, validate
from audiovae.errors import DataDirError


def fill(folder: Path, **files: str | bytes) -> Path:
    """Write files of a data dir; wav_scp is wav.scp."""
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        data = content if isinstance(content, bytes) else content.encode()
        (folder / name.replace("_", ".")).write_bytes(data)
    return folder


def test_written_is_read_back(tmp_path: Path) -> None:
    data = DataDir(
        tmp_path,
        wav={"r1": "/my audio/a b.wav", "r0": "b.flac"},
        utt2spk={"u2": "s1", "u10": "s1", "ü": "s0"},
        segments={
            "u2": Segment("r1", 0.0, 1.25),
            "u10": Segment("r1", 1 / 3, 2.0),
            "ü": Segment("r0", 0.5, None),
        },
        text={"u2": "two words", "u10": ""},
    )
    data.write(tmp_path)
    back = DataDir.read(tmp_path)
    assert back.utt_ids == ["u10", "u2", "ü"]
    assert (back.wav, back.utt2spk, back.text) == (data.wav, data.utt2spk, data.text)
    assert back.segments["ü"] == Segment("r0", 0.5, None)
    assert back.segments["u10"].start == pytest.approx(1 / 3, abs=1e-9)
    lines = (tmp_path / "segments").read_bytes().splitlines()
    assert lines == sorted(lines)  # byte order, as Kaldi's tools want


def test_order_bom_crlf_tabs_and_blank_lines_do_not_matter(tmp_path: Path) -> None:
    fill(
        tmp_path,
        wav_scp=b"\xef\xbb\xbfb\t /x y.wav\r\n\r\na /1.wav",
        utt2spk="a   s\nb\ts\n",
        text="b no\u00a0break\n",
    )
    data = DataDir.read(tmp_path)
    assert data.wav == {"a": "/1.wav", "b": "/x y.wav"}
    assert data.utt2spk == {"a": "s", "b": "s"}
    assert data.text == {"b": "no\u00a0break"}
    assert data.segment("a") == Segment("a", 0.0, None)


def test_all_faults_are_listed_at_once_with_their_lines(tmp_path: Path) -> None:
    fill(
        tmp_path,
        wav_scp="r1 /a.wav\nr1 /b.wav\nr2 cat /c.wav |\nr3\n",
        segments="u1 r1 0 1\nu2 r1 2 1\nu3 none 0 1\nu4 r1 0 x\nu5 r1 0\nu6 r1 0 nan\n",
        utt2spk=b"u1 s\nu3 s t\nghost s\nu\xff s\n",
        text="phantom hello\n",
    )
    with pytest.raises(DataDirError) as raised:
        DataDir.read(tmp_path)
    message = str(raised.value)
    for wanted in (
        "wav.scp:2: 'r1' twice",
        "wav.scp:3: 'r2': a pipe",
        "wav.scp:4: 'r3': one field",
        "segments:2: utt_id 'u2': found 2.0 to 1.0 s",
        "segments:3: utt_id 'u3': recording 'none' is not in wav.scp",
        "segments:4: utt_id 'u4': found times '0 x'",
        "segments:5: utt_id 'u5': 3 fields",
        "segments:6: utt_id 'u6'",
        "utt2spk:2: utt_id 'u3': more than two fields",
        "utt2spk:3: utt_id 'ghost' is not in segments",
        "utt2spk:4: not UTF-8 at byte 1",
        "segments:2: utt_id 'u2' has no speaker",
        "text:1: utt_id 'phantom'",
    ):
        assert wanted in message, message


def test_a_thousand_faults_are_counted_not_listed(tmp_path: Path) -> None:
    wav = "".join(f"u{i} /a.wav\n" for i in range(1000))
    fill(tmp_path, wav_scp=wav, utt2spk="u0 s\n")
    with pytest.raises(DataDirError, match="and 979 more: no speaker") as raised:
        DataDir.read(tmp_path)
    assert len(str(raised.value).splitlines()) == 21


@pytest.mark.parametrize("name", ["wav.scp", "utt2spk"])
def test_missing_and_empty_files(tmp_path: Path, name: str) -> None:
    fill(tmp_path, wav_scp="a /a.wav\n", utt2spk="a s\n")
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(DataDirError, match=f"{name}: empty"):
        DataDir.read(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(DataDirError, match=f"{name}: no such file"):
        DataDir.read(tmp_path)
    with pytest.raises(DataDirError, match="no such data dir"):
        DataDir.read(tmp_path / "nowhere")


def test_validate_opens_audio_and_measures_segments(tmp_path: Path) -> None:
    good = tmp_path / "good one.wav"
    soundfile.write(good, 0.1 * np.random.default_rng(0).standard_normal(16000), 16000)
    (tmp_path / "bad.wav").write_text("no audio here")
    folder = fill(
        tmp_path / "data",
        wav_scp=f"r1 {good}\nr2 {tmp_path / 'bad.wav'}\nr3 {tmp_path / 'gone.wav'}\n",
        segments="u1 r1 0 0.5\nu2 r1 0.5 2\nu3 r2 0 1\nu4 r3 0 1\nu5 r1 0.5 -1\n",
        utt2spk="".join(f"u{i} s\n" for i in range(1, 6)),
    )
    problems = validate(folder)
    assert [(Path(p.file).name, p.line, p.kind) for p in problems] == [
        ("wav.scp", 2, "audio"),
        ("wav.scp", 3, "audio"),
        ("segments", 2, "times"),
    ]
    assert "1.000 s long" in str(problems[2])


def test_wave_of_a_segment(tmp_path: Path) -> None:
    noise = (0.1 * np.random.default_rng(0).standard_normal(16000)).astype(np.float32)
    soundfile.write(tmp_path / "a.wav", noise, 16000, subtype="FLOAT")
    fill(tmp_path, wav_scp=f"r {tmp_path / 'a.wav'}\n", segments="u r 0.25 0.5\n", utt2spk="u s\n")
    data = DataDir.read(tmp_path)
    np.testing.assert_array_equal(data.wave("u", 16000), noise[4000:8000])
    with pytest.raises(DataDirError, match="no utt_id 'r'"):
        data.wave("r", 16000)


def test_no_torch_is_imported() -> None:
    code = (
        "import sys, audiovae.data.kaldi_dir, audiovae.cli.data; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
