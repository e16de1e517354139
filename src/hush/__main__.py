"""``python -m hush``: what torchrun starts."""

from hush.cli.main import run

if __name__ == "__main__":
    run()
