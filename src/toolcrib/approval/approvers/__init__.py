"""The approvers: a person at a terminal or behind a gateway, a model, or none at all."""

from toolcrib.approval.approvers.console import ConsoleApprover
from toolcrib.approval.approvers.gateway import GatewayApprover
from toolcrib.approval.approvers.smart import NoApprover, SmartApprover
from toolcrib.core.ports import SelfTimedApprover

__all__ = ["ConsoleApprover", "GatewayApprover", "NoApprover", "SmartApprover", "has_own_timeout"]


def has_own_timeout(approver: object) -> bool:
    """Whether the approver enforces its own timeout, because only it knows when the person saw the question."""
    if isinstance(approver, (ConsoleApprover, GatewayApprover, SmartApprover)):
        return True
    return isinstance(approver, SelfTimedApprover) and approver.has_own_timeout
