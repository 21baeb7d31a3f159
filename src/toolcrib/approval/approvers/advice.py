"""A model's warning, carried to the person who decides."""

from __future__ import annotations

from msgspec.structs import replace

from toolcrib.core.approvals import ApprovalRequest

ADVISED_AGAINST = "(a model that looked at it advises against)"


def advise_against(request: ApprovalRequest) -> ApprovalRequest:
    """The request with a word to the person that the model would not allow it."""
    first, *others = request.dangers
    return replace(request, dangers=(replace(first, reason=f"{first.reason} {ADVISED_AGAINST}"), *others))


def is_advised_against(request: ApprovalRequest) -> bool:
    return any(danger.reason.endswith(ADVISED_AGAINST) for danger in request.dangers)
