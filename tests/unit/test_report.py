"""metrics.json as a table."""

from __future__ import annotations

import io

from rich.console import Console

from audiovae.analysis import report

METRICS = {
    "recon_logmel_l1": 0.37,
    "shuffle_z_nats_per_frame": 4.2,
    "sample_duration_ratio": 1.15,
    "sample_hit_cap": 0,
    "wer": {"natural": 0.05, "copy": 0.06, "model": None},
    "side_by_side": {
        "natural": {"logmel_l1": 0.001, "mcd": 0.01, "flux_ratio": 1.0, "wer": 0.05, "cer": 0.01},
        "model": {"logmel_l1": 0.5, "mcd": 4.0, "flux_ratio": 0.9, "wer": None, "cer": None},
    },
    "samples": {
        "normal": {
            "number": 160,
            "hit_cap": 2,
            "duration": {"mean": 2.1, "ratio": 0.9, "ratio_error": 0.1, "ks": 0.12},
            "duration_ratio_to_train": 0.91,
            "patches": None,
        }
    },
    "by_length": {
        "short": {
            "utterances": 80,
            "mean_frames": 70.0,
            "neg_elbo_nats_per_frame": -3.0,
            "recon_logmel_l1": 0.3,
        }
    },
    "seconds": {"encode": 1.4},
    "wer_message": "jiwer is not installed",
    "counts": {"test_utterances": 160},
    "parameters": 1_800_000,
}


def test_markdown_says_what_is_reached() -> None:
    text = report.markdown(METRICS)
    lines = {line.split(" | ")[1]: line for line in text.splitlines() if " | `" in line}
    assert lines["`recon_logmel_l1`"].endswith("<= 0.45 | 0.37 | reached |")
    assert lines["`shuffle_z_nats_per_frame`"].endswith(">= 10 | 4.2 | missed |")
    assert lines["`sample_duration_ratio`"].endswith("0.85 to 1.15 | 1.15 | reached |")
    assert lines["`wer.copy`"].endswith("reported | 0.06 |  |")
    assert lines["`wer.model`"].endswith("| - |  |")
    assert lines["`transfer_success`"].endswith(">= 0.9 | - |  |")
    assert "No word error rates: jiwer is not installed." in text
    assert "| normal | 2.1 | 0.9 | 0.1 | 0.91 | 0.12 | - | 2 of 160 |" in text
    assert "| short | 80 | 70 | -3 | 0.3 |" in text
    assert "Time: encode 1 s." in text


def test_markdown_tables_are_rectangular() -> None:
    for block in report.markdown(METRICS).split("\n\n"):
        if block.startswith("|"):
            assert len({line.count("|") for line in block.splitlines()}) == 1


def test_every_target_is_defined() -> None:
    for target in report.TARGETS:
        assert target.name.split(".")[0] in report.DEFINITIONS


def test_terminal_tables() -> None:
    out = io.StringIO()
    console = Console(file=out, width=120)
    for table in report.tables(METRICS):
        console.print(table)
    assert "recon_logmel_l1" in out.getvalue() and "natural" in out.getvalue()


def test_an_empty_file_gives_an_empty_table() -> None:
    assert "| - |" in report.markdown({})
