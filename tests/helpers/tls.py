"""Self-signed certificates."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest


def make_certificate(folder: Path, *options: str) -> tuple[Path, Path]:
    """A self-signed certificate of 127.0.0.1, and its key."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("needs the command openssl")
    folder.mkdir(exist_ok=True)
    certificate, key = folder / "cert.pem", folder / "key.pem"
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
    command = [openssl, "req", "-x509", *curve, "-days", "1", "-keyout", key, "-out", certificate, *names]
    subprocess.run([*command, *(options or ("-nodes",))], check=True, capture_output=True)
    return certificate, key
