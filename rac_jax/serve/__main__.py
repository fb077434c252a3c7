"""Serve a trained run: python -m rac_jax.serve --workdir=DIR [--port=8000]

Opens a page and an API (its description: /docs) at http://127.0.0.1:8000. Edits of the memory from this machine need
nothing further; those from other machines (--host=0.0.0.0) or through a proxy need the token that is printed. Behind a
proxy, use --require_token.
"""

import errno
import ipaddress
import os
import resource
import secrets
import socket
import urllib.parse
from collections.abc import Sequence
from pathlib import Path

from absl import app, flags, logging

import rac_jax
from rac_jax.runtime import commands, heap
from rac_jax.runtime.interruption import Interrupted
from rac_jax.serve.guard import Rules

TOKEN = "RAC_JAX_TOKEN"  # an environment variable, so that it is in no list of processes


def main(argv: Sequence[str]) -> None:
    given = flags.FLAGS
    if not given.workdir or len(argv) > 1:
        raise app.UsageError(f"name a --workdir\n\n{__doc__}")
    try:
        import uvicorn

        from rac_jax.serve import app as application
        from rac_jax.serve.protocol import Protocol
        from rac_jax.serve.service import Service
    except ImportError as error:
        raise RuntimeError(f"serving needs further packages ({error.name}): pip install 'rac_jax[serve]'") from error

    token, listening = _token(), _listen(given.host, given.port)  # before anything slow
    _allow_connections()
    heap.use_one()
    fields = {"weights_dir": given.weights_dir} if given.weights_dir else {}
    fields |= {"memory.dir": given.memory} if given.memory else {}
    model = rac_jax.load(Path(given.workdir), step=given.step, **fields)
    writable = _is_writable(model)
    if not writable:
        print("the memory cannot be written here: no edits", flush=True)
    rules = Rules(
        token=token,
        names=tuple(name.lower() for name in given.names),
        most_bytes=round(1e6 * given.most_megabytes),
        read_only=given.read_only or not writable,
        require_token=given.require_token,
    )
    sets = model.sets(given.coverage) if given.coverage is not None else None
    service = Service(model, most_batch=given.batch, most_pixels=round(1e6 * given.most_megapixels), sets=sets)
    server = uvicorn.Server(
        uvicorn.Config(
            application.create(service, rules),
            http=Protocol,
            ws="none",
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,  # anybody can write them
            timeout_keep_alive=30,
            timeout_graceful_shutdown=10,
        )
    )
    _say_where(given.host, given.port, rules)
    try:
        server.run(sockets=[listening])
    except (KeyboardInterrupt, Interrupted):  # how a server ends
        pass
    finally:
        service.close()


def _token() -> str:
    """The token that is given, or a new one. It has only characters that every client sends in a header alike."""
    token = os.environ.get(TOKEN, "").strip()
    if not (token.isascii() and token.isprintable()):
        raise ValueError(f"{TOKEN} has a character that is not printable ASCII; use letters, digits and signs")
    return token or secrets.token_urlsafe(24)


def _is_writable(model: rac_jax.Model) -> bool:
    """Whether edits of the memory could be saved; True without a memory, which has nothing to edit."""
    retriever = model.live.answering.run.retriever
    return retriever is None or os.access(retriever.memory.folder, os.W_OK)


def _listen(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        reason = (error.strerror or str(error)).partition(" (while")[0]  # Python adds what it attempted
        flag = "--port" if error.errno in (errno.EADDRINUSE, errno.EACCES) else "--host"
        raise OSError(f"cannot listen at {host}, port {port} ({reason}); choose another {flag}") from error


def _allow_connections() -> None:
    """As many open files as the system allows: each connection is one, and guard.py counts requests alone."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _say_where(host: str, port: int, rules: Rules) -> None:
    try:
        is_local = ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_local = host == "localhost"
    address = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    print(f"serving at {address} (Ctrl-C ends it)", flush=True)
    if rules.read_only:
        return
    who = "every edit" if rules.require_token else "an edit from another machine or through a proxy"
    token = urllib.parse.quote(rules.token, safe="")
    print(f"{who} needs the token: open {address}/#token={token}", flush=True)
    if not is_local:
        logging.warning(
            "the connection is not encrypted; put a proxy with TLS in front of it on a network you do not trust"
        )


def _define_flags() -> None:
    flags.DEFINE_string("workdir", None, "The run's folder.")
    flags.DEFINE_integer("step", None, "The checkpoint; default the newest.")
    flags.DEFINE_string("memory", None, "A memory to use instead of the run's own.")
    flags.DEFINE_string("weights_dir", None, "Where E's weights lie; default as the run's config says.")
    flags.DEFINE_string("host", "127.0.0.1", "The address to listen at; 0.0.0.0 for all of this machine's.")
    flags.DEFINE_integer("port", 8000, "The port to listen at.", lower_bound=1, upper_bound=65535)
    flags.DEFINE_list("names", [], "Names of this server, beside its addresses, that requests may use.")
    flags.DEFINE_float("coverage", None, "Also a set of labels that holds the true one this often, as 0.9.")
    flags.DEFINE_bool("read_only", False, "Do not edit the memory.")
    flags.DEFINE_bool("require_token", False, "Edits from this machine need the token, too: behind a proxy.")
    flags.DEFINE_integer("batch", 32, "Images that are answered at once, at most.", lower_bound=1)
    flags.DEFINE_float("most_megabytes", 20.0, "Megabytes of a request, at most.", lower_bound=0.001)
    flags.DEFINE_float("most_megapixels", 50.0, "Megapixels of an image, at most.", lower_bound=0.001)


if __name__ == "__main__":
    _define_flags()
    commands.run(main)
