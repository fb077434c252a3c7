"""What a server counts, in the format of Prometheus."""

from collections.abc import MutableMapping
from typing import Any

import jax
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
COMPILED = "/jax/core/compile/backend_compile_duration"

_compilations = [0]


def _count(event: str, duration_secs: float, **_: str | int) -> None:
    _compilations[0] += event == COMPILED


jax.monitoring.register_event_duration_secs_listener(_count)


def compilations() -> int:
    """Programs that this process has compiled, or read from the cache of compiled programs, since it was started."""
    return _compilations[0]


class Metrics:
    """The counters of one server."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        r = self.registry
        self.requests = Counter("rac_jax_requests", "Requests.", ["route", "status"], registry=r)
        self.seconds = Histogram("rac_jax_request_seconds", "Seconds.", ["route"], registry=r, buckets=SECONDS)
        self.images = Counter("rac_jax_images", "Images that were answered.", registry=r)
        self.batches = Histogram(
            "rac_jax_batch_images", "Images in a batch.", registry=r, buckets=[2**power for power in range(9)]
        )
        self.edits = Counter("rac_jax_edits", "Edits of the memory.", registry=r)
        self.waiting = Gauge("rac_jax_waiting", "Images that wait for an answer.", registry=r)
        self.rows = Gauge("rac_jax_memory_rows", "Rows that can be neighbours.", registry=r)
        self.classes = Gauge("rac_jax_classes", "Classes that an answer may have.", registry=r)
        self.version = Gauge("rac_jax_memory_version", "Goes up with every edit.", registry=r)
        compiled = Gauge("rac_jax_compiled_programs", "Programs compiled or loaded since the start.", registry=r)
        compiled.set_function(compilations)

    def count(self, scope: MutableMapping[str, Any], status: int, seconds: float) -> None:
        """A request that has been answered, or was given up by its client (status 0)."""
        route = getattr(scope.get("route"), "path", "none")
        self.requests.labels(route, status).inc()
        self.seconds.labels(route).observe(seconds)

    def text(self) -> bytes:
        return generate_latest(self.registry)
