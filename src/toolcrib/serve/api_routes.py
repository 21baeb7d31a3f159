"""What a route of toolcrib's own API declares, for the guard and for OpenAPI. The routes are in the `*_api` modules."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, compile_path

from toolcrib.core.types import JsonObject
from toolcrib.serve.tokens import TokenScope
from toolcrib.version import __version__

MAX_ROWS = 200

T = TypeVar("T")
Handler = Callable[[Request], Awaitable[Response]]
_PARAMETER = re.compile(r"{(\w+)(?::\w+)?}")


class QueryParameter(msgspec.Struct, frozen=True):
    """A parameter in the query of a URL."""

    name: str
    description: str
    kind: Literal["string", "integer", "boolean"] = "string"
    is_required: bool = False


LIMIT = QueryParameter("limit", f"How many at most; no more than {MAX_ROWS}.", "integer")
OFFSET = QueryParameter("offset", "How many to skip.", "integer")


class ApiRoute(msgspec.Struct, frozen=True, kw_only=True):
    """One operation."""

    method: Literal["GET", "POST", "PUT", "PATCH", "DELETE"]
    path: str
    handler: Handler
    summary: str
    scope: TokenScope = "chat"
    body: type[Any] | None = None
    query: tuple[QueryParameter, ...] = ()
    statuses: tuple[int, ...] = (200,)
    """The statuses of success."""
    media_type: str = "application/json"

    @property
    def operation_id(self) -> str:
        return f"{self.method.lower()}_{re.sub(r'[^a-z0-9]+', '_', self.path.lower()).strip('_')}"

    @property
    def public_path(self) -> str:
        """The path without the kinds of its parameters."""
        return _PARAMETER.sub(r"{\1}", self.path)

    def route(self) -> Route:
        return Route(self.path, self.handler, methods=[self.method])


class RouteScopes:
    """Which scope a request needs."""

    def __init__(self, routes: Iterable[ApiRoute], others: Mapping[str, TokenScope]) -> None:
        """`others` are paths that are no part of our own API, such as that of MCP."""
        self._rows = [(one.method, compile_path(one.path)[0], one.scope) for one in routes if one.scope != "chat"]
        self._others = others

    def __call__(self, method: str, path: str) -> TokenScope:
        if path in self._others:
            return self._others[path]
        method = "GET" if method == "HEAD" else method
        found = (scope for wanted, pattern, scope in self._rows if wanted == method and pattern.match(path))
        return next(found, "chat")


def openapi(routes: Sequence[ApiRoute]) -> JsonObject:
    """The OpenAPI document."""
    bodies = [route.body for route in routes if route.body is not None]
    schemas, components = msgspec.json.schema_components(bodies, ref_template="#/components/schemas/{name}")
    by_body = dict(zip(bodies, schemas, strict=True))
    paths: dict[str, JsonObject] = {}
    for route in routes:
        paths.setdefault(route.public_path, {})[route.method.lower()] = _operation(route, by_body)
    error = {"type": "object", "properties": {"error": {"type": "string"}}, "required": ["error"]}
    return {
        "openapi": "3.1.0",
        "info": {"title": "toolcrib", "version": __version__, "description": "The native API of `toolcrib serve`."},
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": {**components, "Error": error},
        },
    }


def _operation(route: ApiRoute, schemas: dict[type[Any], JsonObject]) -> JsonObject:
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for name in _PARAMETER.findall(route.path)
    ]
    parameters += [
        {
            "name": one.name,
            "in": "query",
            "required": one.is_required,
            "description": one.description,
            "schema": {"type": one.kind, **({"minimum": 0} if one.kind == "integer" else {})},
        }
        for one in route.query
    ]
    wrong = {"description": "What is wrong.", "content": {"application/json": {"schema": _ref("Error")}}}
    done = {"description": "Done.", "content": {route.media_type: {"schema": {}}}}
    found: JsonObject = {
        "operationId": route.operation_id,
        "summary": route.summary,
        "description": f"Needs the scope `{route.scope}`.",
        "parameters": parameters,
        "responses": {**{str(code): {"description": "Done."} if code == 204 else done for code in route.statuses},
                      "4XX": wrong, "5XX": wrong},
    }  # fmt: skip
    if route.body is not None:
        content = {"application/json": {"schema": schemas[route.body]}}
        found["requestBody"] = {"required": True, "content": content}
    return found


def _ref(name: str) -> JsonObject:
    return {"$ref": f"#/components/schemas/{name}"}


def openapi_route(routes: Sequence[ApiRoute]) -> ApiRoute:
    """The route that serves the document, which lists itself, too."""

    async def document(_: Request) -> Response:
        return JSONResponse(openapi([*routes, own]))

    own = ApiRoute(method="GET", path="/api/openapi.json", handler=document, summary="This document.")
    return own


# What handlers read from a request


async def body_of(request: Request, kind: type[T]) -> T:
    return msgspec.json.decode(await request.body(), type=kind)


def number_of(request: Request, name: str, default: int) -> int:
    text = request.query_params.get(name, "")
    if not text:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise msgspec.ValidationError(f"{name!r} must be a whole number")
    return int(text)


def limit_of(request: Request, default: int = 50) -> int:
    return min(number_of(request, "limit", default), MAX_ROWS)


def text_of(request: Request, name: str) -> str:
    """A parameter of the query that must be there."""
    text = request.query_params.get(name, "").strip()
    if not text:
        raise msgspec.ValidationError(f"the parameter {name!r} is missing")
    return text
