"""Rules, danger classes, and the command that a rule judges."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import msgspec

from toolcrib.approval.shell.model import ExpandedWord, Severity, StreamData, name_set
from toolcrib.approval.shell.options import Arguments, parse_arguments
from toolcrib.approval.shell.state import ShellState


class DangerClass(msgspec.Struct, frozen=True):
    """A class of danger: its stable key, its display name, and what one grant covers."""

    key: str
    description: str
    scope: str
    pattern: str
    example: str


@dataclass
class CommandCall:
    """One command about to run: its program, its arguments and where it runs."""

    program: str
    words: list[ExpandedWord]
    state: ShellState
    stdin: StreamData | None
    text: str
    span: tuple[int, int]

    @cached_property
    def arguments(self) -> Arguments:
        spec = SPECS.get(self.program)
        if spec is None:
            return parse_arguments(self.words, frozenset())
        if spec.subs:
            return self.arguments_of_sub(spec)
        return parse_arguments(self.words, spec.values, single_dash=spec.single_dash, stop_early=spec.stop_early)

    def arguments_of_sub(self, spec: OptionSpec) -> Arguments:
        """The arguments of a program whose sub-commands use the same option differently."""
        first = parse_arguments(self.words, spec.values, stop_early=True)
        name = first.operands[0].text if first.operands else ""
        rest = parse_arguments(first.operands[1:], spec.subs.get(name, spec.other))
        return Arguments(first.options + rest.options, first.operands[:1] + rest.operands)

    @property
    def known(self) -> bool:
        return all(word.known for word in self.words)


Predicate = Callable[[CommandCall], bool]


@dataclass(frozen=True)
class Rule:
    """Which command lines are dangerous and why, with a dangerous and a harmless example."""

    programs: str
    sub: str = ""
    reason: str = ""
    flags: str = ""
    unless: str = ""
    where: Predicate | None = None
    severity: Severity = "ask"
    yes: str = ""
    no: str = ""
    key: str = ""
    sub_words: tuple[tuple[str, ...], ...] = field(init=False)
    flag_names: tuple[str, ...] = field(init=False)
    unless_names: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "sub_words", tuple(tuple(word.split("|")) for word in self.sub.split()))
        object.__setattr__(self, "flag_names", tuple(self.flags.split()))
        object.__setattr__(self, "unless_names", tuple(self.unless.split()))

    def matches(self, call: CommandCall) -> bool:
        if self.sub_words and not self.matches_sub(call.arguments.operands):
            return False
        if self.flag_names and not call.arguments.has(*self.flag_names):
            return False
        if self.unless_names and call.arguments.has(*self.unless_names):
            return False
        return self.where is None or self.where(call)

    def matches_sub(self, operands: list[ExpandedWord]) -> bool:
        """True when the operands start with the sub-command; `*` matches any word."""
        if len(operands) < len(self.sub_words):
            return False
        return all(
            "*" in names or operand.text in names for names, operand in zip(self.sub_words, operands, strict=False)
        )


class OptionSpec(msgspec.Struct, frozen=True):
    """How a program reads its arguments: the options that take a value."""

    values: frozenset[str]
    single_dash: bool = False
    stop_early: bool = False
    subs: Mapping[str, frozenset[str]] = msgspec.field(default_factory=dict)
    """The options after a given sub-command that take a value; `values` then has those before it."""
    other: frozenset[str] = frozenset()
    """The same for every other sub-command."""


def spec(values: str, *, single_dash: bool = False, stop_early: bool = False) -> OptionSpec:
    return OptionSpec(frozenset(values.split()), single_dash, stop_early)


def operand(test: Callable[[str], object]) -> Predicate:
    """A predicate that is true when an operand passes the test."""
    return lambda call: any(test(each.text) for each in call.arguments.operands)


def after_sub(depth: int, test: Callable[[str], object]) -> Predicate:
    """A predicate that is true when an operand after the sub-command passes the test."""
    return lambda call: any(test(each.text) for each in call.arguments.operands[depth:])


def operands_at_least(count: int) -> Predicate:
    return lambda call: len(call.arguments.operands) >= count


SPECS: dict[str, OptionSpec] = {
    "sudo": spec("-u -g -p -h -C -r -t -T -U -D -R --user --group --prompt --host --chdir --chroot", stop_early=True),
    "doas": spec("-u -C -a", stop_early=True),
    "run0": spec("-u -g -D --user --group --chdir --setenv --property --slice --nice --unit", stop_early=True),
    "pkexec": spec("--user", stop_early=True),
    "gosu": spec("", stop_early=True),
    "su-exec": spec("", stop_early=True),
    "setpriv": spec(
        "--reuid --regid --groups --ambient-caps --bounding-set --inh-caps --securebits --selinux-label",
        stop_early=True,
    ),
    "runuser": spec("-u --user -g --group -G -s --shell -c --command --session-command"),
    "chroot": spec("--userspec --groups", stop_early=True),
    "systemd-run": spec(
        "-p -u -E -M -H --unit --property --slice --uid --gid --nice --working-directory --setenv --machine --host "
        "--description --service-type",
        stop_early=True,
    ),
    "nsenter": spec("-t --target -S -G --setuid --setgid --root --wd", stop_early=True),
    "npx": spec("-p --package -w --workspace --node-arg -c --call", stop_early=True),
    "ctr": spec("-n --namespace -a --address"),
    **dict.fromkeys(("toolcrib", "hermes"), spec("-o --output -q --query -f --format --cwd")),
    "rm": spec(""),
    "chmod": spec("--reference"),
    "chown": spec("--reference --from"),
    "chgrp": spec("--reference"),
    "setfacl": spec("-m -x -M -X --modify --remove --set --set-file"),
    "git": OptionSpec(
        name_set("-C -c --git-dir --work-tree --namespace --exec-path --super-prefix --config-env"),
        subs={
            "push": name_set("-o --push-option --repo --receive-pack --exec"),
            "tag": name_set("-m --message -F --file -u --local-user --sort --format --cleanup"),
            "branch": name_set("-u --set-upstream-to --sort --format"),
            "checkout": name_set("-b -B --orphan --conflict"),
            "switch": name_set("-c -C --create --force-create --orphan --conflict"),
            "restore": name_set("-s --source --conflict"),
            "clean": name_set("-e --exclude"),
            "reset": name_set("--pathspec-from-file"),
            "rm": name_set("--pathspec-from-file"),
            "worktree": name_set("-b -B --reason"),
            "update-ref": name_set("-m"),
        },
        other=name_set(
            "-C -c -m --message -b -B -o --upload-pack --depth --branch --expire --prune-expire -s --source --onto "
            "--format -u"
        ),
    ),
    "docker": spec(
        "-H --host --context -c --config -l --log-level --tlscacert --tlscert --tlskey -f --file "
        "-p --project-name --filter "
        "--profile --env-file --project-directory -t --time -v --volume -w --workdir -e --env "
        "--name --mount --network -u --user "
        "--entrypoint --platform --pid --cap-add --device --security-opt --label --memory --cpus "
        "--hostname --publish --restart "
        "--signal -s --until --rmi"
    ),
    "kubectl": spec(
        "-n --namespace --context --cluster --kubeconfig --user --as --as-group -s --server "
        "--token --request-timeout -l --selector "
        "-f --filename -k --kustomize -o --output -p --patch --type --grace-period --timeout "
        "--replicas --field-selector -c --container "
        "--cascade --dry-run --cache-dir --current-replicas --image --to-revision"
    ),
    "helm": spec(
        "-n --namespace --kube-context --kubeconfig -f --values --set --version --timeout "
        "--kube-apiserver --history-max"
    ),
    "systemctl": spec(
        "-H --host -M --machine -t --type -s --signal --state -p --property -n --lines -o --output "
        "--kill-who --kill-whom --root"
    ),
    "aws": spec(
        "--profile --region --output --endpoint-url --query --cli-input-json --ca-bundle --color "
        "--cli-read-timeout --cli-connect-timeout"
    ),
    "gcloud": spec(
        "--project --account --configuration --format --zone --region --verbosity "
        "--billing-project --impersonate-service-account --filter"
    ),
    "az": spec(
        "-n --name -g --resource-group --subscription -o --output --query --ids --account-name -l "
        "--location --vault-name"
    ),
    "gh": spec(
        "-R --repo --hostname -t --title -b --body -F --field -f --raw-field -X --method -H "
        "--header -q --jq --template --input -m"
    ),
    "terraform": spec("", single_dash=True),
    "find": spec("", single_dash=True),
    "kill": spec("-s --signal -n -q --queue --timeout"),
    "pkill": spec(
        "-u -U -g -G -P -t -s -F --signal --euid --uid --group --pgroup --parent --terminal "
        "--session --pidfile --ns --nslist -O --older"
    ),
    "killall": spec("-s --signal -u --user -o --older-than -y --younger-than -n --ns -Z --context"),
    "dd": spec(""),
    "curl": spec(
        "-o --output -d --data --data-binary --data-raw --data-urlencode --data-ascii --json -F "
        "--form --form-string -T --upload-file -X --request "
        "-H --header -u --user -A --user-agent -e --referer -b --cookie -c --cookie-jar -x --proxy "
        "-m --max-time --connect-timeout --retry "
        "-w --write-out -K --config -E --cert --key --cacert --capath --url --output-dir -r "
        "--range --resolve --retry-delay --limit-rate "
        "--interface -D --dump-header --max-redirs -C --continue-at -y -Y -z --unix-socket -U "
        "--proxy-user -P --ciphers -t --url-query --variable"
    ),
    "wget": spec(
        "-O --output-document -o --output-file -a --append-output -i --input-file -P "
        "--directory-prefix -t --tries -T --timeout "
        "-U --user-agent --header --post-data --post-file --body-data --body-file --method -e "
        "--execute --user --password -w --wait -Q -A -R -D -I -X -l --level -B --base "
        "--limit-rate --referer --certificate --private-key --ca-certificate --load-cookies --save-cookies"
    ),
    "tar": spec(
        "-f --file -C --directory -T --files-from -X --exclude-from --exclude -I "
        "--use-compress-program --transform -s -b -L --strip-components --to-command "
        "--checkpoint-action --rsh-command -F --info-script --new-volume-script -g "
        "--listed-incremental"
    ),
    "psql": spec(
        "-c --command -d --dbname -f --file -h --host -p --port -U --username -v --set --variable "
        "-o --output -L --log-file -F --field-separator -P --pset -R -T"
    ),
    "mysql": spec(
        "-e --execute -h --host -u --user -P --port -D --database -S --socket --password "
        "--protocol --defaults-file --default-character-set --ssl-mode --ssl-ca --init-command"
    ),
    "sqlite3": spec(
        "-cmd -separator -init -newline -nullvalue -maxsize -mmap -vfs -lookaside -pagecache -heap", single_dash=True
    ),
    "sqlcmd": spec("-S -U -P -d -Q -q -i -o -v -E_ -h -s -W_ -w"),
    "clickhouse-client": spec("-q --query -h --host --port -u --user --password -d --database --queries-file"),
    "redis-cli": spec("-h -p -s -a -n -u -r -i -d -D --user --pass --cacert --cert --key --sni --rdb --pipe-timeout"),
    "mongosh": spec("--eval --host --port -u --username -p --password --authenticationDatabase -f --file --db"),
    "ssh": spec("-b -c -D -E -e -F -I -i -J -L -l -m -O -o -p -Q -R -S -W -w -B -P"),
    "scp": spec("-c -F -i -J -l -o -P -S -D -X"),
    "sftp": spec("-B -b -c -D -F -i -J -l -o -P -R -S -s -X"),
    "rsync": spec(
        "-e --rsh -f --filter --exclude --include --exclude-from --include-from --files-from -T "
        "--temp-dir --compare-dest --link-dest --copy-dest --backup-dir --suffix --bwlimit "
        "--rsync-path --port --password-file --log-file --out-format --chmod --chown --timeout -B "
        "-M --max-delete --partial-dir"
    ),
    "ps": spec(""),
    "sed": spec("-e --expression -f --file -l --line-length"),
    "python": spec("-c -m -W -X --check-hash-based-pycs"),
    "perl": spec("-e -E -I -M -m -x_ -C_"),
    "ruby": spec("-e -I -r -C -E -x_"),
    "node": spec("-e --eval -p --print -r --require --import --loader -C --conditions --env-file"),
    "php": spec("-r -B -R -F -E -f -d -c -z -S -t"),
    "lua": spec("-e -l"),
    "awk": spec("-f -F -v -e -i -l --file --field-separator --assign --source --include -E --exec -W"),
    "crontab": spec("-u -T"),
    "at": spec("-f -q -t"),
    "useradd": spec("-u -g -G -d -s -c -b -e -f -k -K -p -R"),
    "mount": spec("-o --options -t --types -L -U --source --target -O -N"),
    "umount": spec("-t -O -N"),
    "truncate": spec("-s --size -r --reference -o_"),
    "tee": spec(""),
    "cp": spec("-t --target-directory -S --suffix --backup_ --no-preserve --sparse"),
    "mv": spec("-t --target-directory -S --suffix"),
    "install": spec("-m --mode -o --owner -g --group -t --target-directory -S --suffix --strip-program"),
    "ln": spec("-t --target-directory -S --suffix"),
    "nc": spec("-e -c -g -G -i -I -m -M -o -p -O -P -q -s -T -V -w -W -X -x --exec --sh-exec --lua-exec"),
    "socat": spec("-L -W -t -T -b -l -lp"),
    "openssl": spec(
        "-connect -in -out -k -pass -K -iv -e_ -inkey -passin -passout -host -port -proxy -subj "
        "-newkey -days -keyout -config -CA -CAkey",
        single_dash=True,
    ),
    "shred": spec("-n --iterations -s --size --random-source"),
    "gpg": spec("-o --output -r --recipient -u --local-user --homedir --passphrase --keyserver --batch_ --recv-keys_"),
    "zip": spec("-P -t -tt -x -i -n -b -s"),
    "7z": spec("", single_dash=True),
    "npm": spec("--prefix --registry -w --workspace --tag --otp --access --userconfig -C"),
    "pip": spec(
        "-r --requirement -t --target -i --index-url --extra-index-url -c --constraint --prefix "
        "--root --python --log --proxy --trusted-host -f --find-links --timeout --cert --src "
        "--progress-bar"
    ),
    "apt-get": spec("-o --option -c --config-file -t --target-release -q_"),
    "tmux": spec("-L -S -f -c -t -s -n -x -y -F -e"),
    "screen": spec("-S -X_ -c -e -h -p -s -t -T"),
    "su": spec("-c --command -s --shell -g --group -G --supp-group -w -T --session-command"),
    "vim": spec("-c --cmd -S -u -i -t -T -w -W -r_ -U"),
    "iptables": spec(
        "-t --table -A -I -D -p --protocol -s --source -d --destination -j --jump -i -o -m --match --dport --sport -P"
    ),
    "sysctl": spec("-p_ -r"),
    "ip": spec("-n -netns -l -f -family -rc -b -batch", single_dash=True),
    "make": spec("-f --file -C --directory -I -j_ -W -o --eval"),
    "vagrant": spec("-c --command -m --machine-readable_"),
    "ansible": spec(
        "-m --module-name -a --args -i --inventory -u --user -e --extra-vars -f --forks -l --limit "
        "-t --tree -B -P -c --connection -T --timeout --private-key -M --become-user "
        "--become-method"
    ),
    "pg_restore": spec(
        "-d --dbname -h --host -p --port -U --username -F --format -j --jobs -n --schema -t --table -f --file -L"
    ),
    "aria2c": spec("-o --out -d --dir -i -x -s -j --input-file"),
}

_SAME = {
    "docker": "podman nerdctl docker-compose podman-compose finch buildah crictl",
    "kubectl": "oc k kubecolor",
    "terraform": "tofu terragrunt packer",
    "python": "python2 python3 pypy pypy3",
    "node": "nodejs deno bun tsx ts-node",
    "awk": "gawk mawk nawk",
    "perl": "perl5",
    "lua": "luajit",
    "mysql": "mariadb mycli",
    "psql": "pgcli cockroach",
    "sqlite3": "litecli duckdb",
    "redis-cli": "valkey-cli keydb-cli",
    "mongosh": "mongo",
    "vim": "vi nvim view ex ed gvim vimdiff rvim rview",
    "nc": "ncat netcat",
    "gpg": "gpg2",
    "7z": "7za 7zz",
    "pip": "pip3 pipx uv",
    "npm": "pnpm yarn bun",
    "apt-get": "apt aptitude",
    "iptables": "ip6tables nft",
    "sed": "gsed",
    "tar": "bsdtar gtar",
    "chmod": "gchmod",
    "rm": "grm",
}
for _name, _others in _SAME.items():
    for _other in _others.split():
        SPECS.setdefault(_other, SPECS[_name])
