"""What captured errors of the engine are taken for."""

from __future__ import annotations

import http.server
import threading

import pytest

from air.errors import BoxStartError, MissingError
from air.sandbox.docker import engine
from air.sandbox.docker.engine_errors import (
    EngineAwayError,
    TransientStartError,
    classify,
    no_engine,
    refuse_encrypted,
    start_error,
)

FETCH = "Error while fetching server API version: "
CAPTURED = [
    (None, FETCH + "('Connection aborted.', FileNotFoundError(2, 'No such file or directory'))",
     "missing-engine"),
    (None, FETCH + "('Connection aborted.', PermissionError(13, 'Permission denied'))",
     "missing-engine"),
    (None, FETCH + "('Connection aborted.', ConnectionRefusedError(111, 'Connection refused'))",
     "missing-engine"),
    (None, "HTTPConnectionPool(host='localhost', port=None): Read timed out. (read timeout=60)",
     "transient"),
    (None, "('Connection aborted.', RemoteDisconnected('Remote end closed connection'))",
     "transient"),
    (404, "No such image: air-nothing:latest", "missing-image"),
    (404, "No such container: 0123456789ab", "transient"),
    (400, "Minimum memory limit allowed is 4MB", "final"),
    (400, "Range of CPUs is from 0.01 to 2.00, as there are only 2 CPUs available", "final"),
    (400, 'OCI runtime create failed: container_linux.go:380: starting container process caused: '
          'exec: "python3": executable file not found in $PATH: unknown', "final"),
    (500, "crun: executable file `python3` not found in $PATH: No such file or directory: OCI runtime "
          "attempted to invoke a command that was not found", "final"),
    (500, "crun: the requested cgroup controller `cpu` is not available: OCI runtime error", "final"),
    (500, "failed to create shim: OCI runtime create failed: runc did not terminate successfully: "
          "fork/exec: resource temporarily unavailable: unknown", "transient"),
    (500, "error creating overlay mount to /var/lib/docker/overlay2/x: no space left on device",
     "final"),
    (500, "error while creating mount source path: device or resource busy", "transient"),
    (500, 'could not select device driver "nvidia" with capabilities: [[gpu compute utility]]',
     "missing-gpus"),
    (409, 'Conflict. The container name "/air-x" is already in use', "transient"),
]  # fmt: skip


@pytest.mark.parametrize(("status", "text", "kind"), CAPTURED)
def test_classify(status: int | None, text: str, kind: str) -> None:
    assert classify(status, text) == kind


@pytest.mark.parametrize(("status", "text", "kind"), CAPTURED)
def test_every_kind_has_one_error_with_one_line(status: int | None, text: str, kind: str) -> None:
    error = start_error(status, text, "air-base")
    wanted = {
        "missing-engine": EngineAwayError,
        "missing-image": MissingError,
        "missing-gpus": MissingError,
        "transient": TransientStartError,
        "final": BoxStartError,
    }
    assert type(error) is wanted[kind]
    assert "\n" not in str(error)
    assert kind != "missing-image" or "air setup" in str(error)


def test_an_engine_that_never_answered_is_the_users_to_mend() -> None:
    error = no_engine(CAPTURED[0][1])
    assert str(error) == "no Docker engine answers: its socket is not there — run `air setup`"


def test_a_runtime_without_controllers_has_a_remedy() -> None:
    text = "crun: the requested cgroup controller `cpu` is not available: OCI runtime error"
    assert "let the Docker engine's user have the controllers" in str(
        start_error(500, text, "air-base")
    )


@pytest.mark.parametrize(
    ("host", "tls", "kind"),
    [
        ("ssh://me@far", False, "ssh"),
        ("tcp://far:2376", True, "TLS"),
        ("https://far:2376", False, "TLS"),
        ("tcp://far:2375", False, ""),
        ("unix:///run/docker.sock", True, ""),
        ("", False, ""),
    ],
)
def test_an_engine_behind_an_encrypted_connection_is_refused_by_name(
    host: str, tls: bool, kind: str
) -> None:
    if not kind:
        refuse_encrypted(host, tls=tls)
        return
    with pytest.raises(MissingError, match=f"DOCKER_HOST={host}: .* through {kind} — .*ssh -NL"):
        refuse_encrypted(host, tls=tls)


class _TlsPort(http.server.BaseHTTPRequestHandler):
    """Answers plain HTTP as Docker does on its port for TLS."""

    def do_GET(self) -> None:
        body = b"Client sent an HTTP request to an HTTPS server.\n"
        self.send_response(400)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def test_an_engine_that_wants_tls_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    with http.server.HTTPServer(("127.0.0.1", 0), _TlsPort) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        host = f"tcp://127.0.0.1:{server.server_port}"
        monkeypatch.setenv("DOCKER_HOST", host)
        with pytest.raises(MissingError, match=f"DOCKER_HOST={host}: .* through TLS — .*ssh -NL"):
            engine.client()
        server.shutdown()


def test_no_engine_names_the_docker_host_that_the_user_set() -> None:
    text = "ConnectionRefusedError(111, 'Connection refused')"
    assert str(no_engine(text, "tcp://far:1")).startswith(
        "DOCKER_HOST=tcp://far:1: no Docker engine"
    )
    assert str(no_engine(text)).endswith("run `air setup`")
