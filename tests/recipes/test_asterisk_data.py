"""The Asterisk corpus: what is kept, how it is split, and archives that mean harm."""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest
import soundfile

from audiovae.data.kaldi_dir import DataDir, validate

LOCAL = Path(__file__).parents[2] / "egs" / "asterisk" / "local"
PROMPTS = {
    "activated": "Activated.",
    "letters/at": "at [@]",
    "vm-intro": "Please leave your message. (simple tone sound plays)",
    "vm-Work": "work: with a colon",
    "digits/2": "",
    "beep": "",
    "beeperr": "[this is an error beep tone]",
    "laugh": "<a laugh>",
    "silence/1": "(1 second of silence)",
} | {f"digits/{n}": f"number {n}" for n in range(10, 110)}


def tone(seconds: float = 0.5) -> np.ndarray:
    return (8000 * np.sin(np.arange(int(16000 * seconds)) * 0.05)).astype("<i2")


def transcripts() -> str:
    lines = [f"{name.lower()}: {text}" for name, text in PROMPTS.items() if text]
    return "\n".join(["; Core Asterisk Sounds", "", *lines, "no-such-file: words", ""])


def make_prompts(root: Path, names: list[str], suffix: str = ".sln16") -> None:
    for name in names:
        path = root / "en_US_f_Allison" / f"{name}{suffix}"
        path.parent.mkdir(parents=True, exist_ok=True)
        tone().tofile(path)
    (root / "core-sounds-en.txt").write_bytes(b"\xef\xbb\xbf" + transcripts().encode())


def script(name: str, *arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, LOCAL / name, *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120)


def read(folder: Path) -> dict[str, DataDir]:
    return {part: DataDir.read(folder / "data" / part) for part in ("train", "dev", "test")}


def test_prompts_become_data_dirs(tmp_path: Path) -> None:
    make_prompts(tmp_path / "a root", list(PROMPTS))
    done = script("prepare.py", "a root", "en", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "109 files, 105 kept (1 without a transcript)" in done.stderr
    assert "dropped: 1 silence, 3 tones and sounds" in done.stderr
    parts = read(tmp_path)
    assert all(not validate(data.path) for data in parts.values())
    ids = {utt_id for data in parts.values() for utt_id in data.utt_ids}
    assert len(ids) == 105 == sum(len(data.utt_ids) for data in parts.values())
    assert "allison-en-letters_at" in ids
    text = {utt_id: words for data in parts.values() for utt_id, words in data.text.items()}
    assert text["allison-en-letters_at"] == "at"
    assert text["allison-en-vm-intro"] == "Please leave your message."
    assert text["allison-en-vm-Work"] == "work: with a colon"
    assert "allison-en-digits_2" not in text
    wav = next(iter(parts["train"].wav.values()))
    samples, rate = soundfile.read(wav, dtype="int16")
    assert rate == 16000 and np.array_equal(samples, tone())
    assert len(parts["test"].utt_ids) < 20 and len(parts["dev"].utt_ids) < 15
    languages = (tmp_path / "data/train/utt2lang").read_text().splitlines()
    assert languages == [f"{utt_id} en" for utt_id in parts["train"].utt_ids]


def test_new_prompts_move_no_old_one(tmp_path: Path) -> None:
    make_prompts(tmp_path / "root", [name for name in PROMPTS if not name.startswith("digits/10")])
    assert script("prepare.py", "root", "en", cwd=tmp_path).returncode == 0
    before = read(tmp_path)
    make_prompts(tmp_path / "root", list(PROMPTS))
    assert script("prepare.py", "root", "en", cwd=tmp_path).returncode == 0
    after = read(tmp_path)
    assert len(after["train"].utt_ids) > len(before["train"].utt_ids)
    for part, data in before.items():
        assert set(data.utt_ids) <= set(after[part].utt_ids)


def test_g722_is_decoded(tmp_path: Path) -> None:
    av = pytest.importorskip("av")
    make_prompts(tmp_path / "root", ["activated"])
    path = tmp_path / "root/en_US_f_Allison/digits/2.g722"
    path.parent.mkdir()
    with av.open(str(path), "w", format="g722") as container:
        stream = container.add_stream("g722", rate=16000, layout="mono")
        frame = av.AudioFrame.from_ndarray(tone(1.0)[None], format="s16", layout="mono")
        frame.sample_rate = 16000
        for packet in [*stream.encode(frame), *stream.encode(None)]:
            container.mux(packet)
    assert script("prepare.py", "root", "en", cwd=tmp_path).returncode == 0
    samples, _ = soundfile.read(tmp_path / "downloads/wav/en/digits/2.wav", dtype="int16")
    assert len(samples) == 2 * path.stat().st_size
    assert np.abs(samples).max() == pytest.approx(8000, rel=0.1)


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    done = script("prepare.py", "root", "fr", cwd=tmp_path)
    assert done.returncode == 3
    assert "no folder 'fr'" in done.stderr and "--stage download" in done.stderr
    assert "Traceback" not in done.stderr
    make_prompts(tmp_path / "root", list(PROMPTS))
    (tmp_path / "root/core-sounds-en.txt").unlink()
    done = script("prepare.py", "root", "en", cwd=tmp_path)
    assert done.returncode == 3
    assert "core-sounds-en.txt" in done.stderr
    assert not (tmp_path / "data").exists()


def make_archive(path: Path, members: dict[str, bytes], *links: tarfile.TarInfo) -> str:
    with tarfile.open(path, "w:gz") as archive:
        for link in links:
            archive.addfile(link)
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path.as_uri()


def test_the_makers_archive_unpacks_to_what_prepare_reads(tmp_path: Path) -> None:
    members = {f"./{name}.sln16": tone().tobytes() for name in PROMPTS}
    members |= {"core-sounds-en.txt": transcripts().encode(), "CREDITS": b"thanks"}
    url = make_archive(tmp_path / "sounds.tar.gz", members)
    done = script("fetch.py", "en", "downloads/en", "--url", url, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "109 sounds" in done.stderr
    assert script("prepare.py", "downloads", "en", cwd=tmp_path).returncode == 0
    assert "allison-en-activated" in {u for d in read(tmp_path).values() for u in d.utt_ids}


def test_an_archive_cannot_write_elsewhere(tmp_path: Path) -> None:
    link = tarfile.TarInfo("way")
    link.type, link.linkname = tarfile.SYMTYPE, "/tmp"
    evil = {
        name: tone().tobytes()
        for name in ("../up.sln16", f"{tmp_path}/abs.sln16", "a/../../up.sln16", ".hidden.txt")
    }
    url = make_archive(tmp_path / "evil.tar.gz", evil | {"good.sln16": b"\0\0"}, link)
    assert script("fetch.py", "en", "in/en", "--url", url, cwd=tmp_path).returncode == 0
    assert [p.name for p in tmp_path.rglob("*") if p.is_file()] == ["evil.tar.gz", "good.sln16"]
    assert not any(p.is_symlink() for p in tmp_path.rglob("*"))


def test_a_cut_archive_is_an_error(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).bytes(50000)
    url = make_archive(tmp_path / "cut.tar.gz", {"a.sln16": noise})
    whole = (tmp_path / "cut.tar.gz").read_bytes()
    (tmp_path / "cut.tar.gz").write_bytes(whole[: len(whole) // 2])
    done = script("fetch.py", "en", "downloads/en", "--url", url, cwd=tmp_path)
    assert done.returncode == 3
    assert "--db_root" in done.stderr and "Traceback" not in done.stderr
