"""metrics.json as a table: the figures beside the targets, natural / copy / model side by side.

python -m audiovae.analysis.report exp/<tag>/eval/test/metrics.json > RESULTS.md
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table

DEFINITIONS = {
    "neg_elbo_nats_per_frame": "nats per mel frame, an upper bound on -log p(x), weights 1; "
    "density of the mel divided by the global standard deviation of training",
    "neg_elbo_parts_nats_per_frame": "nats per mel frame; the parts add up to neg_elbo",
    "kl_z_nats": "nats per utterance, q(z|x) from N(0, I)",
    "kl_u_nats": "nats per utterance, q(u|x) from the autoregressive prior",
    "kl_u_nats_per_second": "nats per second of held-out speech",
    "kl_u_nats_per_slot": "nats per memory step",
    "kl_z_per_dim": "nats per utterance",
    "u_nats_per_dim": "nats per memory step, from one Gaussian of the moments of all u",
    "active_units_z": "dimensions whose posterior mean has a variance over 0.01",
    "active_units_u": "as active_units_z, over all memory steps",
    "shuffle_z_nats_per_frame": "rise of teacher-forced -log p(x|z,u) with z of another utterance "
    "of about the same length, nats per frame",
    "shuffle_memory_nats_per_frame": "the same with u of another utterance, "
    "stretched to the length",
    "recon_logmel_l1": "free running from posterior means: mean |difference| of natural-log mels "
    "along the DTW path, mean over utterances",
    "recon_mcd_db": "dB, mel cepstra c1-c13 along the same path",
    "recon_flux_ratio": "mean |frame to frame change| over that of the original",
    "recon_alignment_error_seconds": "mean |expected attention position - known diagonal|, seconds",
    "recon_alignment_astray": "share of utterances with a decoder step over 0.25 s off "
    "the diagonal",
    "recon_own_voice": "share of reconstructions classified as their own speaker",
    "recon_fd_ratio": "as sample_fd_ratio, of the reconstructions",
    "classifier_accuracy": "share of real held-out utterances the voice classifier gets right",
    "transfer_success": "share of voice transfers (u of A, z of one utterance of B, free running) "
    "classified as the voice of B",
    "transfer_success_mean_reference": "the same with z averaged over up to 8 utterances of B",
    "transfer_kept_source": "share of voice transfers classified as the voice of A",
    "sample_duration_ratio": "mean length of samples with z ~ N(0, I) over that of held-out speech",
    "sample_hit_cap": "samples that the longest length ended",
    "sample_fd_ratio": "Frechet distance of 16-frame mel patches to held-out speech, of samples "
    "with z ~ N(0, I), over that of training speech; as many patches on each side",
    "copy_synthesis_logmel_l1": "mean |difference| between mels and those of the vocoder's audio, "
    "frame by frame",
    "wer": "word error rate of whisper-tiny.en on English prompts of three words or more",
    "cer": "character error rate of the same",
    "side_by_side": "audio analysed again, against the real mel: log-mel L1 after DTW, MCD in dB",
    "seconds": "wall time of each part",
}


@dataclass(frozen=True)
class Target:
    """A figure to reach; `name` may go into a nested table (`wer.model`)."""

    name: str
    label: str
    low: float | None = None
    high: float | None = None

    @property
    def wanted(self) -> str:
        """The target in words."""
        if self.low is None and self.high is None:
            return "reported"
        if self.low is not None and self.high is not None:
            return f"{self.low:g} to {self.high:g}"
        return f"<= {self.high:g}" if self.low is None else f">= {self.low:g}"

    def met(self, value: float | None) -> bool | None:
        """Whether a value reaches it; None if there is no value or no target."""
        if value is None or (self.low is None and self.high is None):
            return None
        above = self.low is None or value >= self.low
        return above and (self.high is None or value <= self.high)


TARGETS = (
    Target("recon_logmel_l1", "reconstruction, log-mel L1 after DTW", high=0.45),
    Target("shuffle_z_nats_per_frame", "cost of shuffling z, nats per frame", low=10),
    Target(
        "shuffle_memory_nats_per_frame", "cost of shuffling the memory, nats per frame", low=100
    ),
    Target("classifier_accuracy", "voice classifier on real prompts", low=0.99),
    Target("transfer_success", "voice transfer taken for the target voice", low=0.9),
    Target("transfer_success_mean_reference", "the same, z of several references"),
    Target("sample_duration_ratio", "length of prior samples / real", low=0.85, high=1.15),
    Target("sample_hit_cap", "prior samples ended by the cap"),
    Target("sample_fd_ratio", "Frechet distance of prior samples / of training speech", high=2),
    Target("copy_synthesis_logmel_l1", "copy synthesis, log-mel L1", high=0.3),
    Target("wer.natural", "word error rate, natural"),
    Target("wer.copy", "word error rate, copy synthesis"),
    Target("wer.model", "word error rate, model"),
    Target("neg_elbo_nats_per_frame", "-ELBO, nats per frame"),
    Target("recon_mcd_db", "reconstruction, mel-cepstral distortion, dB"),
    Target("recon_alignment_error_seconds", "alignment off the diagonal, seconds"),
)


def look_up(metrics: Mapping[str, Any], name: str) -> float | None:
    """A figure by its dotted name; None where it is missing or null."""
    value: Any = metrics
    for key in name.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def markdown(metrics: Mapping[str, Any]) -> str:
    """All tables, for RESULTS.md."""
    counts = metrics.get("counts", {})
    notes = [
        f"{counts.get('test_utterances', 0)} held-out utterances, "
        f"{metrics.get('wer_prompts', 0)} English prompts ({metrics.get('wer_words', 0)} words), "
        f"{metrics.get('parameters', 0) / 1e6:.2f} M parameters, seed {metrics.get('seed', 0)}.",
    ]
    if metrics.get("wer_message"):
        notes.append(f"No word error rates: {metrics['wer_message']}.")
    if metrics.get("seconds"):
        parts = ", ".join(f"{part} {time:.0f} s" for part, time in metrics["seconds"].items())
        notes.append(f"Time: {parts}.")
    blocks = ["\n".join(_pipe(rows)) for rows in _all_rows(metrics).values() if len(rows) > 1]
    return "\n\n".join([*blocks, *notes]) + "\n"


def _all_rows(metrics: Mapping[str, Any]) -> dict[str, list[list[str]]]:
    """The tables by title, each with its head."""
    return {
        "figures": [["figure", "name", "target", "measured", ""], *_target_rows(metrics)],
        "side by side": _side_rows(metrics),
        "samples": _sample_rows(metrics),
        "by length": _length_rows(metrics),
    }


def _pipe(rows: list[list[str]]) -> list[str]:
    head, *body = rows
    return [
        "| " + " | ".join(head) + " |",
        "|" + "---|" * len(head),
        *("| " + " | ".join(row) + " |" for row in body),
    ]


def _target_rows(metrics: Mapping[str, Any]) -> list[list[str]]:
    verdicts = {True: "reached", False: "missed", None: ""}
    found = [(target, look_up(metrics, target.name)) for target in TARGETS]
    return [
        [t.label, f"`{t.name}`", t.wanted, _number(value), verdicts[t.met(value)]]
        for t, value in found
    ]


def _side_rows(metrics: Mapping[str, Any]) -> list[list[str]]:
    columns = {
        "logmel_l1": "log-mel L1",
        "mcd": "MCD, dB",
        "flux_ratio": "flux ratio",
        "wer": "WER",
        "cer": "CER",
    }
    table = metrics.get("side_by_side", {})
    return [
        ["audio", *columns.values()],
        *([source, *(_number(row.get(c)) for c in columns)] for source, row in table.items()),
    ]


def _sample_rows(metrics: Mapping[str, Any]) -> list[list[str]]:
    head = ["prior of z", "mean, s", "/ held-out", "+-", "/ train", "KS", "Frechet ratio", "capped"]
    rows = [head]
    for prior, table in metrics.get("samples", {}).items():
        length, patches = table["duration"], table["patches"] or {}
        values = [length["mean"], length["ratio"], length["ratio_error"]]
        values += [table["duration_ratio_to_train"], length["ks"], patches.get("ratio")]
        rows.append([prior, *map(_number, values), f"{table['hit_cap']} of {table['number']}"])
    return rows


def _length_rows(metrics: Mapping[str, Any]) -> list[list[str]]:
    columns = {
        "utterances": "utterances",
        "mean_frames": "mean frames",
        "neg_elbo_nats_per_frame": "-ELBO, nats per frame",
        "recon_logmel_l1": "log-mel L1",
    }
    halves = metrics.get("by_length", {})
    return [
        ["half", *columns.values()],
        *([name, *(_number(half[c]) for c in columns)] for name, half in halves.items()),
    ]


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return str(value) if isinstance(value, int) else f"{value:.3g}"


def tables(metrics: Mapping[str, Any]) -> list[Table]:
    """The same for a terminal."""
    from rich.table import Table

    made = []
    for title, (head, *body) in _all_rows(metrics).items():
        table = Table(*head, title=title)
        for row in body:
            style = {"missed": "red", "reached": "green"}.get(row[-1])
            table.add_row(*(cell.replace("`", "") for cell in row), style=style)
        if body:
            made.append(table)
    return made


if __name__ == "__main__":
    sys.stdout.write(markdown(json.loads(Path(sys.argv[1]).read_text("utf-8"))))
