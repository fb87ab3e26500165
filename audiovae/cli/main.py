"""`audiovae VERB ...`: one verb a recipe stage."""

from __future__ import annotations

import logging
import sys

import typer

from audiovae.cli import data, model, prepare
from audiovae.errors import AudioVAEError, ResourceError

app = typer.Typer(
    name="audiovae",
    help="A sequence VAE with attention for speech and audio.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
prepare.register(app)
data.register(app)
model.register(app)


def run() -> None:
    """Entry point: user errors end with one message and their exit code, not a traceback."""
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    try:
        app()
    except AudioVAEError as error:
        sys.stderr.write(f"audiovae: {error}\n")
        raise SystemExit(error.exit_code) from None
    except (OSError, MemoryError) as error:  # disk full, no permission, a file where a folder goes
        sys.stderr.write(f"audiovae: {str(error) or 'out of memory'}\n")
        raise SystemExit(ResourceError.exit_code) from None
    except RuntimeError as error:
        if not any(words in str(error) for words in ("out of memory", "can't allocate memory")):
            raise
        sys.stderr.write(f"audiovae: {str(error).splitlines()[0]}\n")  # torch's, of any device
        raise SystemExit(ResourceError.exit_code) from None
