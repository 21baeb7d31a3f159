"""The names of the reference system that other people's files import: each resolves and does what it says.

Runs as a program of its own, with the table beside it: what a name is, or its parameters without annotations.
"""

import asyncio
import importlib
import inspect
import json
import os
import stat
import threading
from pathlib import Path

import pytest

TABLE = json.loads((Path(__file__).parent / "compat_names.json").read_text(encoding="utf-8"))
ROWS = [(module, name, said) for module, names in TABLE.items() for name, said in names.items()]


def parameters(function):
    """The parameters as one text, in order, with markers and defaults; a sentence or object as default is `…`."""
    parts, keyword_only = [], False
    for one in inspect.signature(function).parameters.values():
        if one.kind is one.KEYWORD_ONLY and not keyword_only:
            parts.append("*")
        keyword_only = keyword_only or one.kind in (one.KEYWORD_ONLY, one.VAR_POSITIONAL)
        mark = {one.VAR_POSITIONAL: "*", one.VAR_KEYWORD: "**"}.get(one.kind, "")
        default = "" if one.default is one.empty else f"={one.default!r}"
        parts.append(f"{mark}{one.name}{'=…' if '<' in default or '{' in default else default}")
    return f"({', '.join(parts)})"


def description(found):
    if inspect.isclass(found) and issubclass(found, BaseException):
        return "exception"
    if hasattr(found, "__members__"):
        return " ".join(["enum", *found.__members__])
    abstract = "abstract " if getattr(found, "__isabstractmethod__", False) else ""
    if isinstance(found, property):
        return f"{abstract}property"
    return abstract + parameters(found) if inspect.isclass(found) or inspect.isroutine(found) else "value"


@pytest.mark.parametrize(("module", "name", "said"), ROWS, ids=lambda value: value if isinstance(value, str) else None)
def test_name_is_what_the_table_says(module, name, said):
    """The name can be imported, and a function has the parameters, order and defaults of the reference."""
    found = importlib.import_module(module)
    for part in name.split("."):
        found = inspect.getattr_static(found, part) if inspect.isclass(found) else getattr(found, part)

    assert description(found) == said


def test_agent_takes_the_options_of_the_table_by_keyword():
    """`AIAgent` has these options with these defaults, and accepts those that mean nothing here."""
    options = inspect.signature(importlib.import_module("run_agent").AIAgent).parameters
    wanted = {"base_url": None, "api_key": None, "provider": None, "model": "", "max_iterations": 90}
    wanted |= {"enabled_toolsets": None, "disabled_toolsets": None, "quiet_mode": False, "session_id": None}
    wanted |= {"ephemeral_system_prompt": None, "tool_progress_callback": None, "tool_start_callback": None}
    wanted |= {"tool_complete_callback": None}

    assert {name: options[name].default for name in wanted} == wanted
    assert any(one.kind is one.VAR_KEYWORD for one in options.values())


@pytest.fixture
def home():
    from hermes_constants import get_hermes_home

    return get_hermes_home()


# hermes_constants


def test_home_is_ours(home):
    """Data of a plugin goes to our home when it asks for the reference's."""
    from hermes_cli import config
    from hermes_constants import display_hermes_home

    assert home == Path(os.environ["TOOLCRIB_HOME"])
    assert config.get_hermes_home() == home
    assert Path(display_hermes_home()).expanduser() == home


def test_folder_under_its_former_name_is_used_while_it_has_content(home):
    """`get_hermes_dir` gives the new folder, unless the old one still contains something."""
    from hermes_constants import get_hermes_dir

    (home / "image_cache").mkdir()
    empty = get_hermes_dir("cache/images", "image_cache")
    (home / "image_cache" / "a.png").touch()

    assert empty == home / "cache" / "images"
    assert get_hermes_dir("cache/images", "image_cache") == home / "image_cache"
    (home / "image_cache" / "a.png").unlink()
    (home / "image_cache").rmdir()


def test_folders_for_skills(home):
    """The default wins over the folder in the home."""
    from hermes_constants import get_bundled_skills_dir, get_optional_skills_dir

    assert get_bundled_skills_dir() == home / "skills"
    assert get_bundled_skills_dir(Path("/x")) == get_optional_skills_dir(Path("/x")) == Path("/x")


def test_machine_is_described(tmp_path, monkeypatch):
    """A private folder, a program on the path, and Termux."""
    from hermes_constants import find_node_executable, is_termux, secure_parent_dir

    (tmp_path / "keys").mkdir(mode=0o755)
    secure_parent_dir(tmp_path / "keys" / "token.json")
    program = tmp_path / "node"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("TERMUX_VERSION", raising=False)
    before = is_termux()
    monkeypatch.setenv("TERMUX_VERSION", "0.118")

    assert stat.S_IMODE((tmp_path / "keys").stat().st_mode) == 0o700
    assert find_node_executable("node") == str(program)
    assert find_node_executable("no-such-program") is None
    assert (before, is_termux()) == (False, True)


# hermes_cli.config


def test_config_is_read_changed_and_saved(home):
    """`load_config` has the defaults, `read_raw_config` only the file, and `save_config` writes what differs."""
    from hermes_cli import config

    loaded = config.load_config()
    loaded["terminal"]["timeout"] = 77
    loaded["my_plugin"] = {"on": True}
    config.save_config(loaded)

    assert config.read_raw_config() == {"terminal": {"timeout": 77}, "my_plugin": {"on": True}}
    assert config.load_config()["terminal"]["timeout"] == 77
    assert config.DEFAULT_CONFIG["terminal"]["timeout"] != 77
    config.save_config({"my_plugin": {"on": False}}, merge_existing=True)
    assert config.read_raw_config()["terminal"] == {"timeout": 77}
    config.save_config({"my_plugin": {"on": False}}, preserve_keys={("terminal", "timeout")})
    assert config.read_raw_config()["terminal"] == {"timeout": 77}
    config.save_config({})
    assert config.read_raw_config() == {}


def test_single_values_are_set_by_their_dotted_key(home, monkeypatch):
    """A setting is parsed, a plugin's key is kept, and the name of a key goes to `.env`."""
    from hermes_cli import config

    config.set_config_value("terminal.timeout", "99")
    config.set_config_value("other_plugin.deep.flag", "true")
    config.set_config_value("SOME_API_KEY", "k-123")

    raw = config.read_raw_config()
    assert raw["terminal"]["timeout"] == 99
    assert raw["other_plugin"] == {"deep": {"flag": True}}
    assert "SOME_API_KEY" not in raw
    assert config.get_env_value("SOME_API_KEY") == "k-123"
    assert "SOME_API_KEY=k-123" in (home / ".env").read_text()
    monkeypatch.delenv("SOME_API_KEY")


def test_broken_config_is_raw_nothing(home):
    """`read_raw_config` never raises."""
    from hermes_cli import config

    before = (home / "config.yaml").read_text() if (home / "config.yaml").exists() else ""
    (home / "config.yaml").write_text("a: [1\n")

    assert config.read_raw_config() == {}
    (home / "config.yaml").write_text(before)


@pytest.mark.parametrize(
    ("given", "keys", "found"),
    [
        ({"a": {"b": 1}}, ("a", "b"), 1),
        ({"a": {"b": None}}, ("a", "b"), None),
        ({"a": {"b": 0}}, ("a", "b"), 0),
        ({"a": 5}, ("a", "b"), "D"),
        ({"a": [1]}, ("a", 0), "D"),
        ({}, ("a",), "D"),
        (None, ("a",), "D"),
        ([1], ("a",), "D"),
        ({"a": 1}, (), {"a": 1}),
    ],
)
def test_path_into_a_config(given, keys, found):
    """`cfg_get` gives the value, also an empty one, and the default where the path ends early."""
    from hermes_cli.config import cfg_get

    assert cfg_get(given, *keys, default="D") == found


def test_env_value_is_written_and_seen(home):
    """`save_env_value` writes `.env` and the variable; the environment wins when reading."""
    from hermes_cli.config import get_env_value, save_env_value

    save_env_value("PLUGIN_WORD", "two words")

    assert os.environ["PLUGIN_WORD"] == get_env_value("PLUGIN_WORD") == "two words"
    os.environ["PLUGIN_WORD"] = "other"
    assert get_env_value("PLUGIN_WORD") == "other"
    del os.environ["PLUGIN_WORD"]
    assert get_env_value("PLUGIN_WORD") == "two words"
    assert get_env_value("NOT_THERE_AT_ALL") is None


# agent.secret_scope, agent.redact, agent.file_safety


def test_secret_comes_from_the_scope_else_from_the_environment(home, monkeypatch):
    """The active profile's keys hide all others; without a profile, variables and `.env` count."""
    from agent.web_search_provider import get_provider_env

    from agent import secret_scope

    with (home / ".env").open("a") as file:
        file.write("FILE_KEY=from-file\n")
    monkeypatch.setenv("SHELL_KEY", " from-shell ")

    assert secret_scope.get_secret("FILE_KEY") == "from-file"
    assert secret_scope.get_secret("SHELL_KEY") == " from-shell "
    assert get_provider_env("SHELL_KEY") == "from-shell"
    assert get_provider_env("NO_SUCH_KEY") == ""
    assert secret_scope.get_secret("NO_SUCH_KEY", "d") == "d"
    assert secret_scope.get_secret("NO_SUCH_KEY") is None
    token = secret_scope.set_secret_scope({"SCOPED": "s"})
    assert (secret_scope.get_secret("SCOPED"), secret_scope.get_secret("SHELL_KEY")) == ("s", None)
    secret_scope.reset_secret_scope(token)
    assert secret_scope.get_secret("SCOPED") is None
    assert issubclass(secret_scope.UnscopedSecretError, RuntimeError)


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("key sk-abcdefghijklmnopqrstuvwxyz123456 end", "sk-abcdefghijklmnopqrstuvwxyz123456"),
        ("OPENAI_API_KEY=abcdef1234567890abcdef", "abcdef1234567890abcdef"),
        ("password: hunter2hunter2", "hunter2hunter2"),
        ('{"api_key": "abcdef1234567890"}', "abcdef1234567890"),
        ("Authorization: Bearer abcdefghijklmnop1234567890", "abcdefghijklmnop1234567890"),
        ("https://user:verysecret@example.com/", "verysecret"),
    ],
)
def test_secrets_are_masked(text, secret):
    """Keys, passwords and tokens never pass, also without `force`."""
    from agent.redact import redact_sensitive_text

    assert secret not in redact_sensitive_text(text)
    assert secret not in redact_sensitive_text(text, force=True)


def test_plain_text_passes_the_redaction():
    """What is no secret stays as it is, None stays None, and source code keeps its assignments."""
    from agent.redact import redact_sensitive_text

    assert redact_sensitive_text("the password is asked for later") == "the password is asked for later"
    assert redact_sensitive_text(None) is None
    assert redact_sensitive_text("") == ""
    assert redact_sensitive_text(5) == "5"
    code = "token = read_token_from_config()"
    assert redact_sensitive_text(code, code_file=True) == code


def test_protected_files_are_neither_written_nor_read(home, tmp_path):
    """Keys, system files and our own secrets; ordinary files pass."""
    from agent import file_safety

    own = Path.home()
    for path in ("/etc/passwd", "/etc/sudoers", own / ".ssh" / "authorized_keys", own / ".netrc", home / ".env"):
        assert file_safety.is_write_denied(str(path)), path
        error = file_safety.get_write_denied_error(str(path), verb="Delete")
        assert error.startswith("Delete denied: ")
    ordinary = str(tmp_path / "notes.txt")
    assert not file_safety.is_write_denied(ordinary)
    assert file_safety.get_write_denied_error(ordinary) is None
    assert file_safety.get_read_block_error(ordinary) is None
    file_safety.raise_if_read_blocked(ordinary)
    for path in (str(home / ".env"), str(tmp_path / ".env")):
        assert "Access denied" in file_safety.get_read_block_error(path)
        with pytest.raises(ValueError, match="Access denied"):
            file_safety.raise_if_read_blocked(path)


# tools.url_safety, tools.website_policy


@pytest.mark.parametrize(
    ("url", "safe"),
    [
        ("http://8.8.8.8/", True),
        ("https://93.184.216.34/x?y", True),
        ("http://127.0.0.1/", False),
        ("http://localhost:80/", False),
        ("http://10.0.0.1/", False),
        ("http://169.254.169.254/latest", False),
        ("http://[::1]/", False),
        ("http://[::ffff:10.0.0.1]/", False),
        ("http://0.0.0.0/", False),
        ("http://100.64.0.1/", False),
        ("http://224.0.0.1/", False),
        ("http://2130706433/", False),
        ("http://metadata.google.internal/", False),
        ("ftp://8.8.8.8/", False),
        ("file:///etc/passwd", False),
        ("8.8.8.8", False),
        ("http://", False),
        ("http://[", False),
        ("", False),
    ],
)
def test_only_public_addresses_are_safe(url, safe):
    """Private, local and metadata addresses are not, however they are written."""
    from tools.url_safety import async_is_safe_url, is_safe_url

    assert is_safe_url(url) is safe
    assert asyncio.run(async_is_safe_url(url)) is safe


def test_private_addresses_can_be_allowed_but_never_metadata(home):
    """`security.allow_private_urls` opens private networks only."""
    from hermes_cli.config import read_raw_config, set_config_value
    from tools.url_safety import is_safe_url

    set_config_value("security.allow_private_urls", "true")

    assert read_raw_config()["security"] == {"allow_private_urls": True}
    assert is_safe_url("http://10.0.0.1/")
    assert not is_safe_url("http://169.254.169.254/latest")
    set_config_value("security.allow_private_urls", "false")
    assert not is_safe_url("http://10.0.0.1/")


@pytest.mark.parametrize(
    ("url", "normal"),
    [
        ("https://exämple.com/pfad ü?q=a b#x", "https://xn--exmple-cua.com/pfad%20%C3%BC?q=a%20b#x"),
        ("http://a.com/a%20b", "http://a.com/a%20b"),
        ("  http://a.com ", "http://a.com"),
        ("http://a.com/x|y", "http://a.com/x%7Cy"),
        ("http://u@exämple.com:81/", "http://u@xn--exmple-cua.com:81/"),
        ("nope", "nope"),
        ("", ""),
    ],
)
def test_addresses_are_written_in_ascii(url, normal):
    """What is encoded already stays, and what is no address too."""
    from tools.url_safety import normalize_url_for_request

    assert normalize_url_for_request(url) == normal


def test_blocked_websites_are_named_with_their_rule(tmp_path):
    """A host and its subdomains are blocked by the config and by files that it names; nothing without the switch."""
    from tools.website_policy import check_website_access

    (tmp_path / "more.txt").write_text("# comment\nworse.example\n")
    config = tmp_path / "config.yaml"
    config.write_text(
        "security:\n  website_blocklist:\n    enabled: true\n    domains: [bad.example, '*.ads.example']\n"
        "    shared_files: [more.txt]\n"
    )

    assert check_website_access("https://good.example/", config) is None
    assert check_website_access("https://notbad.example/", config) is None
    for url, rule in (
        ("https://bad.example/x", "bad.example"),
        ("https://a.bad.example/", "bad.example"),
        ("https://x.ads.example/", "*.ads.example"),
        ("https://worse.example/", "worse.example"),
    ):
        blocked = check_website_access(url, config)
        assert blocked["rule"] == rule
        assert rule in blocked["message"]
    config.write_text("security:\n  website_blocklist:\n    enabled: false\n    domains: [bad.example]\n")
    assert check_website_access("https://bad.example/", config) is None
    assert check_website_access("https://bad.example/") is None


# utils


def test_switches_and_numbers_in_variables(monkeypatch):
    """Words that mean yes, numbers, and the default for what is unset or unreadable."""
    import utils

    assert [utils.is_truthy_value(one) for one in (True, 1, "Yes", " on ", "1", "0", "off", "", "maybe", None)] == [
        *[True] * 5,
        *[False] * 5,
    ]
    assert utils.is_truthy_value(None, default=True)
    monkeypatch.setenv("N", " 7 ")
    assert (utils.env_int("N", 3), utils.env_float("N", 2.5)) == (7, 7.0)
    monkeypatch.setenv("N", "x")
    assert (utils.env_int("N", 3), utils.env_float("N", 2.5), utils.env_bool("N", True)) == (3, 2.5, False)
    monkeypatch.setenv("N", "true")
    assert utils.env_bool("N")
    assert utils.env_var_enabled("N")
    monkeypatch.delenv("N")
    assert (utils.env_int("N", 3), utils.env_float("N", 2.5), utils.env_bool("N", True)) == (3, 2.5, True)
    assert not utils.env_var_enabled("N")
    assert utils.env_var_enabled("N", "1")


def test_json_is_replaced_as_a_whole(tmp_path):
    """Folders are made, a link stays, the mode is kept, and data that is no JSON changes nothing."""
    from utils import atomic_json_write, atomic_replace

    file = tmp_path / "deep" / "x.json"
    atomic_json_write(file, {"é": 1})
    assert file.read_text(encoding="utf-8") == '{\n  "é": 1\n}'
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    file.chmod(0o644)
    with pytest.raises(TypeError):
        atomic_json_write(file, {"p": object()})
    atomic_json_write(file, {"p": Path("x")}, default=str, indent=None)
    assert file.read_text() == '{"p": "x"}'
    assert stat.S_IMODE(file.stat().st_mode) == 0o644
    atomic_json_write(file, [], mode=0o640)
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    (tmp_path / "link.json").symlink_to(file)
    (tmp_path / "new").write_text("new")
    assert atomic_replace(tmp_path / "new", tmp_path / "link.json") == str(file.resolve())
    assert (tmp_path / "link.json").is_symlink()
    assert file.read_text() == "new"
    assert list(file.parent.iterdir()) == [file]


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("https://API.Example.com/v1", "api.example.com"),
        ("api.example.com/v1", "api.example.com"),
        ("localhost:8080", "localhost"),
        ("http://u:p@h:1/x", "h"),
        ("http://[::1]:80/", "::1"),
        ("", ""),
        (None, ""),
    ],
)
def test_host_of_an_address(url, host):
    """With or without a scheme, in lower case."""
    from utils import base_url_hostname

    assert base_url_hostname(url) == host


# gateway.session_context


def test_facts_of_a_session_hide_the_variables_of_the_process(monkeypatch):
    """What is set holds in this context only; cleared facts stay empty."""
    from gateway import session_context

    monkeypatch.setenv("HERMES_SESSION_PLATFORM", "telegram")
    get = session_context.get_session_env
    assert get("HERMES_SESSION_PLATFORM") == "telegram"
    assert get("HERMES_SESSION_CHAT_ID", "d") == "d"
    seen = []

    def work():
        tokens = session_context.set_session_vars(platform="slack", chat_id="C1", session_key="k1")
        seen.append((get("HERMES_SESSION_PLATFORM"), get("HERMES_SESSION_CHAT_ID"), get("HERMES_SESSION_KEY")))
        session_context.clear_session_vars(tokens)
        seen.append((get("HERMES_SESSION_PLATFORM"), get("HERMES_SESSION_CHAT_ID", "d")))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()

    assert seen == [("slack", "C1", "k1"), ("", "")]
    assert get("HERMES_SESSION_PLATFORM") == "telegram"


def test_tool_sees_the_session_of_its_call():
    """Inside a handler, the session is that of the call."""
    import model_tools
    from gateway.session_context import get_session_env
    from tools.registry import registry

    registry.register(
        "who_am_i",
        "facts",
        {"description": "x"},
        lambda args, **kw: json.dumps({"id": get_session_env("HERMES_SESSION_ID")}),
    )

    assert json.loads(model_tools.handle_function_call("who_am_i", {}, session_id="s-9")) == {"id": "s-9"}
    registry.deregister("who_am_i")


# cron.jobs


def test_jobs_are_created_changed_and_removed():
    """A job is a dict; unknown ids give None or False, and bad values a ValueError."""
    from cron import jobs

    job = jobs.create_job("do it", "every 2h", name="First", repeat=5, skills=["s"], model="m")
    assert job["schedule"] == {"kind": "interval", "minutes": 120, "display": "every 120m"}
    assert (job["enabled"], job["state"], job["deliver"]) == (True, "scheduled", "local")
    assert (job["repeat"], job["skills"], job["skill"]) == ({"times": 5, "completed": 0}, ["s"], "s")
    assert jobs.get_job(job["id"]) == job
    assert jobs.resolve_job_ref("FIRST") == jobs.resolve_job_ref(job["id"]) == job
    paused = jobs.pause_job(job["id"], "holiday")
    assert (paused["state"], paused["enabled"], paused["paused_reason"]) == ("paused", False, "holiday")
    assert jobs.list_jobs() == []
    assert [one["id"] for one in jobs.list_jobs(include_disabled=True)] == [job["id"]]
    resumed = jobs.resume_job(job["id"])
    assert (resumed["state"], resumed["paused_reason"], resumed["paused_at"]) == ("scheduled", None, None)
    changed = jobs.update_job(job["id"], {"name": "Second", "prompt": "other", "schedule": "0 9 * * 1-5"})
    assert (changed["name"], changed["prompt"], changed["schedule"]["kind"]) == ("Second", "other", "cron")
    assert jobs.update_job(job["id"], {"enabled": False})["state"] == "paused"
    assert jobs.update_job(job["id"], {"enabled": True})["state"] == "scheduled"
    with pytest.raises(ValueError, match="id"):
        jobs.update_job(job["id"], {"id": "x"})
    with pytest.raises(ValueError, match="nonsense"):
        jobs.update_job(job["id"], {"schedule": "nonsense"})
    assert jobs.remove_job(job["id"])
    assert not jobs.remove_job(job["id"])
    for absent in (jobs.get_job, jobs.pause_job, jobs.resume_job, jobs.resolve_job_ref):
        assert absent("nope") is None
    assert jobs.update_job("nope", {}) is None


def test_runs_of_a_job_are_claimed_once_and_counted():
    """Only one claims a run; its outcome is kept, and the job moves on."""
    from cron import jobs

    job = jobs.create_job("x", "every 1h")
    assert jobs.claim_job_for_fire(job["id"])
    assert not jobs.claim_job_for_fire(job["id"])
    assert not jobs.claim_job_for_fire("nope")
    jobs.mark_job_run(job["id"], True)
    done = jobs.get_job(job["id"])
    assert (done["last_status"], done["last_error"], done["repeat"]["completed"]) == ("ok", None, 1)
    jobs.mark_job_run(job["id"], False, error="broke", delivery_error="no chat")
    failed = jobs.get_job(job["id"])
    assert (failed["last_status"], failed["last_error"]) == ("error", "broke")
    assert (failed["last_delivery_error"], failed["repeat"]["completed"]) == ("no chat", 2)
    jobs.mark_job_run("nope", True)
    jobs.remove_job(job["id"])


def test_job_that_runs_once_is_done_afterwards():
    """It does not come back."""
    from cron import jobs

    job = jobs.create_job("x", "30m")
    assert (job["schedule"]["kind"], job["repeat"]["times"]) == ("once", 1)
    jobs.mark_job_run(job["id"], True)

    assert jobs.list_jobs() == []
    assert jobs.get_job(job["id"])["state"] == "completed"
    jobs.remove_job(job["id"])


@pytest.mark.parametrize(
    ("text", "kind"),
    [("every 2h", "interval"), ("30m", "once"), ("1d", "once"), ("0 9 * * 1-5", "cron"), ("2090-02-03T14:00", "once")],
)
def test_schedules_are_read(text, kind):
    """Each kind has its own keys, and a text for people."""
    from cron.jobs import parse_schedule

    found = parse_schedule(text)

    assert found["kind"] == kind
    assert {"interval": "minutes", "once": "run_at", "cron": "expr"}[kind] in found
    assert found["display"]


@pytest.mark.parametrize("text", ["nonsense", "", "every monday 25:00"])
def test_unreadable_schedule_is_a_value_error(text):
    """With examples of readable ones."""
    from cron.jobs import create_job, parse_schedule

    with pytest.raises(ValueError, match="schedule"):
        parse_schedule(text)
    with pytest.raises(ValueError, match="schedule"):
        create_job("x", text)
