"""Configuration: one flat frozen dataclass per YAML section."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import typing
from dataclasses import dataclass, field
from typing import Any, Literal

from audiovae.errors import ConfigError, FeatureMismatchError


@dataclass(frozen=True, kw_only=True)
class FeatureConfig:
    """The mel contract: everything that decides what number stands in a mel frame.

    The defaults are the HiFi-GAN definition at 22 050 Hz (Kong et al. 2020, `meldataset.py`).
    It stands beside the features, in every checkpoint and on every vocoder, and is compared
    field by field wherever two of them meet.
    """

    sample_rate: int = 22050  # Hz
    n_fft: int = 1024  # samples
    win_length: int = 1024  # samples, <= n_fft
    hop_length: int = 256  # samples; T frames <-> T * hop_length samples
    window: Literal["hann"] = "hann"  # periodic
    padding: Literal["reflect"] = "reflect"  # (n_fft - hop_length) / 2 each side, not centred
    n_mels: int = 80
    f_min: float = 0.0  # Hz
    f_max: float = 8000.0  # Hz, <= sample_rate / 2
    mel_scale: Literal["slaney", "htk"] = "slaney"
    mel_norm: Literal["slaney", "none"] = "slaney"  # area norm of each filter, or none
    power: float = 1.0  # 1 magnitude, 2 power
    magnitude_floor: float = 1e-9  # added to re^2 + im^2 before the root
    log_base: Literal["e", "10"] = "e"
    floor: float = 1e-5  # of the mel, before the log
    floor_mode: Literal["clamp", "add"] = "clamp"  # log(max(x, floor)) or log(x + floor)

    def __post_init__(self) -> None:
        _raise_if(
            "feature",
            (self.sample_rate > 0, f"sample_rate: found {self.sample_rate}, wanted > 0 Hz"),
            (
                0 < self.win_length <= self.n_fft,
                f"win_length: found {self.win_length}, wanted 1 to n_fft = {self.n_fft}",
            ),
            (
                0 < self.hop_length <= self.win_length and (self.n_fft - self.hop_length) % 2 == 0,
                f"hop_length: found {self.hop_length}, wanted 1 to win_length = {self.win_length} "
                f"with n_fft - hop_length even",
            ),
            (self.n_mels > 0, f"n_mels: found {self.n_mels}, wanted > 0"),
            (
                0 <= self.f_min < self.f_max <= self.sample_rate / 2,
                f"f_min, f_max: found {self.f_min}, {self.f_max}, "
                f"wanted 0 <= f_min < f_max <= {self.sample_rate / 2} Hz",
            ),
            (self.power in (1.0, 2.0), f"power: found {self.power}, wanted 1 or 2"),
            (self.floor > 0, f"floor: found {self.floor}, wanted > 0"),
        )

    @property
    def hash(self) -> str:
        """Ten hex digits that change with any field."""
        text = json.dumps(dataclasses.asdict(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:10]

    @property
    def frame_rate(self) -> float:
        """Mel frames per second."""
        return self.sample_rate / self.hop_length

    def differences(self, other: FeatureConfig) -> list[tuple[str, Any, Any]]:
        """(field, mine, the other's) for every field that differs."""
        return [
            (f.name, getattr(self, f.name), getattr(other, f.name))
            for f in dataclasses.fields(self)
            if getattr(self, f.name) != getattr(other, f.name)
        ]

    def require_same(self, other: FeatureConfig, mine: str, others: str) -> None:
        """Raise FeatureMismatchError naming each field that differs.

        Args:
            mine: what this contract belongs to, for the message ("dump/train").
            others: what the other belongs to ("the vocoder hifigan_universal").
        """
        differences = self.differences(other)
        if differences:
            lines = "\n".join(f"  {name}: {a!r} | {b!r}" for name, a, b in differences)
            raise FeatureMismatchError(
                f"mel contracts differ, field: {mine} | {others}\n{lines}\n"
                f"Extract the features again with the other's settings "
                f"(audiovae extract ... feature.{differences[0][0]}={differences[0][2]}), "
                f"or choose a model and vocoder made for these."
            )


@dataclass(frozen=True, kw_only=True)
class EncoderConfig:
    """The conformer that both posterior paths share in kind, not in weights."""

    dim: int = 144  # D, channels
    blocks: int = 1  # conformer blocks of the u path
    z_blocks: int = 1  # conformer blocks of the z path; 0: pool the convolutional stem
    heads: int = 4  # H, divides dim
    conv_kernel: int = 15  # taps at the strided rate, odd
    ff_mult: int = 2  # feed-forward width / dim
    dropout: float = 0.05  # [0, 1)

    TIME_STRIDE: typing.ClassVar[int] = 4  # mel frames per encoder step, fixed by the conv stem

    def __post_init__(self) -> None:
        _raise_if(
            "encoder",
            (self.heads > 0, f"heads: found {self.heads}, wanted > 0"),
            (
                self.dim > 0 and self.dim % max(1, 2 * self.heads) == 0,
                f"dim: found {self.dim}, wanted a multiple of 2 * heads = {2 * self.heads}",
            ),
            (self.ff_mult > 0, f"ff_mult: found {self.ff_mult}, wanted > 0"),
            (self.blocks >= 0, f"blocks: found {self.blocks}, wanted >= 0"),
            (self.z_blocks >= 0, f"z_blocks: found {self.z_blocks}, wanted >= 0"),
            _odd(self, "conv_kernel"),
            (0 <= self.dropout < 1, f"dropout: found {self.dropout}, wanted in [0, 1)"),
        )


@dataclass(frozen=True, kw_only=True)
class LatentConfig:
    """The utterance latent z, the local latents u_1..K, their prior, and what keeps them in use."""

    z_dim: int = 16  # Z
    z_capacity: float = 20.0  # nats; upper limit on KL(z) by a learned multiplier; 0 off
    z_free_bits: float = 0.0  # nats per dimension below which KL(z) costs nothing extra
    z_warmup_steps: int = 300  # steps of linear KL warm-up
    u_dim: int = 32  # U
    u_stride: int = 1  # encoder steps per u; one u per 4 * u_stride mel frames
    u_capacity: float = 0.0  # nats per second; upper limit on KL(u); 0 off
    u_free_bits: float = 0.0  # nats per u_k below which KL(u) costs nothing extra
    u_warmup_steps: int = 500  # steps of linear KL warm-up
    u_beta: float = 1.0  # weight of KL(u) after the warm-up; below 1 u says more, above 1 less
    u_logvar_init: float = -3.0  # bias of the posterior log variance at the start
    u_std_floor: float = 0.1  # least posterior standard deviation
    instance_norm: bool = True  # take each utterance's mean and std out of the u path
    adaptive_norm: bool = True  # ... and give them back from z on the decoder's frames
    warp: float = 0.2  # vocal tract perturbation of the u path in training, +- this; 0 off
    u_adversary: float = 8.0  # weight of the game that hides z from u; 0 off
    prior_dim: int = 256  # GRU width of p(u | K, z)
    prior_mixtures: int = 4  # Gaussians per u_k in the prior
    prior_dropout: float = 0.1  # [0, 1), on the GRU's input u

    def __post_init__(self) -> None:
        _raise_if(
            "latent",
            *(
                (getattr(self, name) > 0, f"{name}: found {getattr(self, name)}, wanted > 0")
                for name in ("z_dim", "u_dim", "u_stride", "prior_dim", "prior_mixtures")
            ),
            *(
                (getattr(self, name) >= 0, f"{name}: found {getattr(self, name)}, wanted >= 0")
                for name in (
                    "z_capacity",
                    "z_free_bits",
                    "z_warmup_steps",
                    "u_capacity",
                    "u_free_bits",
                    "u_warmup_steps",
                    "u_beta",
                    "u_std_floor",
                    "u_adversary",
                )
            ),
            *(_in_unit(self, name) for name in ("warp", "prior_dropout")),
        )


@dataclass(frozen=True, kw_only=True)
class DecoderConfig:
    """Prenet, attention RNN, attention over the memory, decoder RNN, frames."""

    reduction_factor: int = 4  # R, mel frames per decoder step
    memory_dim: int = 144  # channels of the memory
    prenet_dim: int = 128  # first layer; the second has half
    prenet_dropout: float = 0.5  # [0, 1), also when decoding
    frame_dropout: float = 0.1  # [0, 1), share of fed-back frames set to zero in training
    attention_rnn_dim: int = 256
    decoder_rnn_dim: int = 256
    attention_dim: int = 64
    location_filters: int = 8
    location_kernel: int = 15  # memory steps, odd
    rate_bias: bool = True  # the known rate of memory steps per decoder step, as a score bias
    rate_bias_slots: float = 1.5  # initial width of the bias, memory steps; learned

    def __post_init__(self) -> None:
        _raise_if(
            "decoder",
            *(
                (getattr(self, name) > 0, f"{name}: found {getattr(self, name)}, wanted > 0")
                for name in (
                    "reduction_factor",
                    "memory_dim",
                    "prenet_dim",
                    "attention_rnn_dim",
                    "decoder_rnn_dim",
                    "attention_dim",
                    "location_filters",
                    "rate_bias_slots",
                )
            ),
            _odd(self, "location_kernel"),
            (self.memory_dim % 2 == 0, f"memory_dim: found {self.memory_dim}, wanted even"),
            *(_in_unit(self, name) for name in ("prenet_dropout", "frame_dropout")),
        )


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """What extraction keeps, and how utterances become batches."""

    trim_db: float | None = None  # dB below the peak that counts as silence at both ends; null off
    min_seconds: float = 0.35  # shorter utterances are skipped
    max_seconds: float = 20.0  # longer utterances are skipped
    batch_frames: int = 8000  # mel frames per batch over all processes, padding included
    batch_utterances: int = 32  # most utterances per batch
    num_workers: int = 0  # loader processes

    def __post_init__(self) -> None:
        _raise_if(
            "data",
            (
                self.trim_db is None or self.trim_db > 0,
                f"trim_db: found {self.trim_db}, wanted > 0 dB or null",
            ),
            (
                0 < self.min_seconds < self.max_seconds,
                f"min_seconds, max_seconds: found {self.min_seconds}, {self.max_seconds}, "
                f"wanted 0 < min_seconds < max_seconds",
            ),
            (self.batch_frames > 0, f"batch_frames: found {self.batch_frames}, wanted > 0"),
            (
                self.batch_utterances > 0,
                f"batch_utterances: found {self.batch_utterances}, wanted > 0",
            ),
            (self.num_workers >= 0, f"num_workers: found {self.num_workers}, wanted >= 0"),
        )


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Optimisation, and how often to look."""

    steps: int = 20000
    max_minutes: float | None = None  # wall clock; the schedule then follows time; null off
    learning_rate: float = 2e-3
    final_learning_rate: float = 5e-5  # at the end of the cosine
    warmup_steps: int = 200  # of the learning rate
    betas: tuple[float, float] = (0.9, 0.98)
    weight_decay: float = 0.01
    clip_grad_norm: float = 1.0
    mixed_precision: Literal["no", "bf16"] = "no"
    accumulate: int = 1  # batches per step
    seed: int = 1
    log_every: int = 50  # steps
    valid_every: int = 1000  # steps
    sample_every: int = 2000  # steps; audio, alignment and mel plots
    save_every: int = 1000  # steps
    keep_checkpoints: int = 2

    def __post_init__(self) -> None:
        _raise_if(
            "train",
            *(
                (getattr(self, name) > 0, f"{name}: found {getattr(self, name)}, wanted > 0")
                for name in (
                    "steps",
                    "learning_rate",
                    "clip_grad_norm",
                    "accumulate",
                    "log_every",
                    "valid_every",
                    "sample_every",
                    "save_every",
                    "keep_checkpoints",
                )
            ),
            (
                self.max_minutes is None or self.max_minutes > 0,
                f"max_minutes: found {self.max_minutes}, wanted > 0 or null",
            ),
            *(
                (getattr(self, name) >= 0, f"{name}: found {getattr(self, name)}, wanted >= 0")
                for name in ("warmup_steps", "weight_decay", "seed")
            ),
            (
                all(0 <= beta < 1 for beta in self.betas),
                f"betas: found {list(self.betas)}, wanted each in [0, 1)",
            ),
            (
                0 <= self.final_learning_rate <= self.learning_rate,
                f"final_learning_rate: found {self.final_learning_rate}, "
                f"wanted 0 to learning_rate = {self.learning_rate}",
            ),
        )


@dataclass(frozen=True, kw_only=True)
class VocoderConfig:
    """What renders the mel."""

    name: str = (
        "hifigan_universal"  # a name in conf/vocoder, a local path, a hub id, or griffin_lim
    )

    def __post_init__(self) -> None:
        _raise_if("vocoder", (bool(self.name.strip()), "name: found nothing"))


@dataclass(frozen=True, kw_only=True)
class Config:
    """All sections. `conf/vae_base.yaml` holds exactly these defaults."""

    feature: FeatureConfig = field(default_factory=FeatureConfig)
    encoder: EncoderConfig = field(default_factory=EncoderConfig)
    latent: LatentConfig = field(default_factory=LatentConfig)
    decoder: DecoderConfig = field(default_factory=DecoderConfig)
    data: DataConfig = field(default_factory=DataConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    vocoder: VocoderConfig = field(default_factory=VocoderConfig)

    @property
    def frames_per_slot(self) -> int:
        """Mel frames per memory step, 4 * u_stride."""
        return self.encoder.TIME_STRIDE * self.latent.u_stride

    @property
    def slots_per_step(self) -> float:
        """Memory steps per decoder step, the known rate of the alignment."""
        return self.decoder.reduction_factor / self.frames_per_slot


def _odd(section: object, name: str) -> tuple[bool, str]:
    value = getattr(section, name)
    return value > 0 and value % 2 == 1, f"{name}: found {value}, wanted odd and > 0"


def _in_unit(section: Any, name: str) -> tuple[bool, str]:
    value = getattr(section, name)
    return 0 <= value < 1, f"{name}: found {value}, wanted in [0, 1)"


def _raise_if(section: str, *checks: tuple[bool, str]) -> None:
    faults = [f"{section}.{message}" for ok, message in checks if not ok]
    if faults:
        raise ConfigError("\n".join(faults))
