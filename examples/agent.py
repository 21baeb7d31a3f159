"""An agent that looks, asks for approval, acts and answers, with a script in place of the model."""

import asyncio

from toolcrib import Agent, Effect, tool
from toolcrib.agent.events import CallFinished, RunEnded
from toolcrib.core.approvals import ApprovalAnswer, ApprovalRequest
from toolcrib.sessions.store import SessionStore
from toolcrib.testing import ScriptedProvider, calls

STOCK = {"hammer": 3, "saw": 0}


@tool(toolset="shop", effects=())
def in_stock(article: str) -> dict[str, int]:
    """Say how many pieces of an article are in stock.

    Args:
        article: Name of the article, for example 'hammer'.
    """
    return {"pieces": STOCK[article]}


@tool(toolset="shop", effects=lambda args, ctx: (Effect("spend"),))
def order(article: str) -> str:
    """Order one piece of an article.

    Args:
        article: Name of the article.
    """
    STOCK[article] += 1
    return f"{article} ordered"


class Boss:
    """Agrees, and says what to."""

    async def ask(self, request: ApprovalRequest) -> ApprovalAnswer:
        print("approved:", request.command)
        return ApprovalAnswer(choice="once")


async def main() -> None:
    # A real model is a name: Agent(model="provider/model", …), or nothing for the configured one.
    model = ScriptedProvider(
        [calls("in_stock", {"article": "saw"}), calls("order", {"article": "saw"}), "There was no saw; one is ordered."]
    )
    async with Agent(model=model, toolsets=["shop"], approver=Boss(), store=SessionStore.in_memory()) as agent:
        async for event in agent.stream("Make sure that there is a saw."):
            if isinstance(event, CallFinished):
                print(f"{event.name}: {event.text}")
            elif isinstance(event, RunEnded):
                print(f"{event.result.outcome}: {event.result.answer}")


if __name__ == "__main__":
    asyncio.run(main())
