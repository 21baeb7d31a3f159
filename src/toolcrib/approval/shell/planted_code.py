"""Dangerous commands written into files that tools run later: package scripts, hooks, tasks, workflows."""

from __future__ import annotations

import re
from itertools import chain, islice

from toolcrib.approval.shell.model import Origin, StreamData, name_set
from toolcrib.approval.shell.rules.base import CommandCall
from toolcrib.approval.shell.runner import CommandLocation, Runner
from toolcrib.approval.shell.state import ShellState

RUN_LATER = re.compile(
    r"(?:^|/)(?:\.envrc|\.vscode/tasks\.json|\.hg/hgrc(?:-not-shared)?|\.jj/repo/config\.toml|_darcs/prefs/defaults"
    r"|\.bzr/branch/branch\.conf|\.idea/(?:workspace\.xml|runConfigurations/[^/]*))$"
)
"""Files that programs run, or read commands from, on their own; every write needs approval."""
RECIPE = (
    r"package\.json|setup\.(?:py|cfg)|pyproject\.toml|conftest\.py|noxfile\.py|build\.rs|Cargo\.toml|binding\.gyp"
    r"|\.npmrc|\.yarnrc(?:\.yml)?|\.pnpmfile\.cjs|\.cargo/config(?:\.toml)?|composer\.json|Rakefile|Gemfile"
    r"|[\w.-]+\.gemspec|Vagrantfile|Jenkinsfile|\.gitlab-ci\.ya?ml|\.travis\.yml|azure-pipelines\.yml|bitbucket-pipelines\.yml"
    r"|\.circleci/config\.yml|\.github/(?:workflows|actions)/[\w./-]+\.ya?ml|\.pre-commit-(?:config|hooks)\.yaml"
    r"|\.?lefthook(?:-local)?\.ya?ml|\.overcommit\.yml|\.husky/(?:_/)?[\w.-]+|\.githooks/[\w.-]+"
    r"|\.devcontainer(?:/[\w-]+)?/devcontainer\.json|\.devcontainer\.json|\.vscode/(?:settings|launch)\.json"
    r"|(?:vite|webpack|rollup|jest|babel|next|tailwind|eslint|svelte|astro|metro|gulpfile)(?:\.config)?\.[cm]?[jt]s"
    r"|\.?v?env/bin/[\w.-]+|node_modules/\.bin/[\w.-]+|vendor/bin/[\w.-]+|gradlew|mvnw|configure|artisan|bin/rails"
    r"|\.eslintrc\.c?js|[\w-]+\.service|mise\.toml|\.mise\.toml|Procfile|manage\.py|CMakeLists\.txt|configure\.ac|meson\.build"
)
RECIPE_FILE = re.compile(rf"(?:^|/)(?:{RECIPE})$")
NAMES_RECIPE = re.compile(rf"(?:^|[/'\"\s(=@])(?:{RECIPE})(?=$|['\"\s),;:>])")
EDITS = name_set(
    "jq yq gojq jaq sed gsed perl ruby python python2 python3 node nodejs bun deno php lua awk gawk dasel crudini "
    "ed ex vim vi nvim emacs xmlstarlet toml tq json sponge Rscript fx groovy pwsh"
)
"""Programs that change a file of settings by a little code."""
FETCHES_AND_RUNS = re.compile(
    r"\b(?:curl|wget|fetch)\b[^\n\"'`]{1,300}\|\s*+(?:sudo\s+)?(?:[\w./-]*/)?(?:ba|z|da|k|a)?sh\b"
    r"|\b(?:ba|z)?sh\b[^\n]{0,20}(?:<\(|\$\(|`)\s*+(?:curl|wget)\b|/dev/(?:tcp|udp)/"
    r"|\b(?:curl|wget)\b[^\n]{1,200}\|\s*+(?:python3?|perl|ruby|node|php)\b"
    r"|(?:^|[;&|\s])(?:source|\.|exec|(?:ba|z|da)?sh|python3?|node|perl|ruby)\s+(?:/var)?/(?:tmp|dev/shm)/"
    r"|\bbase(?:64|32)\s+(?:-d|-D|--decode)\b[^\n]{0,100}\|\s*+(?:[\w./-]*/)?(?:ba|z|da)?sh\b|\bn(?:et)?cat?\b[^\n]{0,80}\s-[ec]\s"
)
"""Commands that need no reading: what they run comes from elsewhere."""
MATTERS = frozenset({"remote_code", "exfiltration", "credential", "system_config", "own_program", "fork_bomb"})
"""The dangers that a later run brings; deleting a build folder is what scripts do every day."""
LITERAL = re.compile(r"\"((?:[^\"\\\n]|\\.){0,300})\"|'((?:[^'\\\n]|\\.){0,300})'|`([^`\n]{0,300})`")
LINE = re.compile(
    r"^[ \t]*+(?:-[ \t]++)?+(?:[\w.@-]{1,40}[ \t]*+[:=]{1,2}[ \t]*+)?+(\S[^\n]{3,300})$",
    re.MULTILINE,
)
COMMAND = re.compile(r"(?:[\w.-]*/)*[a-z][\w.-]*\s+\S")
MAX_TEXT = 20_000
MAX_COMMANDS = 40


def judge_planted(runner: Runner, path: str, data: StreamData, state: ShellState, site: CommandLocation) -> None:
    """Report a dangerous command in a text that is written to a file which tools run later."""
    if not RECIPE_FILE.search(path):
        return
    if data.text is None:
        if data.origin & (Origin.NETWORK | Origin.DECODED) and "/." in f"/{path}":
            runner.report("remote_code", f"puts what was fetched or decoded into {path}, which tools run", site)
        return
    found = planted_command(runner, data.text, state, site)
    if found:
        runner.report("unknown_code", f"puts the command {found!r} into {path}, which tools run later", site)


def judge_edited(runner: Runner, call: CommandCall, site: CommandLocation) -> None:
    """Report code that puts a dangerous command into such a file."""
    texts = [word.text for word in call.words]
    is_given_code = call.stdin is not None and call.stdin.text is not None and call.program in EDITS
    if not is_given_code and not any(" " in text for text in texts):
        return
    if call.stdin is not None and call.stdin.text is not None and call.program in EDITS:
        texts.append(call.stdin.text)
    if not any(NAMES_RECIPE.search(text[:MAX_TEXT]) for text in texts):
        return
    for text in texts:
        found = planted_command(runner, text, call.state, site) if " " in text else ""
        if found:
            runner.report("unknown_code", f"may put the command {found!r} into a file that tools run later", site)
            return


def planted_command(runner: Runner, text: str, state: ShellState, site: CommandLocation) -> str:
    """The first dangerous command in a text, as far as it is one of those that matter later; otherwise empty."""
    text = text[:MAX_TEXT]
    runner.spend(len(text) // 200)
    fetched = FETCHES_AND_RUNS.search(text)
    if fetched is not None:
        return fetched.group()[:80]
    for match in islice(chain(LITERAL.finditer(text), LINE.finditer(text)), MAX_COMMANDS):
        command = next((group for group in match.groups() if group), "").replace('\\"', '"').strip()
        if COMMAND.match(command) and runner.suspects(command, state, site, only=MATTERS):
            return command[:80]
    return ""
