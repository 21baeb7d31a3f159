"""A hook that blocks: `pre_tool_call` sees every call and may stop it; `post_tool_call` sees every outcome."""

import asyncio
from typing import Any

from toolcrib import Runtime, tool


@tool
def send_mail(to: str, text: str) -> str:
    """Send a mail.

    Args:
        to: The address, for example ada@example.com.
        text: What to say.
    """
    return f"sent to {to}"


def only_inside(tool_name: str, args: dict[str, Any]) -> dict[str, str] | None:
    """Hooks name the arguments they want; the rest is not passed to them."""
    if tool_name == "send_mail" and not args["to"].endswith("@example.com"):
        return {"action": "block", "message": f"mail to {args['to']!r} would leave the company"}
    return None


def log(tool_name: str, status: str) -> None:
    print(f"log: {tool_name} {status}")


async def main() -> None:
    async with Runtime() as runtime:
        runtime.hooks.register("pre_tool_call", only_inside)
        runtime.hooks.register("post_tool_call", log, observer=True)
        for address in ("ada@example.com", "eve@elsewhere.org"):
            result = await runtime.call("send_mail", {"to": address, "text": "hello"})
            print(result.text)


if __name__ == "__main__":
    asyncio.run(main())
