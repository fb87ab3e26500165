"""Decoding, the audio gate, resampling and writing."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import numpy as np
import pytest
import soundfile
import soxr

from audiovae.data import audio_io
from audiovae.errors import DataDirError


def tone(rate: int, seconds: float = 1.0, hz: float = 440.0) -> np.ndarray:
    return (0.4 * np.sin(2 * np.pi * hz * np.arange(int(rate * seconds)) / rate)).astype(np.float32)


@pytest.mark.parametrize("subtype", ["PCM_16", "PCM_24", "FLOAT"])
def test_read_equals_soundfile_then_soxr(tmp_path: Path, subtype: str) -> None:
    path = tmp_path / "with space.wav"
    soundfile.write(path, tone(16000), 16000, subtype=subtype)
    wave = audio_io.read_audio(path, sample_rate=22050)
    reference = soxr.resample(soundfile.read(path, dtype="float32")[0], 16000, 22050)
    assert wave.dtype == np.float32 and len(wave) == 22050
    np.testing.assert_allclose(wave, reference, atol=1e-6)


def test_a_resampled_tone_keeps_its_frequency(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.flac", tone(48000, hz=1000.0), 48000)
    wave = audio_io.read_audio(tmp_path / "a.flac", sample_rate=16000)
    np.testing.assert_allclose(wave[500:-500], tone(16000, hz=1000.0)[500:-500], atol=2e-4)


def test_a_part_is_exactly_the_samples_of_the_whole(tmp_path: Path) -> None:
    for name in ("a.wav", "a.flac"):
        soundfile.write(tmp_path / name, tone(16000, 2.0), 16000)
        whole, _ = audio_io.decode(tmp_path / name)
        part, rate = audio_io.decode(tmp_path / name, start=0.5, end=1.25)
        assert rate == 16000
        np.testing.assert_array_equal(part, whole[8000:20000])


def test_stereo_is_mixed_down(tmp_path: Path) -> None:
    left, right = tone(16000), tone(16000, hz=200.0)
    soundfile.write(tmp_path / "a.wav", np.stack([left, right], 1), 16000, subtype="FLOAT")
    wave, _ = audio_io.decode(tmp_path / "a.wav")
    np.testing.assert_allclose(wave, (left + right) / 2, atol=1e-7)


def test_g722_decodes_and_its_parts_agree(tmp_path: Path) -> None:
    av = pytest.importorskip("av")
    path = tmp_path / "a.g722"
    with av.open(str(path), "w", format="g722") as container:
        stream = container.add_stream("g722", rate=16000, layout="mono")
        samples = (tone(16000, 2.0) * 32767).astype(np.int16)[None]
        frame = av.AudioFrame.from_ndarray(samples, format="s16", layout="mono")
        frame.sample_rate = 16000
        for packet in [*stream.encode(frame), *stream.encode(None)]:
            container.mux(packet)
    whole, rate = audio_io.decode(path)
    assert rate == 16000 and len(whole) == 2 * path.stat().st_size == 32000
    assert audio_io.probe(path).num_samples == len(whole)
    delay = 22  # samples of the two quadrature mirror filters
    np.testing.assert_allclose(whole[2000:30000], tone(16000, 2.0)[2000 - delay : 30000 - delay],
                               atol=0.03)  # fmt: skip
    part, _ = audio_io.decode(path, start=0.5, end=1.0)
    np.testing.assert_array_equal(part, whole[8000:16000])


def _broken(tmp_path: Path, kind: str) -> Path:
    path = tmp_path / f"{kind}.wav"
    wave = tone(16000)
    if kind == "empty file":
        path.touch()
    elif kind == "not readable":
        path.write_bytes(b"<html>not found</html>" * 10)
    elif kind == "truncated":
        soundfile.write(path, wave, 16000)
        path.write_bytes(path.read_bytes()[:-5000])
    elif kind == "NaN":
        wave[7] = np.nan
        soundfile.write(path, wave, 16000, subtype="FLOAT")
    elif kind == "silent":
        soundfile.write(path, wave * 0, 16000)
    elif kind == "peak":
        soundfile.write(path, wave * 1e4, 16000, subtype="FLOAT")
    elif kind == "not a regular file":
        os.mkfifo(path)
    elif kind == "No such file":
        pass
    elif kind == "wanted 1000 to 384000 Hz":
        soundfile.write(path, wave, 500)
    return path


@pytest.mark.parametrize(
    "kind",
    ["empty file", "not readable", "truncated", "NaN", "silent", "peak", "not a regular file",
     "No such file", "wanted 1000 to 384000 Hz"],
)  # fmt: skip
def test_audio_that_cannot_be_used_says_why(tmp_path: Path, kind: str) -> None:
    path = _broken(tmp_path, kind)
    with pytest.raises(DataDirError, match=kind) as raised:
        audio_io.read_audio(path, sample_rate=16000)
    assert str(path) in str(raised.value)


def test_a_truncated_flac_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.flac"
    noise = 0.1 * np.random.default_rng(0).standard_normal(32000)
    soundfile.write(path, noise, 16000)
    path.write_bytes(path.read_bytes()[:20000])
    with pytest.raises(DataDirError):
        audio_io.decode(path)


def test_a_streamed_header_is_read_by_its_real_size(tmp_path: Path) -> None:
    path = tmp_path / "a.wav"
    soundfile.write(path, tone(16000), 16000)
    data = bytearray(path.read_bytes())
    at = data.index(b"data") + 4
    data[at : at + 4] = struct.pack("<I", 0xFFFFFFFF)
    data[4:8] = struct.pack("<I", 0xFFFFFFFF)
    path.write_bytes(data)
    assert len(audio_io.decode(path)[0]) == 16000


def test_a_part_beyond_the_end_is_an_error_past_the_tolerance(tmp_path: Path) -> None:
    path = tmp_path / "a.wav"
    soundfile.write(path, tone(16000), 16000)
    assert len(audio_io.decode(path, start=0.5, end=1.05)[0]) == 8000
    for start, end in ((0.5, 1.2), (1.0, None), (0.5, 0.5)):
        with pytest.raises(DataDirError, match=r"1\.000 s long"):
            audio_io.decode(path, start=start, end=end)


def test_write_wav_round_trips_and_counts_clipped_samples(tmp_path: Path) -> None:
    wave = np.append(tone(22050), [1.5, -1.5, 1.0, -1.0]).astype(np.float32)
    assert audio_io.write_wav(tmp_path / "a.wav", wave, 22050) == 2
    back, rate = audio_io.decode(tmp_path / "a.wav")
    assert rate == 22050
    np.testing.assert_allclose(back, np.clip(wave, -1, 32767 / 32768), atol=0.5 / 32768 + 1e-9)
    audio_io.write_wav(tmp_path / "again.wav", back, rate)
    assert (tmp_path / "a.wav").read_bytes() == (tmp_path / "again.wav").read_bytes()

    assert audio_io.write_wav(tmp_path / "f.wav", wave, 22050, float32=True) == 2
    np.testing.assert_array_equal(audio_io.decode(tmp_path / "f.wav")[0], wave)


def test_write_wav_refuses_nan_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(DataDirError, match="NaN"):
        audio_io.write_wav(tmp_path / "a.wav", np.array([0.0, np.nan]), 22050)
    assert not list(tmp_path.iterdir())
