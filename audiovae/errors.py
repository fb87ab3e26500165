"""Errors a user can cause. A message says what, where, found vs wanted, and what to run."""


class AudioVAEError(ValueError):
    """Base of all errors that are the user's to fix; the CLI prints it without a traceback."""

    exit_code = 1


class ConfigError(AudioVAEError):
    """A configuration file, key or value, or a command line, that cannot be used."""

    exit_code = 2


class DataDirError(AudioVAEError):
    """A data dir, an audio file or a feature archive that cannot be used."""

    exit_code = 3


class FeatureMismatchError(AudioVAEError):
    """Two mel contracts that meet and differ."""

    exit_code = 3


class CheckpointError(AudioVAEError):
    """A checkpoint or a model folder that is missing, damaged or of another shape."""

    exit_code = 4


class VocoderError(AudioVAEError):
    """Vocoder weights that are missing, damaged or of another shape."""

    exit_code = 4


class ResourceError(AudioVAEError):
    """Disk, memory or another running process stands in the way."""

    exit_code = 5
