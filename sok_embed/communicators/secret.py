"""The secret of a job, by which its workers recognize each other."""

from __future__ import annotations

import base64
import hmac
import os
import re
import secrets
from collections.abc import Mapping

# The secret of a job, alike for all of its workers. `sok-embed run` sets this variable.
SECRET_VARIABLE = "SOK_EMBED_SECRET"
# Horovod on Spark hands a random key of each job to its workers by this variable.
_HOROVOD_VARIABLE = "_HOROVOD_SECRET_KEY"
HOW_TO_SET = (
    f"Set {SECRET_VARIABLE}, alike for all workers of the job and for no other job, to what "
    "`openssl rand -hex 32` prints."
)
_LEAST_BYTES = 16
# Random bytes have at least so many different values, except one secret in 10^9.
_LEAST_DIFFERENT = 8


def new_secret() -> str:
    """Returns a secret for one job: 32 random bytes in hexadecimal digits."""
    return secrets.token_hex(32)


def job_secret(environ: Mapping[str, str] = os.environ) -> bytes | None:
    """Reads the secret of the job from the environment.

    Ids of jobs, ports and hosts are not secrets, so nothing is made from them.

    Returns:
        The bytes of `SOK_EMBED_SECRET`, else those that Horovod on Spark has set; `None` without
        either.

    Raises:
        ValueError: For a value that cannot be 16 random bytes. The message does not show it.
    """
    for variable in (SECRET_VARIABLE, _HOROVOD_VARIABLE):
        text = environ.get(variable, "").strip()
        if text:
            return _decoded(variable, text)
    return None


def derived(secret: bytes, purpose: bytes) -> bytes:
    """Returns a key of 32 bytes for one purpose, from which the secret cannot be found."""
    return hmac.digest(secret, b"sok-embed " + purpose, "sha256")


def _decoded(variable: str, text: str) -> bytes:
    try:
        if re.fullmatch("[0-9a-fA-F]+", text):
            decoded = bytes.fromhex(text)
        else:
            # Both alphabets of base64, with its padding or without.
            standard = text.replace("-", "+").replace("_", "/").rstrip("=")
            decoded = base64.b64decode(standard + "=" * (-len(standard) % 4), validate=True)
    except ValueError:
        decoded = b""
    if len(decoded) < _LEAST_BYTES or len(set(decoded)) < _LEAST_DIFFERENT:
        raise ValueError(
            f"Expected {variable} to be at least {_LEAST_BYTES} random bytes in hexadecimal digits "
            f"or base64. Received: {len(text)} characters, which are not shown, that are not. "
            f"{HOW_TO_SET}"
        )
    return decoded
