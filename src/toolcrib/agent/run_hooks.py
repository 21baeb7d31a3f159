"""What hooks are told about the run of one question, and where their answers count."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from toolcrib.agent.conversation import Conversation
from toolcrib.agent.events import RunResult
from toolcrib.agent.hook_calls import added_context, first_text, tell
from toolcrib.core.messages import Message, user_message
from toolcrib.hooks.manager import HookManager

MAX_VERIFY_ROUNDS = 3


class RunHooks(msgspec.Struct, kw_only=True):
    """The hooks around one run."""

    hooks: HookManager
    conversation: Conversation
    model: str
    platform: str
    turn_id: str
    changed_paths: Callable[[], list[str]]
    _question: str = ""
    _verified: int = 0

    async def opened(self, question: Message, *, is_first: bool) -> Message:
        """The question with what `pre_llm_call` adds to it."""
        self._question = question.text
        if is_first:
            await self._tell("on_session_start", model=self.model)
        if not self.hooks.has("pre_llm_call"):
            return question
        answers = await self._tell("pre_llm_call", **self._exchange(), is_first_turn=is_first, sender_id="")
        context = added_context(answers)
        return user_message(f"{question.text}\n\n{context}", question.images) if context else question

    async def verified(self, text: str) -> str:
        """What a `pre_verify` hook wants done before this answer counts; empty when it may stand."""
        if not self.hooks.has("pre_verify") or self._verified >= MAX_VERIFY_ROUNDS:
            return ""
        paths = self.changed_paths()
        answers = await self._tell(
            "pre_verify",
            model=self.model,
            coding=bool(paths),
            attempt=self._verified,
            final_response=text,
            changed_paths=paths,
        )
        for answer in answers:
            if isinstance(answer, dict) and answer.get("action") == "continue" and answer.get("message"):
                self._verified += 1
                return str(answer["message"])
        return ""

    async def transformed(self, text: str) -> str:
        """The answer as `transform_llm_output` leaves it."""
        changed = first_text(await self._tell("transform_llm_output", response_text=text, model=self.model))
        return text if changed is None else changed

    async def closed(self, result: RunResult, api_request_id: str) -> None:
        """Told when the question is done with, one way or the other."""
        if self.hooks.has("post_llm_call"):
            await self._tell("post_llm_call", **self._exchange(), assistant_response=result.answer)
        await self._tell(
            "on_session_end",
            task_id=self.conversation.session_id,
            turn_id=self.turn_id,
            completed=result.outcome == "answered",
            interrupted=result.outcome == "interrupted",
            model=self.model,
            reason=result.outcome,
            api_request_id=api_request_id,
        )

    async def _tell(self, name: str, **keywords: object) -> list[object]:
        return await tell(self.hooks, name, session_id=self.conversation.session_id, platform=self.platform, **keywords)

    def _exchange(self) -> dict[str, object]:
        return {
            "task_id": self.conversation.session_id,
            "turn_id": self.turn_id,
            "user_message": self._question,
            "conversation_history": self.conversation.as_json(),
            "model": self.model,
        }
