"""Where the calls of a session work, and what that means for their effects."""

from __future__ import annotations

from dataclasses import dataclass

from toolcrib.core.environments import EnvironmentSpec
from toolcrib.core.types import Effect, EffectKind
from toolcrib.environments.specs import ON_THIS_MACHINE


@dataclass(frozen=True, kw_only=True)
class Whereabouts:
    """Where a call of some session works, as far as that is known without opening anything."""

    spec: EnvironmentSpec
    folder: str
    """That relative paths start from; empty where only the place knows it."""
    isolated: bool
    """What happens there cannot leave it, except by the network."""

    @property
    def is_here(self) -> bool:
        """Paths there are paths of this machine."""
        return self.spec.backend in ON_THIS_MACHINE

    def effect(self, kind: EffectKind, target: str, folder: str = "") -> Effect:
        """An effect in that place."""
        folder = folder or self.folder
        if self.is_here:
            return Effect(kind, target, folder, isolated=self.isolated and kind != "exec")
        return Effect(kind, target, folder, self.spec.backend, self.isolated, self.spec.cwd)
