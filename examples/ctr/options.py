"""Types of command line options."""

from __future__ import annotations

import argparse
import math

OPTIMIZERS = ("adagrad", "adam", "adamw", "ftrl", "lion", "momentum", "rmsprop", "sgd")


def positive_int(text: str) -> int:
    """A whole number from 1 on."""
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number from 1 on. Received: {text!r}.")
    return number


def seed(text: str) -> int:
    """A whole number from 0 on, which numpy and Keras both take."""
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
    """A finite number above 0."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"expected a number above 0. Received: {text!r}.")
    return number
