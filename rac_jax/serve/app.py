"""The routes."""

import asyncio
import contextlib
import functools
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

from absl import logging
from fastapi import FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.staticfiles import StaticFiles

from rac_jax.data.decode import BadImage
from rac_jax.memory.manifest import BadMemory, Locked
from rac_jax.memory.view import MemoryView
from rac_jax.serve import pictures, schemas, uploads
from rac_jax.serve.batching import Busy
from rac_jax.serve.guard import Guard, Refused, Rules, client_of, headers_of
from rac_jax.serve.service import Service

STATIC = Path(__file__).parent / "static"
LONGEST = {"label": 200, "text": 2000, "source": 100}
MOST_FOUND = 1000
PICTURE: dict[int | str, dict[str, Any]] = {200: {"content": {"image/jpeg": {}}}}
ERRORS: dict[int | str, dict[str, Any]] = {
    number: {"model": schemas.Error, "description": text}
    for number, text in (
        (400, "The request cannot be used."),
        (401, "An edit without the token that it needs."),
        (403, "Not allowed."),
        (404, "There is no such row, source or picture."),
        (409, "The memory does not allow it."),
        (413, "Too many bytes."),
        (422, "A parameter has a value that it cannot have."),
        (423, "Another process is changing the memory."),
        (503, "Too many requests, or too many bytes of them, are waiting."),
        (507, "The memory cannot be written."),
    )
}


class Json(Response):
    """JSON as `predict --json` prints it."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return json.dumps(content, ensure_ascii=False).encode()


def create(service: Service, rules: Rules) -> Guard:
    """The application, behind its rules."""

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        following = asyncio.create_task(service.follow())
        yield
        following.cancel()

    app = FastAPI(
        title="rac_jax",
        version=_version(),
        description="Ask a run about images, and edit its memory.",
        docs_url=None,
        redoc_url=None,
        default_response_class=Json,
        lifespan=lifespan,
        responses=ERRORS,
    )
    _report_errors(app)
    _answer_routes(app, service)
    _edit_routes(app, service)
    _memory_routes(app, service)
    _server_routes(app, service, rules)
    app.mount("/static", StaticFiles(directory=STATIC), "static")
    return Guard(app, rules, service.metrics.count)


class Plain(APIRoute):
    """A route whose function takes the request and nothing else: FastAPI documents it, and does not parse for it."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        return self.endpoint


def _answer_routes(app: FastAPI, service: Service) -> None:
    async def predict(request: Request) -> Response:
        """Classify an image. A form with files gives a list, in which an unusable file has an `error`."""
        found, is_form = await uploads.read(request)
        return Json(await service.predict_many(found) if is_form else await service.predict(found[0]))

    app.router.add_api_route(
        "/api/predict",
        predict,
        methods=["POST"],
        responses={200: {"model": schemas.Answer | list[schemas.Answer | schemas.Unusable]}},
        openapi_extra=uploads.BODY,
        tags=["answers"],
        route_class_override=Plain,
    )

    @app.post(
        "/api/search", responses={200: {"model": list[schemas.Found]}}, openapi_extra=uploads.BODY, tags=["answers"]
    )
    async def search(request: Request, k: Annotated[int, Query(ge=1, le=MOST_FOUND)] = 10) -> Response:
        """The k rows of the memory that are nearest to an image."""
        found, _ = await uploads.read(request)
        return Json(await service.search(uploads.only(found), k))


def _edit_routes(app: FastAPI, service: Service) -> None:
    @app.post(
        "/api/rows",
        status_code=201,
        responses={201: {"model": schemas.Row}},
        openapi_extra=uploads.BODY,
        tags=["edits"],
    )
    async def add(request: Request, label: str = "", text: str = "", source: str = "") -> Response:
        """Add an image to a source of the memory, with a label, a text, or both. A class may be new.

        Without a `source`, it is added to `taught`, or to `taught 2` if a source of that name was added as a whole.
        """
        found, _ = await uploads.read(request)
        given = {"label": label, "text": text, "source": source}
        run, memory = service.now()
        known = {"label": run.classes.names, "source": [source["name"] for source in memory.sources] if memory else []}
        checked = {
            name: uploads.words(value, name, LONGEST[name], known.get(name, ()))
            for name, value in given.items()
            if value.strip()
        }
        if not ("label" in checked or "text" in checked):
            raise Refused(400, "a row needs a label or a text")
        image, words = uploads.only(found), (checked.get("label"), checked.get("text", ""), checked.get("source"))
        row = await service.teach(image, *words)
        return Json(row, 201)

    @app.delete("/api/rows/{row}", responses={200: {"model": schemas.Row}}, tags=["edits"])
    async def delete(row: int, image: str = "", keys: str = "") -> Response:
        """Remove a row. With `image`, its reference, it is found if its number has changed, and no other is removed.

        With `keys` of /api/run, from before the number was read, the number counts only as long as rows keep theirs.
        """
        return Json(await service.forget(row, image, keys))

    @app.post("/api/sources/{name:path}/{change}", responses={200: {"model": list[schemas.Source]}}, tags=["edits"])
    async def switch(name: str, change: str) -> Response:
        """Hide a source (`disable`), or show it again (`enable`)."""
        if change not in ("disable", "enable"):
            raise Refused(404, "a source is disabled or enabled")
        _known(service.memory, name)
        await service.edit(lambda: getattr(service.model, change)(name))
        return Json(service.memory.sources)

    @app.delete("/api/sources/{name:path}", responses={200: {"model": list[schemas.Source]}}, tags=["edits"])
    async def remove(name: str) -> Response:
        """Remove a source."""
        _known(service.memory, name)
        await service.edit(lambda: service.model.remove(name))
        return Json(service.memory.sources)


def _memory_routes(app: FastAPI, service: Service) -> None:
    examples = pictures.Examples(service.model)

    @app.get("/api/rows/{row}", responses={200: {"model": schemas.Row}}, tags=["memory"])
    async def row(row: int) -> Response:
        """A row's label, text, source and image reference."""
        return Json({"row": row, **_row(service.memory, row)})

    @app.get("/api/rows/{row}/thumbnail", responses=PICTURE, response_class=Response, tags=["memory"])
    async def thumbnail(row: int) -> Response:
        """A small JPEG of a row."""
        memory = service.memory
        _row(memory, row)
        return _picture(await service.in_thread(pictures.thumbnail, memory, row), f"row {row}")

    @app.get("/api/sources", responses={200: {"model": list[schemas.Source]}}, tags=["memory"])
    async def sources() -> Response:
        """The sources of the memory."""
        return Json(service.memory.sources)

    @app.get("/api/classes", responses={200: {"model": list[schemas.ClassRows]}}, tags=["memory"])
    async def classes() -> Response:
        """The classes that an answer may have, their rows in the enabled sources, and some of these."""
        return Json(await service.in_thread(_classes, service))

    @app.get("/api/examples", responses={200: {"model": schemas.Examples}}, tags=["examples"])
    async def some() -> Response:
        """Images to try."""
        return Json(await asyncio.to_thread(examples.some))

    @app.get("/api/examples/{number}", responses=PICTURE, response_class=Response, tags=["examples"])
    async def example(number: int, small: bool = False) -> Response:
        """An image to try, or a small copy of it."""
        return _picture(await asyncio.to_thread(examples.image, number, small), f"example {number}")


def _server_routes(app: FastAPI, service: Service, rules: Rules) -> None:
    @app.get("/health", responses={200: {"model": schemas.Health}}, tags=["server"])
    async def health() -> Response:
        """Whether it answers, and with which state of the memory."""
        _, memory = service.now()
        rows, version = (memory.rows, memory.version) if memory else (0, 0)
        return Json({"status": "ok", "rows": rows, "version": version, "waiting": service.waiting})

    @app.get("/metrics", response_class=Response, tags=["server"])
    async def metrics() -> Response:
        """Counters, in the format of Prometheus."""
        service.metrics.waiting.set(service.waiting)
        return Response(service.metrics.text(), media_type="text/plain; version=0.0.4")

    @app.get("/api/run", responses={200: {"model": schemas.Description}}, tags=["server"])
    async def run(request: Request) -> Response:
        """What is served, and whether this client may edit."""
        editable = service.has_memory and rules.editable(headers_of(request.scope), client_of(request.scope))
        return Json({**service.description(), "editable": editable, "most_bytes": rules.most_bytes})

    for path, name in (("/", "index.html"), ("/docs", "docs.html")):
        app.get(path, include_in_schema=False)(functools.partial(_file, name))


async def _file(name: str) -> Response:
    return FileResponse(STATIC / name)


def _picture(content: bytes | None, what: str) -> Response:
    if content is None:
        raise Refused(404, f"there is no picture of {what}")
    kind = "image/jpeg" if content.startswith(b"\xff\xd8") else "image/png"
    return Response(content, media_type=kind, headers={"cache-control": "private, max-age=600"})


def _row(memory: MemoryView, row: int) -> dict[str, Any]:
    if not memory.holds(row):
        raise Refused(404, f"there is no row {row}")
    return memory.row(row)


def _known(memory: MemoryView, source: str) -> None:
    if all(found["name"] != source for found in memory.sources):
        raise Refused(404, f"there is no source {source!r}")


def _classes(service: Service) -> list[dict[str, Any]]:
    run, memory = service.now()
    counts, examples = (memory.counts, memory.examples(pictures.EACH)) if memory else ({}, {})
    return [
        {
            "name": name,
            "rows": counts.get(name, 0),
            "trained": number < run.classes.trained,
            "examples": examples.get(name, []),
        }
        for number, name in enumerate(run.classes.names)
    ]


def _report_errors(app: FastAPI) -> None:
    """Every error is one sentence."""
    for kind, status in (
        (BadImage, 400),
        (Locked, 423),
        (BadMemory, 409),
        (ClientDisconnect, 499),  # the number that proxies log; nobody reads the answer
        (Busy, 503),
        (OSError, 507),
        (Exception, 500),
    ):
        app.exception_handler(kind)(functools.partial(_say, status))

    @app.exception_handler(Refused)
    async def refused(_: Request, error: Refused) -> Response:
        return Json({"error": str(error)}, error.status)

    @app.exception_handler(HTTPException)
    async def wrong(_: Request, error: HTTPException) -> Response:
        return Json({"error": str(error.detail).lower()}, error.status_code)

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        return Json({"error": f"{first['loc'][-1]}: {first['msg'].lower()}"}, 422)


async def _say(status: int, _: Request, error: Exception) -> Response:
    if status == 507:
        logging.error("%s", error)
        return Json({"error": "the memory cannot be written; the server's log says why"}, status)
    return Json({"error": "the server failed; its log says why" if status == 500 else str(error)}, status)


def _version() -> str:
    try:
        return metadata.version("rac_jax")
    except metadata.PackageNotFoundError:
        return "0"
