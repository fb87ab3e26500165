"""Vocoders: log-mel to waveform, each with the mel contract it was made for."""

from audiovae.vocoder.base import Vocoder
from audiovae.vocoder.griffin_lim import GriffinLim
from audiovae.vocoder.hifigan import HiFiGAN
from audiovae.vocoder.loading import load_vocoder

__all__ = ["GriffinLim", "HiFiGAN", "Vocoder", "load_vocoder"]
