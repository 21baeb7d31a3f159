"""The answer where nobody can be asked."""

from __future__ import annotations

from toolcrib.core.approvals import Answer, ApprovalRequest


class NoApprover:
    """Denies everything that needs approval, and says why nobody could be asked."""

    def __init__(self, reason: str = "nobody is here to approve it") -> None:
        self._reason = reason

    async def ask(self, request: ApprovalRequest) -> Answer:
        # The text reaches the model, so it names what is wrong with the call and no way around the question.
        what = request.description or "this call"
        return Answer(choice="deny", reason=f"{what} needs a person's approval: {self._reason}", decided_by="policy")
