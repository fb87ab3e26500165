"""python benchmarks/decoder.py: a training step of the decoder, ours and torchaudio's Tacotron 2.

Forward and backward, Tacotron 2 sizes, batch 16, memory 100, 400 steps, float32, the same threads
and no rate bias, so that our attention looks at all slots as theirs does; interleaved, medians.
With the rate bias on, as the models here train, ours is shown too.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import numpy as np
import torch
from torchaudio.models.tacotron2 import _Decoder as Tacotron2Decoder

from audiovae.config import DecoderConfig
from audiovae.models.decoder import Decoder

BATCH, SLOTS, STEPS, MELS, MEMORY, Z = 16, 100, 400, 80, 512, 16
REPEATS = 3


def theirs() -> Callable[[], torch.Tensor]:
    decoder = Tacotron2Decoder(
        n_mels=MELS, n_frames_per_step=1, encoder_embedding_dim=MEMORY, decoder_rnn_dim=1024,
        decoder_max_step=STEPS, decoder_dropout=0.1, decoder_early_stopping=True,
        attention_rnn_dim=1024, attention_hidden_dim=128, attention_location_n_filter=32,
        attention_location_kernel_size=31, attention_dropout=0.1, prenet_dim=256,
        gate_threshold=0.5,
    ).train()  # fmt: skip
    mel, memory = torch.randn(BATCH, MELS, STEPS), torch.randn(BATCH, SLOTS, MEMORY)
    lengths = torch.full((BATCH,), SLOTS)

    def step() -> torch.Tensor:
        frames, end, _ = decoder(memory, mel, lengths)
        return frames.abs().mean() + end.abs().mean()

    return step


def ours(*, rate_bias: bool) -> Callable[[], torch.Tensor]:
    config = DecoderConfig(
        reduction_factor=1, memory_dim=MEMORY, prenet_dim=512, attention_rnn_dim=1024,
        decoder_rnn_dim=1024, attention_dim=128, location_filters=32, location_kernel=31,
        rate_bias=rate_bias,
    )  # fmt: skip
    decoder = Decoder(MELS, Z, config, SLOTS / STEPS).train()
    mel, memory = torch.randn(BATCH, STEPS, MELS), torch.randn(BATCH, SLOTS, MEMORY)
    lengths, slots = torch.full((BATCH,), STEPS), torch.full((BATCH,), SLOTS)
    z = torch.randn(BATCH, Z)

    def step() -> torch.Tensor:
        out = decoder(mel, lengths, memory, slots, z)
        return out.frames.abs().mean() + out.end.abs().mean()

    return step


def main() -> None:
    torch.manual_seed(0)
    steps = {
        "torchaudio": theirs(), "audiovae, no rate bias": ours(rate_bias=False),
        "audiovae": ours(rate_bias=True),
    }  # fmt: skip
    times: dict[str, list[float]] = {name: [] for name in steps}
    for repeat in range(REPEATS + 1):
        for name, step in steps.items():
            start = time.perf_counter()
            step().backward()
            if repeat:  # the first is to warm up
                times[name].append(time.perf_counter() - start)
    medians = {name: float(np.median(values)) for name, values in times.items()}
    for name, median in medians.items():
        ratio = medians["torchaudio"] / median
        sys.stdout.write(f"{name:24} {median:6.2f} s a step   {ratio:.2f} x torchaudio\n")


if __name__ == "__main__":
    main()
