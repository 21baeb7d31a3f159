"""Translates a Hermes Agent config: what has another name or shape there becomes our settings and variables.

Keys that mean the same in both programs stay in `rest`; every other key ends up in `moved` or in `dropped`.
"""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from toolcrib.config.mcp_secrets import SecretExtractor

KeyPath = tuple[str, ...]

PROVIDER_NAMES = {
    "claude": "anthropic",
    "google": "gemini",
    "google-gemini": "gemini",
    "glm": "zai",
    "z.ai": "zai",
    "kimi": "moonshot",
    "kimi-coding": "moonshot",
    "hf": "huggingface",
    "ai-gateway": "vercel",
    "copilot-models": "github",
    "openai-api": "openai",
}
"""Hermes Agent's names of providers that have another name here."""
PROTOCOLS = {
    **dict.fromkeys(("", "chat_completions", "openai"), "openai"),
    **dict.fromkeys(("anthropic_messages", "anthropic"), "anthropic"),
}
CUSTOM = "custom"
AUTOMATIC = ("", "auto", "main")

RENAMED: dict[KeyPath, KeyPath] = {
    ("memory", "memory_enabled"): ("memory", "enabled"),
    ("agent", "reasoning_effort"): ("model", "reasoning_effort"),
    ("max_turns",): ("agent", "max_turns"),
    ("timezone",): ("cron", "timezone"),
    ("browser", "allow_private_urls"): ("security", "allow_private_urls"),
}
"""Settings that only have another name here."""
APART = "toolcrib has no such feature"
REASONS: dict[str, str] = {
    "agent": "toolcrib has no such setting for the agent",
    "approvals": "toolcrib has no such confirmation",
    "auxiliary": "toolcrib has one auxiliary model for all small jobs, `auxiliary.model`",
    "browser": "toolcrib has no such setting for the browser",
    "checkpoints": "toolcrib snapshots files before every change, unless `undo.enabled` is false",
    "compression": "toolcrib has no such setting; it compresses by `threshold_pct` and `keep_messages`",
    "cron": "toolcrib's scheduler has other settings; see `toolcrib config list`",
    "discord": "toolcrib has no messaging platforms yet",
    "display": "toolcrib's chat has its own display",
    "gateway": "toolcrib has no messaging platforms yet",
    "hooks": "toolcrib runs no shell hooks; write a plugin with `ctx.register_hook`",
    "hooks_auto_accept": "toolcrib runs no shell hooks",
    "image_gen": "toolcrib has no such setting for images",
    "kanban": APART,
    "personalities": "describe the agent in SOUL.md instead",
    "platforms": "toolcrib has no messaging platforms yet",
    "platform_toolsets": "toolcrib has no messaging platforms yet; `toolsets` is for the chat",
    "security": "toolcrib has no such check; its own approvals are always on",
    "skills": "toolcrib has no such setting for skills",
    "slack": "toolcrib has no messaging platforms yet",
    "stt": "toolcrib has no such setting for speech recognition",
    "telegram": "toolcrib has no messaging platforms yet",
    "tts": "toolcrib has no such setting for speech",
    "voice": "toolcrib has no voice mode",
    "web": "toolcrib has no web tools yet",
    "whatsapp": "toolcrib has no messaging platforms yet",
    "_config_version": "it is the version of Hermes Agent's config format",
}
"""Why keys without a setting here are not imported, by section."""


class MovedSetting(Struct, frozen=True, kw_only=True):
    """A value of the old config and its path in ours."""

    written: KeyPath
    path: KeyPath
    value: Any
    note: str = ""


class Translation(Struct, kw_only=True):
    """A Hermes Agent config, sorted by what happens to its keys."""

    rest: dict[str, Any]
    moved: list[MovedSetting] = field(default_factory=list)
    dropped: list[tuple[KeyPath, str]] = field(default_factory=list)
    variables: dict[str, tuple[KeyPath, str]] = field(default_factory=dict)
    """Secrets for `.env`: where each was written, and its value."""

    def move(self, written: KeyPath, path: KeyPath, value: Any, note: str = "") -> None:
        self.moved.append(MovedSetting(written=written, path=path, value=value, note=note))

    def drop(self, written: KeyPath, reason: str) -> None:
        self.dropped.append((written, reason))


def reason_for(path: KeyPath) -> str:
    """Why a key of Hermes Agent that toolcrib does not have is not imported."""
    return REASONS.get(path[0], "toolcrib has no setting with that name")


def translate_config(
    data: Mapping[Any, Any], source: Path, taken: Mapping[str, str], known_providers: Collection[str]
) -> Translation:
    """Sort the keys of a config. `taken` holds the variables that already exist, in either home."""
    rest = {str(key): value for key, value in copy.deepcopy(dict(data)).items()}
    return _Translator(Translation(rest=rest), source, taken, known_providers).run()


class _Translator:
    def __init__(
        self, out: Translation, source: Path, taken: Mapping[str, str], known_providers: Collection[str]
    ) -> None:
        self._out = out
        self._source = source
        self._taken = dict(taken)
        self._providers = set(known_providers)

    def run(self) -> Translation:
        self._named_providers()
        self._model()
        self._fallbacks()
        self._compression()
        self._auxiliary()
        self._vision()
        self._skills()
        self._approvals()
        self._plugins()
        self._servers()
        self._renamed()
        return self._out

    def _section(self, name: str) -> dict[Any, Any]:
        """A section of the config, to take keys out of; empty if it is missing or something else."""
        section = self._out.rest.get(name)
        return section if isinstance(section, dict) else {}

    def _renamed(self) -> None:
        for written, path in RENAMED.items():
            section = self._out.rest if len(written) == 1 else self._section(written[0])
            is_written_twice = path[-1] in self._section(path[0])
            if written[-1] in section and not is_written_twice:
                self._out.move(written, path, section.pop(written[-1]))

    # Models

    def _named_providers(self) -> None:
        """Model servers of the user's own: a list with names, or a mapping by name."""
        listed = self._out.rest.pop("custom_providers", None)
        if isinstance(listed, list):
            for index, entry in enumerate(listed):
                name = entry.get("name") if isinstance(entry, dict) else None
                where = ("custom_providers", str(name or index))
                if isinstance(entry, dict) and isinstance(name, str) and name.strip():
                    self._provider(where, name, {key: value for key, value in entry.items() if key != "name"})
                else:
                    self._out.drop(where, "it is not a provider with a name")
        elif listed is not None:
            self._out.drop(("custom_providers",), "it is not a list of providers")
        written = self._out.rest.get("providers")
        if isinstance(written, dict):
            del self._out.rest["providers"]
            for name, entry in written.items():
                if isinstance(entry, dict):
                    self._provider(("providers", str(name)), str(name), entry)
                else:
                    self._out.drop(("providers", str(name)), "it is not a provider with an address")

    def _provider(self, written: KeyPath, name: str, entry: Mapping[Any, Any]) -> None:
        own = provider_slug(name)
        mode = _text(entry, "api_mode") or _text(entry, "transport") or _text(entry, "protocol")
        if mode not in PROTOCOLS:
            self._out.drop(written, f"toolcrib does not speak its protocol, {mode!r}")
            return
        address = _text(entry, "base_url") or _text(entry, "url") or _text(entry, "api")
        if not address:
            self._out.drop(written, "it has no `base_url`")
            return
        settings: dict[str, Any] = {"base_url": address}
        if PROTOCOLS[mode] == "anthropic":
            settings |= {"protocol": "anthropic", "dialect": "anthropic"}
        variable = self._key_variable(written, own, entry)
        if variable:
            settings["key_env"] = variable
        model = _text(entry, "model") or _text(entry, "default_model")
        if model:
            settings["model"] = model
        window = entry.get("context_length", entry.get("context_window"))
        if isinstance(window, int) and not isinstance(window, bool):
            settings["context_window"] = window
        for key, value in settings.items():
            self._out.move(written, ("providers", own, key), value)
        self._drop_others(written, entry)
        self._providers.add(own)

    def _drop_others(self, written: KeyPath, entry: Mapping[Any, Any]) -> None:
        used = {"base_url", "url", "api", "api_mode", "transport", "protocol", "api_key", "key_env"}
        used |= {"api_key_env", "model", "default_model", "context_length", "context_window", "name", "provider"}
        for key in entry:
            if str(key) not in used and entry[key] is not None:
                self._out.drop((*written, str(key)), "toolcrib has no such setting for a provider")

    def _key_variable(self, written: KeyPath, name: str, entry: Mapping[Any, Any]) -> str:
        """The variable with the key of a provider; a key in the config becomes one in `.env`."""
        named = _text(entry, "key_env") or _text(entry, "api_key_env")
        if named:
            return named
        key = _text(entry, "api_key")
        reference = re.fullmatch(r"\$\{?(?:env:)?(\w+)\}?", key)
        if reference:
            return reference[1]
        return self._new_variable(f"{name}_API_KEY", (*written, "api_key"), key) if key else ""

    def _new_variable(self, wanted: str, written: KeyPath, secret: str) -> str:
        wanted = re.sub(r"\W+", "_", wanted, flags=re.ASCII).strip("_").upper()
        wanted = wanted if re.match("[A-Z_]", wanted) else f"KEY_{wanted}"
        name, number = wanted, 2
        while self._taken.get(name, secret) != secret:
            name, number = f"{wanted}_{number}", number + 1
        self._taken[name] = secret
        self._out.variables[name] = (written, secret)
        return name

    def _model(self) -> None:
        model = self._section("model")
        if isinstance(self._out.rest.get("model"), str):
            self._out.move(("model",), ("model", "default"), self._out.rest.pop("model"))
            return
        for key, ours in (
            ("model", "default"),
            ("name", "default"),
            ("context_length", "context_window"),
            ("max_tokens", "max_output_tokens"),
        ):
            if key in model:
                value = model.pop(key)
                if ours == "default" and model.get("default"):
                    self._out.drop(("model", key), "`model.default` is also set")
                else:
                    self._out.move(("model", key), ("model", ours), value)
        provider = model.pop("provider", None)
        if isinstance(provider, str) and provider.strip().lower() == CUSTOM and _text(model, "base_url"):
            entry = {key: model.pop(key) for key in ("base_url", "api_key", "key_env", "api_mode") if key in model}
            self._provider(("model",), CUSTOM, entry)
        self._model_provider(provider)
        for key in ("api_key", "key_env"):
            if model.pop(key, None):
                self._out.drop(("model", key), "toolcrib reads the key from the provider's variable in `.env`")

    def _model_provider(self, provider: Any) -> None:
        if provider is None:
            return
        ours = self._our_provider(provider)
        if ours is None:
            reason = f"toolcrib has no provider {provider!r}; choose one with `toolcrib model list`"
            self._out.drop(("model", "provider"), reason)
        elif not ours:
            self._out.drop(("model", "provider"), "toolcrib automatically uses the first provider that has a key")
        else:
            self._out.move(("model", "provider"), ("model", "provider"), ours)

    def _our_provider(self, written: Any) -> str | None:
        """Our name of a provider; empty if any will do, None if there is none here."""
        if not isinstance(written, str):
            return None
        name = written.strip().lower().removeprefix(f"{CUSTOM}:")
        if name in AUTOMATIC:
            return ""
        for candidate in (name, PROVIDER_NAMES.get(name, ""), provider_slug(name)):
            if candidate in self._providers:
                return candidate
        return None

    def _fallbacks(self) -> None:
        """The list of models to try next; an older key holds a single one, which comes last."""
        found: list[str] = []
        first_key = ""
        for key in ("fallback_providers", "fallback_model"):
            written = self._out.rest.pop(key, None)
            entries = written if isinstance(written, list) else [] if written in (None, "", {}) else [written]
            for index, entry in enumerate(entries):
                where = (key, str(index + 1)) if isinstance(written, list) else (key,)
                name = self._fallback(where, entry)
                if name:
                    found.append(name)
                    first_key = first_key or key
        if found:
            self._out.move((first_key,), ("model", "fallbacks"), list(dict.fromkeys(found)))

    def _fallback(self, written: KeyPath, entry: Any) -> str:
        """One fallback as `provider/model`; empty if it cannot be used."""
        if isinstance(entry, str) and "/" in entry:
            return entry
        if not isinstance(entry, dict) or not _text(entry, "model"):
            self._out.drop(written, "it does not name a provider and a model")
            return ""
        provider = self._our_provider(entry.get("provider", CUSTOM))
        if _text(entry, "base_url"):
            provider = provider_slug("-".join(("fallback", *written[1:])))
            before = len(self._out.dropped)
            self._provider(written, provider, {key: value for key, value in entry.items() if key != "model"})
            if any(path == written for path, _ in self._out.dropped[before:]):
                return ""
        if not provider:
            self._out.drop(written, f"toolcrib has no provider {entry.get('provider')!r}; see `toolcrib model list`")
            return ""
        return f"{provider}/{_text(entry, 'model')}"

    # Other sections

    def _compression(self) -> None:
        section = self._section("compression")
        if "threshold" in section:
            value = section.pop("threshold")
            if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value <= 1:
                value = round(value * 100, 2)
            self._out.move(("compression", "threshold"), ("compression", "threshold_pct"), value)
        if "protect_last_n" in section:
            value = section.pop("protect_last_n")
            self._out.move(("compression", "protect_last_n"), ("compression", "keep_messages"), value)

    def _auxiliary(self) -> None:
        """The model that summarises there is the one for all small jobs here."""
        tasks = self._section("auxiliary")
        summary = tasks.get("compression")
        section = self._section("compression")
        older = {key: section.pop(f"summary_{key}", None) for key in ("model", "provider", "base_url")}
        if isinstance(summary, dict):
            for key in ("model", "provider", "base_url"):
                if key in summary:
                    self._auxiliary_value(("auxiliary", "compression", key), key, summary.pop(key))
            if not summary:
                del tasks["compression"]
        for key, value in older.items():
            if value is not None and any(one.path == ("auxiliary", key) for one in self._out.moved):
                self._out.drop(("compression", f"summary_{key}"), f"`auxiliary.compression.{key}` is also set")
            elif value is not None:
                self._auxiliary_value(("compression", f"summary_{key}"), key, value)
        self._auxiliary_provider()

    def _auxiliary_provider(self) -> None:
        """Keep the provider of a model like `vendor/model`: without one, `vendor` would be taken for the provider."""
        moved = {one.path: one for one in self._out.moved}
        model, main = moved.get(("auxiliary", "model")), moved.get(("model", "provider"))
        is_open = ("auxiliary", "provider") not in moved and ("auxiliary", "base_url") not in moved
        if model is not None and main is not None and is_open and "/" in str(model.value):
            self._out.move(model.written, ("auxiliary", "provider"), main.value)

    def _auxiliary_value(self, written: KeyPath, key: str, value: Any) -> None:
        what = "for all small jobs, not only summaries"
        self._model_value(
            written, ("auxiliary", key), value, "it means the main model, which toolcrib uses anyway", what
        )

    def _vision(self) -> None:
        """The model that looks at images; what else there is about it stays behind."""
        tasks = self._section("auxiliary")
        vision = tasks.get("vision")
        if not isinstance(vision, dict):
            return
        for key in ("model", "provider", "base_url"):
            if key in vision:
                written = ("auxiliary", "vision", key)
                self._model_value(
                    written, written, vision.pop(key), "toolcrib automatically chooses a model that can see"
                )
        if not vision:
            del tasks["vision"]

    def _model_value(self, written: KeyPath, path: KeyPath, value: Any, automatic: str, remark: str = "") -> None:
        if isinstance(value, str) and value.strip().lower() in AUTOMATIC:
            self._out.drop(written, automatic)
        elif path[-1] == "provider" and not self._our_provider(value):
            self._out.drop(written, f"toolcrib has no provider {value!r}; see `toolcrib model list`")
        else:
            self._out.move(written, path, self._our_provider(value) if path[-1] == "provider" else value, remark)

    def _skills(self) -> None:
        section = self._section("skills")
        written = section.pop("external_dirs", None)
        folders = [written] if isinstance(written, str) else written
        if not isinstance(folders, list):
            if written is not None:
                self._out.drop(("skills", "external_dirs"), "it is not a list of folders")
            return
        found = []
        for folder in folders:
            resolved = self._folder(folder)
            if resolved:
                found.append(resolved)
            else:
                self._out.drop(("skills", "external_dirs", str(folder)), "its folder is not known here")
        if found:
            self._out.move(("skills", "external_dirs"), ("skills", "folders"), found)

    def _folder(self, written: Any) -> str:
        if not isinstance(written, str) or not written.strip() or "\0" in written:
            return ""
        folder = re.sub(
            r"\$\{(\w+)\}|\$(\w+)",
            lambda found: self._taken.get(found[1] or found[2]) or os.environ.get(found[1] or found[2], found[0]),
            written.strip(),
        )
        if "$" in folder:
            return ""
        return folder if folder.startswith(("~", "/")) else str(self._source / folder)

    def _approvals(self) -> None:
        section = self._section("approvals")
        mode = section.get("mode")
        # In YAML 1.1, a bare `off` is false.
        if mode is False:
            section["mode"] = "off"
        if "cron_mode" in section:
            value = section.pop("cron_mode")
            policies = {"deny": "deny", "approve": "allow", "allow": "allow", "off": "allow", False: "allow"}
            ours = policies.get(value) if isinstance(value, (str, bool)) else None
            self._out.move(
                ("approvals", "cron_mode"), ("approvals", "policies", "cron"), value if ours is None else ours
            )

    def _plugins(self) -> None:
        """Plugins run with the user's permissions, so the user enables them again."""
        section = self._section("plugins")
        enabled = section.pop("enabled", None)
        names = enabled if isinstance(enabled, list) else [] if enabled is None else [enabled]
        for name in names:
            reason = f"it stays off until you trust it here: `toolcrib plugins enable {name}`"
            self._out.drop(("plugins", "enabled", str(name)), reason)
        entries = section.get("entries")
        for name, entry in entries.items() if isinstance(entries, dict) else ():
            if isinstance(entry, dict) and entry.pop("allow_tool_override", None):
                key = f"plugins.entries.{name}.allow_tool_override"
                reason = f"it is a permission; give it again with `toolcrib config set {key} true`"
                self._out.drop(("plugins", "entries", str(name), "allow_tool_override"), reason)

    def _servers(self) -> None:
        """The keys of MCP servers go to `.env`."""
        servers = self._section("mcp_servers")
        for name, server in servers.items():
            if not isinstance(server, dict):
                continue
            extractor = SecretExtractor(str(name), self._taken)
            servers[name] = extractor.extract(server)
            self._taken |= extractor.variables
            for variable, secret in extractor.variables.items():
                self._out.variables[variable] = (("mcp_servers", str(name)), secret)


def provider_slug(name: str) -> str:
    """A name for `provider/model`: lower case, without spaces and slashes."""
    return re.sub(r"[^\w.-]+", "-", name.strip().lower()).strip("-.") or CUSTOM


def _text(entry: Mapping[Any, Any], key: str) -> str:
    value = entry.get(key)
    return value.strip() if isinstance(value, str) else ""
