"""`python -m audiovae`, so that `accelerate launch -m audiovae train ...` works."""

from audiovae.cli.main import run

if __name__ == "__main__":
    run()
