"""What more than one test file needs: a model of a few thousand weights, and a dump dir."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest

from audiovae.config import Config, FeatureConfig
from audiovae.config_file import load_config
from audiovae.data.archive import write_feature_json, write_matrices
from audiovae.data.kaldi_dir import write_table

SmallConfig = Callable[..., Config]
WriteDump = Callable[[Path, Mapping[str, np.ndarray], FeatureConfig], Path]

SMALL = [
    "encoder.dim=16", "encoder.blocks=1", "encoder.heads=2", "encoder.conv_kernel=3",
    "latent.z_dim=4", "latent.u_dim=3", "latent.u_stride=2", "latent.prior_dim=8",
    "latent.u_adversary=0", "decoder.reduction_factor=4",
    "decoder.memory_dim=8", "decoder.prenet_dim=8", "decoder.attention_rnn_dim=12",
    "decoder.decoder_rnn_dim=12", "decoder.attention_dim=6", "decoder.location_filters=2",
    "decoder.location_kernel=3", "vocoder.name=griffin_lim",
]  # fmt: skip


@pytest.fixture(scope="session")
def small_config() -> SmallConfig:
    """small_config("a.b=c", ...): a whole Config with tiny widths."""
    return lambda *overrides: load_config(None, [*SMALL, *overrides])


@pytest.fixture(scope="session")
def write_dump() -> WriteDump:
    """write_dump(folder, mels by utt_id, feature): the files of one set of features."""

    def write(folder: Path, mels: Mapping[str, np.ndarray], feature: FeatureConfig) -> Path:
        folder.mkdir(parents=True)
        with (folder / "feats.ark").open("wb") as file:
            offsets = write_matrices(file, mels.items())
        write_table(folder / "feats.scp", {k: f"feats.ark:{v}" for k, v in offsets.items()})
        write_table(folder / "utt2num_frames", {k: str(len(v)) for k, v in mels.items()})
        write_table(folder / "utt2spk", {k: k.partition("-")[0] for k in mels})
        write_feature_json(folder, feature)
        return folder

    return write
