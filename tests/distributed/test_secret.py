"""The secret of a job: where it comes from, and what cannot be one."""

from __future__ import annotations

import base64

import pytest

from sok_embed.communicators.secret import derived, job_secret, new_secret

BYTES = bytes(range(200, 232))


@pytest.mark.parametrize(
    "text",
    [
        BYTES.hex(),
        BYTES.hex().upper(),
        f"  {BYTES.hex()}\n",
        base64.b64encode(BYTES).decode(),
        base64.b64encode(BYTES).decode().rstrip("="),
        base64.urlsafe_b64encode(BYTES).decode(),
    ],
    ids=["hex", "capitals", "blanks", "base64", "without padding", "of URLs"],
)
def test_a_secret_is_read_in_the_forms_that_tools_print(text: str) -> None:
    assert job_secret({"SOK_EMBED_SECRET": text}) == BYTES


def test_horovods_is_taken_where_there_is_no_other() -> None:
    of_horovod = {"_HOROVOD_SECRET_KEY": base64.b64encode(BYTES).decode()}
    assert job_secret(of_horovod) == BYTES
    assert job_secret({**of_horovod, "SOK_EMBED_SECRET": BYTES[::-1].hex()}) == BYTES[::-1]
    assert job_secret({**of_horovod, "SOK_EMBED_SECRET": " "}) == BYTES


def test_nothing_is_made_of_what_others_can_guess() -> None:
    ids = ["SLURM_JOB_ID", "SLURM_STEP_ID", "PMIX_NAMESPACE", "PMI_JOBID", "TORCHELASTIC_RUN_ID"]
    place = ["MASTER_ADDR", "MASTER_PORT", "OMPI_MCA_orte_precondition_transports"]
    assert job_secret({name: BYTES.hex() for name in (*ids, *place)}) is None
    assert job_secret({}) is None


@pytest.mark.parametrize(
    "text",
    [
        *("secret", "changemechangeme", "x", BYTES[:15].hex(), BYTES[:15].hex() + "a"),
        *("00" * 32, "deadbeef" * 8, "ä" * 40, "a sentence of several words and blanks"),
        base64.b64encode(BYTES[:15]).decode(),
    ],
)
def test_what_cannot_be_random_bytes_is_refused_and_not_shown(text: str) -> None:
    with pytest.raises(ValueError, match="SOK_EMBED_SECRET to be at least 16 random") as refusal:
        job_secret({"SOK_EMBED_SECRET": text})
    assert f"Received: {len(text)} characters, which are not shown" in str(refusal.value)
    if len(text) > 1:
        assert text not in str(refusal.value)


def test_new_secrets_differ_and_are_secrets() -> None:
    secrets = {new_secret() for _ in range(10)}
    assert len(secrets) == 10
    for text in secrets:
        assert job_secret({"SOK_EMBED_SECRET": text}) == bytes.fromhex(text)


def test_a_key_for_one_purpose_is_not_that_for_another() -> None:
    assert derived(BYTES, b"mesh") == derived(BYTES, b"mesh")
    assert len({derived(BYTES, b"mesh"), derived(BYTES, b"other"), BYTES}) == 3
