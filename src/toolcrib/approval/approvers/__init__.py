"""Those who answer when a call needs approval: a person at a terminal or behind a gateway, a model, or nobody."""

from toolcrib.approval.approvers.console import ConsoleApprover
from toolcrib.approval.approvers.gateway import GatewayApprover
from toolcrib.approval.approvers.smart import NoApprover, SmartApprover

__all__ = ["ConsoleApprover", "GatewayApprover", "NoApprover", "SmartApprover", "keeps_time"]


def keeps_time(approver: object) -> bool:
    """Whether the approver ends a question in time by itself, and knows best when it began."""
    return isinstance(approver, (ConsoleApprover, GatewayApprover, SmartApprover))
