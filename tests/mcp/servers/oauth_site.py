"""An MCP server that wants a login, and the server where one logs in: `oauth_site.py MCP_PORT LOGIN_PORT`.

`POST /admin` of the login server changes how both behave; `GET /admin` tells what they saw.
"""

import asyncio
import base64
import hashlib
import json
import secrets
import sys
import time
from urllib.parse import urlencode

import mcp_types as types
import uvicorn
from mcp.server.lowlevel import Server
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

MCP_PORT, LOGIN_PORT = int(sys.argv[1]), int(sys.argv[2])
SITE, ISSUER = f"http://127.0.0.1:{MCP_PORT}", f"http://127.0.0.1:{LOGIN_PORT}"
RESOURCE = f"{SITE}/mcp"
SET = {
    "lifetime": 3600, "renew_delay": 0.0, "token_status": 0, "denies": False, "asks": True, "revocable": True,
    "registers": True, "iss": ISSUER, "challenge": "", "metadata": {},
}  # fmt: skip
SAW = {"authorized": 0, "renewed": 0, "registered": 0, "reused": 0, "revoked": 0, "bare": 0}
SAW |= {"caught": [], "scopes": []}
AT_FIRST = json.dumps([SET, SAW])
KNOWN = {"client_id": "known", "client_secret": "known-secret-value", "redirect_uris": None}
CLIENTS = {"known": KNOWN}
CODES: dict[str, dict] = {}
ACCESS: dict[str, dict] = {}
RENEW: dict[str, dict] = {}


# The login server


async def metadata(request):
    found = {
        "issuer": ISSUER, "authorization_endpoint": f"{ISSUER}/authorize", "token_endpoint": f"{ISSUER}/token",
        "scopes_supported": ["read", "admin"], "code_challenge_methods_supported": ["S256"],
        "response_types_supported": ["code"], "authorization_response_iss_parameter_supported": True,
        "token_endpoint_auth_methods_supported": ["client_secret_post"],
    }  # fmt: skip
    if SET["registers"]:
        found["registration_endpoint"] = f"{ISSUER}/register"
    if SET["revocable"]:
        found["revocation_endpoint"] = f"{ISSUER}/revoke"
    return JSONResponse({**found, **SET["metadata"]})


async def register(request):
    if not SET["registers"]:
        return JSONResponse({"error": "access_denied"}, 403)
    wanted = await request.json()
    SAW["registered"] += 1
    client = {"client_id": secrets.token_hex(8), "client_secret": secrets.token_hex(16), **wanted}
    client["token_endpoint_auth_method"] = "client_secret_post"
    CLIENTS[client["client_id"]] = client
    return JSONResponse(client, 201)


async def authorize(request):
    asked = dict(request.query_params)
    client = CLIENTS.get(asked.get("client_id", ""))
    registered = client and client["redirect_uris"]
    if client is None or (registered is not None and asked["redirect_uri"] not in registered):
        return Response("no such client", 400)
    assert asked["code_challenge_method"] == "S256"
    assert asked["resource"] == RESOURCE, asked
    SAW["authorized"] += 1
    SAW["scopes"].append(asked.get("scope", ""))
    answer = {"state": asked["state"], "iss": SET["iss"]}
    if SET["denies"]:
        answer |= {"error": "access_denied", "error_description": "You\x1b[31m said no"}
    else:
        answer["code"] = secrets.token_hex(16)
        CODES[answer["code"]] = asked
    query = urlencode(answer)
    return RedirectResponse(f"{asked['redirect_uri']}?{query}", 302)


def refuse(error):
    return JSONResponse({"error": error}, 400)


async def token(request):
    form = dict(await request.form())
    client = CLIENTS.get(form.get("client_id", ""))
    if client is None or form.get("client_secret") != client["client_secret"]:
        return refuse("invalid_client")
    if SET["token_status"]:
        return Response("broken", SET["token_status"])
    assert form["resource"] == RESOURCE, form
    if form["grant_type"] == "authorization_code":
        asked = CODES.pop(form["code"], None)
        digest = hashlib.sha256(form["code_verifier"].encode()).digest()
        if asked is None or base64.urlsafe_b64encode(digest).decode().rstrip("=") != asked["code_challenge"]:
            return refuse("invalid_grant")
        return give({"family": secrets.token_hex(4), "scope": asked.get("scope", "")})
    await asyncio.sleep(SET["renew_delay"])
    grant = RENEW.get(form["refresh_token"])
    if grant is None or grant["used"]:
        if grant is not None:
            SAW["reused"] += 1
            forget(grant["family"])
        return refuse("invalid_grant")
    grant["used"] = True
    SAW["renewed"] += 1
    return give({"family": grant["family"], "scope": grant["scope"]})


def give(grant):
    access, renew = f"access-{secrets.token_hex(12)}", f"renew-{secrets.token_hex(12)}"
    ACCESS[access] = {**grant, "until": time.time() + SET["lifetime"]}
    RENEW[renew] = {**grant, "used": False}
    return JSONResponse(
        {"access_token": access, "refresh_token": renew, "token_type": "Bearer", "expires_in": SET["lifetime"]}
    )


def forget(family=None):
    for kept in (ACCESS, RENEW):
        for name in [name for name, grant in kept.items() if family in (None, grant["family"])]:
            del kept[name]


async def revoke(request):
    form = dict(await request.form())
    grant = RENEW.get(form["token"]) or ACCESS.get(form["token"])
    if grant is not None:
        SAW["revoked"] += 1
        forget(grant["family"])
    return Response()


async def admin(request):
    if request.method == "POST":
        wanted = await request.json()
        if wanted.pop("reset", False):
            forget()
            CLIENTS["known"] = KNOWN
            for values, before in zip((SET, SAW), json.loads(AT_FIRST), strict=True):
                values.update(before)
        if wanted.pop("expire", False):
            for grant in ACCESS.values():
                grant["until"] = 0
        if wanted.pop("forget", False):
            forget()
        if wanted.pop("forget_clients", False):
            CLIENTS.clear()
        SET.update(wanted)
    return JSONResponse(SAW)


async def catch(request):
    SAW["caught"].append(request.headers.get("authorization", ""))
    return JSONResponse({})


LOGIN = Starlette(
    routes=[
        Route("/.well-known/oauth-authorization-server", metadata),
        Route("/register", register, methods=["POST"]),
        Route("/authorize", authorize),
        Route("/token", token, methods=["POST"]),
        Route("/revoke", revoke, methods=["POST"]),
        Route("/admin", admin, methods=["GET", "POST"]),
        Route("/mcp", catch, methods=["GET", "POST"]),
    ]
)


# The MCP server


async def list_tools(ctx, params):
    schema = {"type": "object", "properties": {"text": {"type": "string"}}}
    return types.ListToolsResult(tools=[types.Tool(name=name, input_schema=schema) for name in ("echo", "secret")])


async def call_tool(ctx, params):
    return types.CallToolResult(content=[types.TextContent(text=str((params.arguments or {}).get("text")))])


INNER = Server("site", version="1", on_list_tools=list_tools, on_call_tool=call_tool).streamable_http_app()


async def site(scope, receive, send):
    if scope["type"] != "http":
        return await INNER(scope, receive, send)
    request = Request(scope, receive)
    if scope["path"] == "/.well-known/oauth-protected-resource/mcp":
        told = {"resource": RESOURCE, "authorization_servers": [ISSUER], "scopes_supported": ["read"]}
        return await JSONResponse(told)(scope, receive, send)
    if scope["path"] == "/moved":
        return await RedirectResponse(f"{ISSUER}/mcp", 307)(scope, receive, send)
    if scope["path"] != "/mcp":
        return await Response("nothing here", 404)(scope, receive, send)
    body = await request.body()
    refusal = why_not(request, body)
    if refusal is not None:
        return await refusal(scope, receive, send)
    sent = False

    async def again():
        nonlocal sent
        if sent:
            return await receive()
        sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    return await INNER(scope, again, send)


def why_not(request, body):
    if not SET["asks"]:
        return None
    told = SET["challenge"] or f'resource_metadata="{SITE}/.well-known/oauth-protected-resource/mcp"'
    given = request.headers.get("authorization", "")
    SAW["bare"] += not given
    grant = ACCESS.get(given.removeprefix("Bearer "))
    if grant is None or grant["until"] < time.time():
        return Response("log in", 401, headers={"www-authenticate": f"Bearer {told}"})
    message = json.loads(body) if body else {}
    if message.get("params", {}).get("name") == "secret" and "admin" not in grant["scope"].split():
        lacking = f'Bearer error="insufficient_scope", scope="admin", {told}'
        return Response("not this", 403, headers={"www-authenticate": lacking})
    return None


async def main():
    servers = [
        uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=port, log_level="error"))
        for app, port in ((LOGIN, LOGIN_PORT), (site, MCP_PORT))
    ]
    await asyncio.gather(*(server.serve() for server in servers))


asyncio.run(main())
