"""The same through `registry.register(...)`: schema, handler and availability check, each written out."""

import json
import os
from typing import Any

from toolcrib import get_tool_definitions, handle_function_call
from toolcrib.core.types import Unavailable
from toolcrib.registry import registry, tool_error


def check_stock_requirements() -> bool | Unavailable:
    if os.getenv("STOCK_API_KEY"):
        return True
    return Unavailable("STOCK_API_KEY is not set", "put STOCK_API_KEY=… into ~/.toolcrib/.env")


def handle_stock(args: dict[str, Any], **kwargs: Any) -> str:
    prices = {"ACME": 12.5, "INITECH": 3.75}
    symbol = args["symbol"]
    if symbol not in prices:
        return tool_error(f"no price for {symbol!r}", known=sorted(prices))
    return json.dumps({"symbol": symbol, "price": prices[symbol]})


registry.register(
    name="stock_price",
    toolset="stocks",
    schema={
        "description": "Look up the last price of a share.",
        "parameters": {
            "type": "object",
            "properties": {"symbol": {"type": "string", "description": "The symbol, for example ACME"}},
            "required": ["symbol"],
        },
    },
    handler=handle_stock,
    check_fn=check_stock_requirements,
    requires_env=["STOCK_API_KEY"],
    emoji="📈",
)


def offered() -> list[str]:
    return [tool["function"]["name"] for tool in get_tool_definitions(["stocks"], quiet_mode=True)]


if __name__ == "__main__":
    os.environ.pop("STOCK_API_KEY", None)
    print("without a key:", offered())
    os.environ["STOCK_API_KEY"] = "example"
    print("with a key:", offered())
    print(handle_function_call("stock_price", {"symbol": "ACME"}))
    print(handle_function_call("stock_price", {"symbol": "HOOLI"}))
