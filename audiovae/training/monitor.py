"""What a run shows of itself: validation, the log, tensorboard, audio and plots."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from audiovae.analysis import plots, usage
from audiovae.data.archive import FeatureArchive
from audiovae.data.audio_io import write_wav
from audiovae.data.batches import Batch, length_sorted
from audiovae.models.vae import AudioVAE
from audiovae.vocoder import Vocoder

_log = logging.getLogger(__name__)
VALIDATION_UTTERANCES = 128  # of dev, every n-th by id: enough for a mean, little time


class Validation:
    """-ELBO and the use of the latents on dev, always with the same noise."""

    def __init__(self, archive: FeatureArchive, device: torch.device) -> None:
        every = max(1, len(archive) // VALIDATION_UTTERANCES)
        mels = {u: archive[u] for u in archive.utt_ids[::every][:VALIDATION_UTTERANCES]}
        self.batches: list[Batch] = length_sorted(mels, device)

    @torch.no_grad()
    def __call__(self, model: AudioVAE) -> dict[str, float]:
        """Figures by name; nats per frame unless the name says otherwise. Leaves model in eval."""
        model.eval()
        sums: dict[str, float] = {}
        frames, utterances = 0, 0
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            for batch in self.batches:
                terms = model(batch.mel, batch.lengths)
                frames += int(batch.lengths.sum())
                utterances += len(batch.utt_ids)
                for name, value in {
                    "negative_elbo": terms.negative_elbo,
                    "reconstruction": terms.reconstruction,
                    "kl_z": terms.kl_z,
                    "kl_u": terms.kl_u,
                    "length": terms.length,
                }.items():
                    sums[name] = sums.get(name, 0.0) + float(value.double().sum())
        per_frame = {"negative_elbo", "reconstruction"}
        figures = {k: v / (frames if k in per_frame else utterances) for k, v in sums.items()}
        figures["kl_u_per_second"] = sums["kl_u"] / frames * model.feature.frame_rate
        latents = [model.encode(batch.mel, batch.lengths) for batch in self.batches]
        use = usage.latent_usage(latents)
        figures["active_units_z"] = float(use.active_units_z)
        figures["active_units_u"] = float(use.active_units_u)
        costs = usage.shuffle_costs(model, self.batches, latents)
        figures["shuffle_z"], figures["shuffle_memory"] = costs.z, costs.memory
        return figures


class Samples:
    """Renders a few dev reconstructions and prior samples, with plots, into a folder a step."""

    def __init__(
        self, archive: FeatureArchive, vocoder: Vocoder, folder: Path, device: torch.device
    ) -> None:
        self.feature, self.vocoder, self.folder = archive.feature, vocoder, folder
        chosen = archive.utt_ids[:: max(1, len(archive) // 3)][:3]
        self.batches = length_sorted({u: archive[u] for u in chosen}, device)

    @torch.no_grad()
    def __call__(self, model: AudioVAE, step: int, tracker: Any) -> None:
        """Write wavs and plots of this step; tracker is tensorboard's writer or None."""
        model.eval()
        folder = self.folder / f"step-{step:08d}"
        folder.mkdir(parents=True, exist_ok=True)
        generator = torch.Generator().manual_seed(0)
        for batch in self.batches:
            latents = model.encode(batch.mel, batch.lengths)
            decoded = model.decode(
                latents.z_mean, latents.u_mean, latents.u_lengths, generator=generator
            )
            names = [f"reconstruct-{u}" for u in batch.utt_ids]
            self._render(names, decoded, folder, step, tracker)
            for n, (name, frames) in enumerate(zip(names, batch.lengths.tolist(), strict=True)):
                length = int(decoded.lengths[n])
                steps, slots = int(decoded.align_lengths[n]), int(latents.u_lengths[n])
                pair = plots.mel_pair(
                    batch.mel[n, :frames].cpu().numpy(),
                    decoded.mel[n, :length].cpu().numpy(), self.feature,
                )  # fmt: skip
                weights = decoded.alignment[n, :steps, :slots].cpu().numpy()
                aligned = plots.alignment(weights, model.config.slots_per_step)
                for kind, figure in (("mel", pair), ("alignment", aligned)):
                    figure.savefig(folder / f"{name}-{kind}.png")
                    if tracker is not None:
                        tracker.add_figure(f"{name}/{kind}", figure, step)
        drawn = model.sample(3, generator=generator, max_seconds=10.0)
        self._render([f"sample-{n}" for n in range(3)], drawn, folder, step, tracker)

    def _render(
        self, names: Sequence[str], decoded: Any, folder: Path, step: int, tracker: Any
    ) -> None:
        waves = self.vocoder(decoded.mel, decoded.lengths).cpu()
        for name, wave, length in zip(names, waves, decoded.lengths.tolist(), strict=True):
            audio = wave[: length * self.feature.hop_length].numpy()
            write_wav(folder / f"{name}.wav", audio, self.feature.sample_rate)
            if tracker is not None:
                tracker.add_audio(name, audio, step, sample_rate=self.feature.sample_rate)


class TrainLog:
    """train.log, one JSON object a line, and a live line on the terminal."""

    def __init__(self, path: Path, done: float) -> None:
        self.file = path.open("a", encoding="utf-8")
        columns = (
            TextColumn("train"), BarColumn(), TextColumn("{task.percentage:>4.1f} %"),
            TimeElapsedColumn(), TextColumn("eta"), TimeRemainingColumn(),
            TextColumn("{task.fields[line]}"),
        )  # fmt: skip
        self.bar = Progress(*columns, console=Console(stderr=True), speed_estimate_period=300)
        self.task = self.bar.add_task("train", total=1.0, line="")
        self.advance(done, "")
        self.bar.start()

    def advance(self, done: float, line: str) -> None:
        """Move the bar to this share of the run."""
        self.bar.update(self.task, completed=done, line=line)

    def write(self, kind: str, step: int, figures: dict[str, float]) -> None:
        """One line of train.log, and one on the terminal."""
        values = {k: round(v, 5) if math.isfinite(v) else None for k, v in figures.items()}
        record = {"kind": kind, "step": step, **values}
        self.file.write(json.dumps(record) + "\n")
        self.file.flush()
        text = "  ".join(f"{k} {v:.4g}" for k, v in figures.items())
        self.bar.console.print(f"step {step} {kind}: {text}", highlight=False, soft_wrap=True)

    def close(self) -> None:
        """Leave the terminal as it was."""
        self.bar.stop()
        self.file.close()


def warn_if_unused(figures: dict[str, float], step: int) -> None:
    """Say so when the decoder does not listen to a latent (thresholds after bypass experiments)."""
    if figures["shuffle_z"] < 1.0:
        _log.warning(
            "step %d: shuffling z costs %.2f nats a frame: the decoder ignores z. Lower the rate "
            "of u (latent.u_beta, latent.u_capacity, latent.u_stride) or raise "
            "latent.u_warmup_steps",
            step, figures["shuffle_z"],
        )  # fmt: skip
    if figures["shuffle_memory"] < 1.0:
        _log.warning(
            "step %d: shuffling the memory costs %.2f nats a frame: the decoder ignores u. Use a "
            "longer latent.u_warmup_steps, or a higher decoder.prenet_dropout",
            step, figures["shuffle_memory"],
        )  # fmt: skip
