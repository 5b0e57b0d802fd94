"""Replicas of Ray Serve answer as the server does."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from limits import HANG_S
from served_folder import assert_answers, expected_of, instances_of, make_model

from sok_embed.serving import export

pytest.importorskip("ray.serve", reason="Ray Serve is not installed")


@pytest.mark.long
def test_replicas_of_ray_serve_answer_both_protocols(tmp_path):
    model = make_model()
    export(model, tmp_path / "served")
    given = instances_of(1, 3)
    request = tmp_path / "request.json"
    request.write_text(json.dumps({"instances": given}))
    script = Path(__file__).with_name("replicas_on_ray.py")
    command = [sys.executable, str(script), str(tmp_path / "served"), str(request)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S)
    assert done.returncode == 0, done.stderr[-4000:]
    answers = re.findall("^ANSWER (.*)$", done.stdout, re.MULTILINE)
    assert len(answers) == 2, done.stdout
    for answer in answers:
        assert_answers(json.loads(answer)["predictions"], expected_of(model, given))


def test_replicas_do_not_listen_to_grpc():
    from sok_embed.ray.serving import deployment

    with pytest.raises(ValueError, match="Expected no grpc_address"):
        deployment("served", grpc_address="127.0.0.1:1")
