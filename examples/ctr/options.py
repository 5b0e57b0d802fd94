"""Defines the command line options that several examples have, and their types."""

from __future__ import annotations

import argparse
import math
from pathlib import Path

OPTIMIZERS = ("adagrad", "adam", "adamw", "ftrl", "lion", "momentum", "rmsprop", "sgd")


def add_source(parser: argparse.ArgumentParser, samples: int) -> None:
    """Adds `--data` and `--samples`; without `--samples` its attribute is missing."""
    parser.add_argument(
        "--data", type=Path, metavar="PATH", help="Criteo or MovieLens file (default: generated)"
    )
    parser.add_argument(
        "--samples",
        type=positive_int,
        default=argparse.SUPPRESS,
        help=f"generated training rows (default: {samples})",
    )


def add_training(
    parser: argparse.ArgumentParser,
    epochs: int = 1,
    batch_size: int = 2048,
    optimizer: str = "adam",
    learning_rate: float = 0.003,
) -> None:
    """Adds the options of a training run, with these defaults."""
    add = parser.add_argument
    add("--epochs", type=positive_int, default=epochs, help="passes over the training rows")
    add("--batch-size", type=positive_int, default=batch_size, help="rows a step, of all workers")
    add("--dim", type=positive_int, default=16, help="length of an embedding")
    add("--optimizer", choices=OPTIMIZERS, default=optimizer, help="trains MLPs and embedding")
    add("--learning-rate", type=positive_float, default=learning_rate, help="of the optimizer")


def positive_int(text: str) -> int:
    """Reads a whole number from 1 on."""
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number from 1 on. Received: {text!r}.")
    return number


def keras_file(text: str) -> Path:
    """Reads the path of a `.keras` file that can be written."""
    path = Path(text)
    if path.suffix != ".keras" or not path.parent.is_dir():
        raise argparse.ArgumentTypeError(
            f"expected a name that ends in .keras, in a folder that is there. Received: {text!r}."
        )
    return path


def seed(text: str) -> int:
    """Reads a whole number from 0 on, which numpy and Keras both take."""
    try:
        number = int(text)
    except ValueError:
        number = -1
    if not 0 <= number < 2**31:
        raise argparse.ArgumentTypeError(
            f"expected a whole number from 0 to 2147483647. Received: {text!r}."
        )
    return number


def positive_float(text: str) -> float:
    """Reads a finite number above 0."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"expected a number above 0. Received: {text!r}.")
    return number
