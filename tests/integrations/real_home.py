"""What a person does once in the page of a new Home Assistant, over its websocket. Run with its Python.

    python real_home.py ADDRESS USER PASSWORD AREA ENTITY

Logs in, puts the entity into a new area, and prints a long-lived access token.
"""

import asyncio
import sys

import aiohttp


async def main(address: str, user: str, password: str, area: str, entity: str) -> None:
    async with aiohttp.ClientSession() as session:

        async def post(path: str, **body: object) -> dict[str, object]:
            form = body if path == "/auth/token" else None
            async with session.post(f"{address}{path}", data=form, json=None if form else body) as answer:
                answer.raise_for_status()
                return dict(await answer.json())

        client = f"{address}/"
        flow = await post("/auth/login_flow", client_id=client, handler=["homeassistant", None], redirect_uri=client)
        known = {"client_id": client, "username": user, "password": password}
        login = await post(f"/auth/login_flow/{flow['flow_id']}", **known)
        token = await post("/auth/token", grant_type="authorization_code", code=login["result"], client_id=client)
        async with session.ws_connect(f"{address}/api/websocket") as socket:
            await socket.receive_json()
            await socket.send_json({"type": "auth", "access_token": token["access_token"]})
            await socket.receive_json()

            async def ask(number: int, kind: str, **about: object) -> object:
                await socket.send_json({"id": number, "type": kind, **about})
                answer = await socket.receive_json()
                assert answer["success"], answer
                return answer["result"]

            made = await ask(1, "config/area_registry/create", name=area)
            assert isinstance(made, dict)
            await ask(2, "config/entity_registry/update", entity_id=entity, area_id=made["area_id"])
            print(await ask(3, "auth/long_lived_access_token", client_name="toolcrib", lifespan=1))


asyncio.run(main(*sys.argv[1:]))
