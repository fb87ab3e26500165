"""Vocoder: what renders a log-mel, and the mel contract it was made for."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from audiovae.config import FeatureConfig
from audiovae.errors import VocoderError


class Vocoder(nn.Module):
    """Log-mel in, waveform out, without gradients. Subclasses say how to render one padded batch.

    Attributes:
        name: for messages and manifests.
        feature: the mel contract; compare it with `feature.require_same` before rendering.
    """

    def __init__(self, name: str, feature: FeatureConfig) -> None:
        super().__init__()
        self.name = name
        self.feature = feature
        self.eval()

    @torch.no_grad()
    def forward(self, mel: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Render log-mels; T frames give T * hop_length samples.

        An utterance in a batch sounds as it does alone: what pads it never reaches its samples.

        Args:
            mel: with shape (B, T, n_mels), in the log of `feature`.
            lengths: valid frames of each utterance, with shape (B,); None is T for all.
        Returns:
            float32 wave with shape (B, T * hop_length), in [-1, 1], zero after each utterance.
        Raises:
            VocoderError: a shape or a length that cannot be.
        """
        if mel.dim() != 3 or mel.size(1) < 1 or mel.size(2) != self.feature.n_mels:
            raise VocoderError(
                f"vocoder {self.name}: found mel with shape {tuple(mel.shape)}, "
                f"wanted (batch, frames >= 1, n_mels = {self.feature.n_mels})"
            )
        frames = [mel.size(1)] * mel.size(0) if lengths is None else [int(n) for n in lengths]
        if len(frames) != mel.size(0) or not all(1 <= n <= mel.size(1) for n in frames):
            raise VocoderError(
                f"vocoder {self.name}: found lengths {frames}, "
                f"wanted {mel.size(0)} from 1 to {mel.size(1)} frames"
            )
        return self._render(mel.float(), frames)

    def _render(self, mel: Tensor, frames: list[int]) -> Tensor:
        raise NotImplementedError

    def _render_each(self, mel: Tensor, frames: list[int]) -> Tensor:
        """Render the utterances one by one, each without its padding."""
        wave = mel.new_zeros(mel.size(0), mel.size(1) * self.feature.hop_length)
        for row, n in enumerate(frames):
            wave[row, : n * self.feature.hop_length] = self._render(mel[row : row + 1, :n], [n])[0]
        return wave
