"""python local/prepare.py ROOT LANG...: data/{train,dev,test} from the Asterisk prompts below ROOT.

For each language, ROOT holds somewhere a folder `<lang>` or `<lang>_...` with the prompts (.sln16,
.g722 or .wav) and the transcripts `core-sounds-<lang>.txt` or `.txt.gz`: the Debian packages and
the maker's archives both unpack to that.
"""

from __future__ import annotations

import argparse
import gzip
import re
import sys
from collections import Counter
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import track

from audiovae.data.audio_io import read_audio, write_wav
from audiovae.data.kaldi_dir import DataDir, write_table
from audiovae.data.split import PARTS, part_of
from audiovae.errors import DataDirError

SAMPLE_RATE = 16000  # Hz, of every prompt
SPEAKERS = {"en": "allison", "es": "allison", "fr": "june", "it": "carlo"}
SUFFIXES = (".sln16", ".g722", ".wav")  # the better copy first
# Not speech, in every language; some transcripts lack them.
TONES = {"beep", "beeperr", "ascending-2tone", "descending-2tone", "tt-monkeys"} | {
    "confbridge-join",
    "confbridge-leave",
}
CONSOLE = Console(stderr=True, soft_wrap=True, highlight=False)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("root", type=Path)
    parser.add_argument("langs", nargs="+", choices=sorted(SPEAKERS), metavar="LANG")
    arguments = parser.parse_args()
    parts = {part: DataDir(Path("data") / part, {}, {}) for part in PARTS}
    languages: dict[str, str] = {}
    try:
        for lang in arguments.langs:
            prepare(lang, arguments.root, Path("downloads", "wav").absolute(), parts, languages)
    except DataDirError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    for data in parts.values():
        data.write(data.path)
        write_table(data.path / "utt2lang", {utt_id: languages[utt_id] for utt_id in data.utt_ids})
        counts = ", ".join(f"{k} {n}" for k, n in sorted(Counter(data.utt2spk.values()).items()))
        CONSOLE.print(f"{data.path}: {len(data.utt_ids)} utterances ({counts})")
    return 0


def prepare(
    lang: str, root: Path, wavs: Path, parts: dict[str, DataDir], languages: dict[str, str]
) -> None:
    """Add one language's prompts to `parts` and `languages`, decoding what has no wav yet."""
    sounds = list_sounds(find_prompts(root, lang))
    texts = read_transcripts(root, lang)
    counts: Counter[str] = Counter()
    for name in track(sorted(sounds), description=f"{lang} prompts", console=CONSOLE):
        # Some names differ from their transcript's in case only.
        text = texts.get(name, texts.get(name.lower(), ""))
        if name.startswith("silence/"):
            counts["silence"] += 1
            continue
        if name in TONES or is_sound(text):
            counts["tones and sounds"] += 1
            continue
        speaker = SPEAKERS[lang]
        utt_id = f"{speaker}-{lang}-{name.replace('/', '_')}"
        if utt_id in languages:
            raise DataDirError(f"{sounds[name]}: utt_id '{utt_id}' twice; rename one of the files")
        data = parts[part_of(utt_id)]
        data.wav[utt_id] = str(as_wav(sounds[name], wavs / lang / f"{name}.wav"))
        data.utt2spk[utt_id] = speaker
        languages[utt_id] = lang
        counts["kept"] += 1
        if words := spoken(text):
            data.text[utt_id] = words
        else:
            counts["without a transcript"] += 1
    CONSOLE.print(
        f"{lang}: {len(sounds)} files, {counts['kept']} kept "
        f"({counts['without a transcript']} without a transcript), "
        f"dropped: {counts['silence']} silence, {counts['tones and sounds']} tones and sounds",
    )


def find_prompts(root: Path, lang: str) -> Path:
    """The folder `<lang>` or `<lang>_...` at or below `root` that holds prompts."""
    for folder in sorted([root, *(p for p in root.rglob(f"{lang}*") if p.is_dir())]):
        if re.fullmatch(rf"{lang}(_\w+)?", folder.name) and any((folder / "digits").glob("2.*")):
            return folder
    raise DataDirError(
        f"{root}: no folder '{lang}' or '{lang}_...' with prompts (digits/2.g722, .sln16 or .wav); "
        f"fetch them: egs/asterisk/run.sh --stage download --stop_stage download --langs {lang}"
    )


def list_sounds(folder: Path) -> dict[str, Path]:
    """name -> file, the name being the path in the folder without its suffix."""
    sounds: dict[str, Path] = {}
    for suffix in SUFFIXES:
        for path in folder.rglob(f"*{suffix}"):
            sounds.setdefault(path.relative_to(folder).with_suffix("").as_posix(), path.absolute())
    return sounds


def read_transcripts(root: Path, lang: str) -> dict[str, str]:
    """name -> transcript, from the lines `name: text`; of two lines of a name the first counts."""
    paths = sorted(root.rglob(f"core-sounds-{lang}.txt*"))
    if not paths:
        raise DataDirError(f"{root}: no core-sounds-{lang}.txt or .txt.gz, the transcripts")
    data = paths[0].read_bytes()
    try:
        lines = (gzip.decompress(data) if paths[0].suffix == ".gz" else data).decode("utf-8-sig")
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise DataDirError(f"{paths[0]}: not readable: {error}; fetch it again") from error
    texts: dict[str, str] = {}
    for line in lines.splitlines():
        name, colon, text = line.partition(":")
        if colon and not line.startswith(";"):
            texts.setdefault(name.strip(), text.strip())
    for name in list(texts):
        texts.setdefault(name.lower(), texts[name])
    return texts


def is_sound(text: str) -> bool:
    """Whether a transcript describes a sound instead of words: '[this is an error beep tone]'."""
    return re.fullmatch(r"[\[<(][^\])>]*[\])>]", text) is not None


def spoken(text: str) -> str:
    """The words of a transcript, without its remarks: 'at [@]' -> 'at'."""
    text = re.sub(r"\([^)]*\)|\[\W*\]", " ", text)
    return " ".join(re.sub(r"[\[\]]", "", text).split())


def as_wav(sound: Path, wav: Path) -> Path:
    """A prompt as a file that every tool reads: itself if it is wav, else decoded to `wav`."""
    if sound.suffix == ".wav":
        return sound
    if not wav.exists() or wav.stat().st_mtime < sound.stat().st_mtime:
        if sound.suffix == ".sln16":
            wave = np.fromfile(sound, "<i2").astype(np.float32) / 32768
        else:
            wave = read_audio(sound, sample_rate=SAMPLE_RATE)
        wav.parent.mkdir(parents=True, exist_ok=True)
        write_wav(wav, wave, SAMPLE_RATE)
    return wav


if __name__ == "__main__":
    raise SystemExit(main())
