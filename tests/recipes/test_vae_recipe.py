"""The whole recipe, stages 0 to 7, on a few real prompts of two voices.

Stage 0 is real as well: it takes the prompts from egs/asterisk/downloads if they are there, and
fetches them otherwise.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import soundfile

REPO = Path(__file__).parents[2]

# The real local/data.sh, then all but a few of what it fetched is removed.
DATA = """#!/usr/bin/env bash
set -euo pipefail
mkdir -p downloads
for lang in en it; do
  if [ "$1" = download ] && [ -d "$REPO/egs/asterisk/downloads/$lang" ]; then
    cp -r "$REPO/egs/asterisk/downloads/$lang" downloads/
  fi
done
"$REPO/egs/asterisk/local/data.sh" "$@"
if [ "$1" = download ]; then
  find downloads -name '*.g722' ! -name 'vm-[m-t]*' ! -name 2.g722 -delete
fi
"""


def make_corpus(folder: Path) -> Path:
    script = folder / "local/data.sh"
    script.parent.mkdir(parents=True)
    script.write_text(DATA)
    script.chmod(0o755)
    return folder


def run(corpus: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [
        REPO / "recipes/vae.sh",
        "--corpus",
        corpus,
        "--config",
        REPO / "conf/vae_debug.yaml",
    ]
    python = Path(sys.executable).parent
    environment = os.environ | {
        "REPO": str(REPO),
        "PATH": f"{python}{os.pathsep}{os.environ['PATH']}",
    }
    return subprocess.run(
        [*command, "--langs", "en it", *options],
        env=environment, capture_output=True, text=True, timeout=600,
    )  # fmt: skip


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    corpus = make_corpus(tmp_path_factory.mktemp("with a space") / "small corpus")
    done = run(corpus)
    assert done.returncode == 0, done.stderr
    return corpus


def test_every_stage_makes_what_the_table_says(corpus: Path) -> None:
    exp = corpus / "exp/vae_debug"
    for made in (
        "data/train/wav.scp", "data/dev/utt2spk", "data/test/text",
        "dump/train/feats.scp", "dump/dev/feature.json", "dump/test/utt2num_frames",
        "dump/train/stats.json", exp / "config.yaml", exp / "train.log",
        exp / "eval/test/metrics.json", exp / "eval/test/utt.tsv", exp / "synth/manifest.jsonl",
        exp / "synth/index.html", exp / "export/config.json", exp / "export/model.safetensors",
        "log/train.log",
    ):  # fmt: skip
        assert (corpus / made).stat().st_size > 0, made
    assert list((exp / "checkpoints").glob("step-*/manifest.json"))
    assert list((exp / "eval/test/plots").glob("*.png"))


def test_the_figures_and_the_audio_are_real(corpus: Path) -> None:
    exp = corpus / "exp/vae_debug"
    metrics = json.loads((exp / "eval/test/metrics.json").read_text("utf-8"))
    for name in (
        "recon_logmel_l1", "shuffle_z_nats_per_frame", "shuffle_memory_nats_per_frame",
        "transfer_success", "sample_duration_ratio", "sample_fd_ratio", "copy_synthesis_logmel_l1",
        "wer",
    ):  # fmt: skip
        assert name in metrics
    assert 0.05 < metrics["copy_synthesis_logmel_l1"] < 0.4  # the real vocoder, on real speech
    heard = metrics["wer"]["natural"]  # by a real recogniser, where the extra `eval` is installed
    assert "audiovae[eval]" in metrics["wer_message"] if heard is None else 0 <= heard < 0.5
    lines = [json.loads(s) for s in (exp / "synth/manifest.jsonl").read_text("utf-8").splitlines()]
    assert lines
    for line in lines:
        info = soundfile.info(exp / "synth" / line["file"])
        assert info.samplerate == 22050 and info.frames > 0


def test_the_export_loads_and_encodes(corpus: Path) -> None:
    import torch

    from audiovae import AudioVAE
    from audiovae.data.archive import FeatureArchive

    model = AudioVAE.from_pretrained(corpus / "exp/vae_debug/export")
    archive = FeatureArchive(corpus / "dump/test")
    mel = torch.from_numpy(archive[archive.utt_ids[0]])[None]
    latents = model.encode(mel, torch.tensor([mel.shape[1]]))
    assert latents.z_mean.shape == (1, model.config.latent.z_dim)
    assert torch.isfinite(latents.u_mean).all()


def test_a_second_run_does_nothing(corpus: Path) -> None:
    done = run(corpus)
    assert done.returncode == 0
    assert done.stderr.count("done before") == 8
    assert "index.html" in done.stdout
