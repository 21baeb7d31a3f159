"""Options, settings and variables that take a command, code, or a file that will run, as data for each program."""

from __future__ import annotations

import re

import msgspec

from toolcrib.approval.shell.model import name_set

WITH_SUBCOMMANDS = name_set("git go")
"""Programs whose sub-commands have rows of their own: `git clone pull` are two of them."""

# Programs | options | what the value is:
#   command   a command line that the program runs, usually with more words after it
#   tool      the same for compilers and the like, which are often files of the project
#   program   a command line that is judged like any other, because running it is what the option is for
#   file      a file that is loaded as code, or as settings that run commands
#   engine    a library that is loaded: a plain name is found by the system, a path is not
#   setting   `key=value`; SETTINGS says what the keys do
#   exec=     a command after that prefix; |command likewise
#   binds     keys and what they run
#   options   more options of the same program
#   written   a file or folder that the program writes
#   ask       the value does not tell what happens
#   python, node, …  code in that language
# `NAME=`, `-name:` and `+` are the beginnings of words whose rest is the value.
TABLE = """
git | -c --config-env | setting
git | --exec-path | command
git clone init | --template | file
git clone | -c --config | setting
git clone fetch pull ls-remote fetch-pack | -u --upload-pack --exec | command
git push send-pack archive | --receive-pack --exec | command
git difftool | -x --extcmd | command
git grep | -O --open-files-in-pager | command
git rebase | -x --exec | program
git shell | -c | program
git send-email | --sendmail-cmd --to-cmd --cc-cmd --header-cmd | command
git send-email | --smtp-server | engine
git instaweb | -d --httpd -b --browser | command
git web--browse help | -b --browser -t --tool | command
git filter-branch | --tree-filter --index-filter --msg-filter --env-filter --commit-filter --setup | program
git svn cvsimport | --authors-prog | command
hg | --config | setting
hg | -e --ssh --remotecmd | command
svn | --diff-cmd --diff3-cmd --editor-cmd | command
svn | --config-option | setting
tar gtar bsdtar | -I --use-compress-program | command
tar gtar bsdtar | --to-command --rsh-command --rmt-command -F --info-script --new-volume-script | command
tar gtar bsdtar | --checkpoint-action | exec=
zip | -TT --unzip-command | command
rsync | -e --rsh --rsync-path | command
rg | --pre --hostname-bin | command
sort gsort | --compress-program | command
ag ack bat batcat delta | --pager | command
man | -P --pager -H --html | command
less more most | +! | program
less | -k --lesskey-file --lesskey-src | file
scp sftp | -S -D | command
ssh scp sftp ssh-copy-id autossh sshfs check_by_ssh | -o | setting
ssh scp sftp autossh sshfs | -F | file
mosh | --ssh --server | command
ssh-keygen | -D -w | engine
ssh-add | -s -S | engine
strace ltrace | -o --output | |command
gdb | -x -ix --command --init-command | file
lldb | -s --source -S --source-before-file | file
make gmake bmake | MAKE= | command
make gmake bmake | .SHELLFLAGS= | ask
make gmake bmake | SHELL= CC= CXX= CPP= LD= AR= AS= FC= RM= INSTALL= RANLIB= STRIP= PYTHON= CARGO= GO= NODE= NPM= | tool
make gmake bmake ninja | -f --file --makefile | file
cmake ctest | -P -S --script | file
cmake | -DCMAKE_C_COMPILER= -DCMAKE_CXX_COMPILER= -DCMAKE_MAKE_PROGRAM= -DCMAKE_LINKER= -DCMAKE_AR= | tool
cmake | -DCMAKE_C_COMPILER_LAUNCHER= -DCMAKE_CXX_COMPILER_LAUNCHER= | tool
npm pnpm yarn npx | --script-shell --shell --git --editor --viewer --browser | tool
npm pnpm yarn npx | --node-options | node_options
npm pnpm yarn npx | --userconfig --globalconfig --init-module --onload-script | file
node nodejs tsx ts-node bun electron | -r --require --import --loader --experimental-loader --preload | file
cargo | --config | setting
go run test | -exec | command
go build run test install vet list get generate | -toolexec -vettool | command
go build run test install vet list | -overlay -modfile | file
bazel bazelisk | --run_under --override_repository | command
configure | CC= CXX= CPP= LD= AR= SHELL= CONFIG_SHELL= | tool
gcc g++ cc c89 c99 c++ clang clang++ gfortran | -fplugin= -specs= | file
gcc g++ cc c89 c99 c++ clang clang++ gfortran | -wrapper | ask
rustc | linker= -Clinker= | tool
java | -javaagent: -agentpath: -agentlib: | engine
java | -XX:OnOutOfMemoryError= -XX:OnError= | command
mvn mvnw | -Dexec.executable= | ask
jj | --config --config-toml | setting
mvn mvnw | -s --settings -gs --global-settings | file
gradle gradlew | -I --init-script -b --build-file | file
apt apt-get aptitude apt-cache | -o --option | setting
apt apt-get aptitude | -c --config-file | file
dpkg | --pre-invoke --post-invoke --status-logger | command
rpm rpmbuild rpmquery rpmverify dnf yum | -E --eval | rpm
rpm rpmbuild | --pipe | command
pacman | --hookdir --config | file
pip pip3 uv | --python | file
pip pip3 | --install-option --global-option | ask
nvim | -l | file
emacs emacsclient | -l --load -script --script | file
vim vi nvim gvim view ex vimdiff rvim rview | -S -u -U | file
nano pico | -s --speller -f --rcfile | command
ruby | -r | file
rake | -e --execute -p --execute-print -E --execute-continue | ruby
perl | -I | search
php | -d | setting
php | -c -z --zend-extension | file
lua luajit | -l | file
awk gawk mawk nawk | -l --load | engine
awk gawk mawk nawk | -f --file -E --exec | file
sed gsed bc dc | -f --file | file
ipython ipython3 | -c | ipython
pytest py.test | -c --confcutdir --rootdir | file
pytest py.test | -p | engine
bash sh zsh ksh dash fish | --rcfile --init-file | file
fish | -C --init-command | program
fzf sk | --preview --cmd | command
fzf sk | --bind | binds
parallel | --wrapper --ssh --shell --tmpl | command
parallel | -J --profile | file
openssl | -engine -provider -provider-path | engine
openssl | -config | file
openvpn | --up --down --route-up --client-connect --tls-verify --plugin --ipchange --learn-address | command
curl | -K --config | file
curl | --engine | engine
wget | --use-askpass | command
wget | -e --execute | setting
wget | --config | file
aria2c | --on-download-complete --on-download-start --on-download-error --on-bt-download-complete | command
yt-dlp youtube-dl | --exec --exec-before-download --external-downloader --downloader --netrc-cmd | command
ncat | --lua-exec | file
tcpdump | -z | command
nmap | --script --datadir | file
systemd-run | --on-calendar --on-active --on-boot --on-startup --on-unit-active --on-unit-inactive | ask
systemd-run | --path-property --socket-property --timer-property | ask
helm | --post-renderer | command
ansible ansible-playbook | --vault-password-file --become-password-file --connection-password-file | file
ansible ansible-playbook | --ssh-common-args --ssh-extra-args --sftp-extra-args --scp-extra-args | ssh_options
ansible ansible-playbook | -M --module-path | file
terraform tofu terragrunt | -plugin-dir | file
terragrunt | --terragrunt-tfpath --tf-path | command
mysql mariadb | --pager | command
mysql mariadb | --plugin-dir --init-file | file
sqlite3 duckdb | -init | file
redis-cli | --eval | file
mutt neomutt | -F | file
mutt neomutt | -e | ask
mail mailx | -S | setting
sendmail | -C | file
tmux | -f | file
screen | -c | file
xterm urxvt rxvt konsole kitty alacritty foot gnome-terminal terminator | -e --command -x --execute | program
rlwrap | -z --filter | command
latex pdflatex xelatex lualatex tex latexmk | -shell-escape --shell-escape -enable-write18 --enable-write18 | ask
latexmk | -e | perl
groff troff pic eqn tbl man nroff | -U | ask
crash gnuplot gdb-multiarch psftp plink | -i -b -batch | file
pandoc | --pdf-engine | tool
pandoc | -F --filter | command
pandoc | -L --lua-filter | file
gpg gpg2 | --photo-viewer --exec-path --agent-program --dirmngr-program --pinentry-program | command
gpg gpg2 | --options | file
restic | --password-command | command
restic | -o --option | setting
borg | --rsh --remote-path | command
rclone | --password-command --metadata-mapper | command
nix nix-shell nix-build | --post-build-hook --builders | ask
protoc buf | --plugin | tool
ocamlfind ocamlopt ocamlc | -pp -ppx | command
ghc runghc | -pgmF -pgmP | command
valgrind | --db-command | command
ld lld | -plugin | engine
webpack rollup vite eslint prettier jest vitest mocha babel | --config --plugin --require | file
pylint | --init-hook | python
agetty getty mingetty | -l --login-program | command
cowsay cowthink | -f | engine
perlbug | -e --editor | program
rtorrent | -o -O | ask
busctl dbus-send dbus-monitor | --address | ask
augtool | -s --autosave -f --file -i --interactive | ask
"""

# Variables | what their value is. A `*` stands for any characters; `search` is a list of folders that code comes from.
VARIABLES_TABLE = """
GIT_SSH_COMMAND GIT_SSH RSYNC_RSH SVN_SSH CVS_RSH BORG_RSH | transport
GIT_EXTERNAL_DIFF GIT_ASKPASS | command
PAGER MANPAGER GIT_PAGER SYSTEMD_PAGER PSQL_PAGER AWS_PAGER BAT_PAGER DELTA_PAGER GH_PAGER GLAB_PAGER HGPAGER | pager
LESSOPEN LESSCLOSE | command
EDITOR VISUAL GIT_EDITOR GIT_SEQUENCE_EDITOR SUDO_EDITOR SYSTEMD_EDITOR KUBE_EDITOR HGEDITOR | editor
SVN_EDITOR FCEDIT PSQL_EDITOR GH_EDITOR | editor
BROWSER GH_BROWSER | browser
SSH_ASKPASS SUDO_ASKPASS HGMERGE FZF_DEFAULT_COMMAND | command
BORG_PASSCOMMAND RESTIC_PASSWORD_COMMAND RCLONE_PASSWORD_COMMAND TEXEDIT NULLCMD READNULLCMD | command
npm_config_script_shell npm_config_git npm_config_editor NPM_CONFIG_SCRIPT_SHELL NPM_CONFIG_GIT CONFIG_SHELL | command
MAKE GIT_PROXY_COMMAND | command
CC CXX CPP LD AR AS FC RANLIB STRIP LEX YACC PKG_CONFIG RUSTC RUSTDOC CARGO_BUILD_RUSTC* | tool
RUSTC_WRAPPER RUSTC_WORKSPACE_WRAPPER CARGO_TARGET_*_RUNNER CARGO_TARGET_*_LINKER CCACHE_PREFIX | tool
CMAKE_C_COMPILER_LAUNCHER CMAKE_CXX_COMPILER_LAUNCHER | tool
SHELL PYTHONSTARTUP PSQLRC INPUTRC SCREENRC GIT_CONFIG_GLOBAL GIT_CONFIG_SYSTEM GIT_CONFIG GIT_TEMPLATE_DIR | file
R_PROFILE R_PROFILE_USER R_ENVIRON_USER WGETRC PIP_CONFIG_FILE NPM_CONFIG_USERCONFIG npm_config_userconfig | file
KUBECONFIG AWS_CONFIG_FILE DOCKER_CONFIG BOTO_CONFIG CLOUDSDK_CONFIG | file
GIT_EXEC_PATH HGRCPATH PHPRC PHP_INI_SCAN_DIR MAKEFILES DOTNET_STARTUP_HOOKS | file
OPENSSL_CONF ZDOTDIR IPYTHONDIR JUPYTER_CONFIG_DIR VIMRUNTIME MYVIMRC LESSKEY LESSKEYIN RIPGREP_CONFIG_PATH | file
PYTHONHOME PYTHONUSERBASE NODE_PATH PERLLIB PERL5LIB RUBYLIB PYTHONPATH LUA_PATH LUA_CPATH CLASSPATH | search
GCONV_PATH LD_LIBRARY_PATH DYLD_LIBRARY_PATH DYLD_FALLBACK_LIBRARY_PATH GEM_PATH GEM_HOME EMACSLOADPATH | search
OPENSSL_ENGINES OPENSSL_MODULES TCLLIBPATH | search
PERL5OPT PERL5DB | perl_options
RUBYOPT | ruby_options
NODE_OPTIONS BUN_OPTIONS npm_config_node_options NPM_CONFIG_NODE_OPTIONS | node_options
JAVA_TOOL_OPTIONS _JAVA_OPTIONS JDK_JAVA_OPTIONS JAVA_OPTS MAVEN_OPTS GRADLE_OPTS SBT_OPTS JVM_OPTS | java_options
GOFLAGS | go_options
MAKEFLAGS GNUMAKEFLAGS MFLAGS | make_options
TAR_OPTIONS | tar_options
FZF_DEFAULT_OPTS | fzf_options
LESS MORE | less_options
VIMINIT EXINIT | vim
PYTHONBREAKPOINT GIT_CONFIG_PARAMETERS ZIPOPT | ask
GIT_TRACE* GIT_INDEX_FILE GIT_OBJECT_DIRECTORY HISTFILE LESSHISTFILE SQLITE_HISTORY MYSQL_HISTFILE | written
PSQL_HISTORY NODE_REPL_HISTORY PYTHON_HISTORY COVERAGE_FILE LLVM_PROFILE_FILE PYTHONPYCACHEPREFIX | written
RUSTFLAGS CARGO_BUILD_RUSTFLAGS CARGO_ENCODED_RUSTFLAGS RUSTDOCFLAGS | rust_options
LUA_INIT | lua
GIT_CONFIG_KEY_* | git_key
CFLAGS CXXFLAGS CPPFLAGS LDFLAGS CGO_CFLAGS CGO_CXXFLAGS CGO_LDFLAGS | compiler_options
PIP_INDEX_URL PIP_EXTRA_INDEX_URL UV_INDEX_URL UV_DEFAULT_INDEX UV_INDEX UV_EXTRA_INDEX_URL GOPROXY | index
NPM_CONFIG_REGISTRY npm_config_registry YARN_REGISTRY YARN_NPM_REGISTRY_SERVER | index
"""

EXPECTED: dict[str, frozenset[str]] = {
    "pager": name_set(
        "less more most cat bat batcat delta diff-so-fancy head tail col sed tee vim nvim view ov moar moor pspg lv w3m"
    ),
    "editor": name_set(
        "vim vi nvim nano pico emacs emacsclient code codium cursor zed hx helix micro kak joe ne subl gedit "
        "kate mate ed ex "
        "true : cat echo touch sed perl cp git notepad idea pycharm webstorm"
    ),
    "transport": name_set("ssh plink autossh tsh"),
    "browser": name_set(
        "firefox chromium chromium-browser google-chrome chrome brave safari open xdg-open none w3m lynx links "
        "echo true cat wslview"
    ),
}
"""What the variables of each kind usually name; anything else that they run needs approval."""
OFFICIAL_INDEX = re.compile(
    r"(?!\w+://)|https://(?:pypi\.org|test\.pypi\.org|registry\.npmjs\.org|registry\.yarnpkg\.com|proxy\.golang\.org|download\.pytorch\.org"
    r"|rubygems\.org|jsr\.io|npm\.jsr\.io|npm\.pkg\.github\.com|pypi\.nvidia\.com|pypi\.ngc\.nvidia\.com|data\.pyg\.org)(?:[/,|]|$)"
    r"|https?://(?:localhost|127\.)"
)
"""Where packages may come from without a question."""
READS_OPTIONS = name_set(
    "source-file source load-buffer "
    "--kubeconfig --config --config-file --conf --userconfig --private-key --key --key-file --keyfile "
    "--ssh-key --identity "
    "--identity-file --cert --cacert --ca-file --netrc-file --env-file --from-file --input --input-file "
    "-in --requirement "
    "--include --exclude-from --files-from --body-file --values --rcfile --init-file --pubkey "
    "--public-key --known-hosts "
    "--credentials --vault-password-file --ssh --secret --build-arg --var --var-file -var -var-file "
    "--bind --volume -v "
    "--mount -e --env --message -m --title --body --description --text --comment"
)
"""Options whose value is read or is text."""

OPTIONS_THAT_RUN: dict[str, re.Pattern[str]] = {
    "perl_options": re.compile(r"-[MmIed]|.*\bBEGIN\b"),
    "ruby_options": re.compile(r"-[rIe]"),
    "node_options": re.compile(r"(?:.*\s)?(?:-r|--require|--import|--(?:experimental-)?loader)[\s=]*([^\s]+)"),
    "java_options": re.compile(r".*-(?:javaagent|agentpath|agentlib):|.*-XX:\+?On(?:OutOfMemory)?Error|.*-XX:Flags"),
    "go_options": re.compile(r".*-(?:toolexec|exec|vettool)\b"),
    "make_options": re.compile(r".*(?:-eval\b|-f\s|SHELL\s*=)"),
    "tar_options": re.compile(
        r".*(?:--(?:to-command|checkpoint-action|use-compress|rsh-command|info-script|new-volume)|-[IF])"
    ),
    "compiler_options": re.compile(r".*(?:-fplugin=|-wrapper\b|-specs=|-B\s*/tmp)"),
    "fzf_options": re.compile(r".*(?:--bind|--preview\b)"),
    "less_options": re.compile(r".*\+!|.*-k"),
    "ssh_options": re.compile(r"(?i).*(?:proxycommand|localcommand|knownhostscommand|pkcs11provider|-F)"),
    "rust_options": re.compile(r".*linker=\s*([^\s\x1f]+)"),
    "rpm": re.compile(r".*%[({]"),
}
"""Options inside one value: those that run commands or load code."""


class SettingKeys(msgspec.Struct, frozen=True):
    """Keys of `key=value`, in lower case: those that run a command, that load a file, and that do neither."""

    runs: re.Pattern[str]
    loads: re.Pattern[str]
    harmless: re.Pattern[str]


def setting(runs: str, loads: str = "$^", harmless: str = ".") -> SettingKeys:
    return SettingKeys(re.compile(runs), re.compile(loads), re.compile(harmless))


GIT_SETTING = setting(
    r"core\.(?:sshcommand|pager|editor|askpass|gitproxy|fsmonitor|alternaterefscommand)$|pager\.|sequence\.editor$"
    r"|diff\.external$|diff\..+\.(?:command|textconv)$|(?:diff|merge|gui)tool\..+\.(?:cmd|path)$|merge\..+\.driver$"
    r"|filter\..+\.(?:clean|smudge|process)$|credential\.(?:.+\.)?helper$|gpg\.(?:.+\.)?(?:program"
    r"|defaultkeycommand)$"
    r"|interactive\.difffilter$|trailer\..+\.(?:command|cmd)$|uploadpack\.packobjectshook$|imap\.tunnel$"
    r"|tar\..+\.command$"
    r"|(?:man|browser)\..+\.(?:cmd|path)$|(?:web|help|instaweb)\.(?:browser|httpd)$|submodule\..+\.update$|alias\."
    r"|remote\..+\.(?:uploadpack|receivepack|vcs)$|sendemail\.(?:.+\.)?(?:sendmailcmd|tocmd|cccmd|headercmd)$"
    r"|lfs\.customtransfer\..+\.path$",
    r"core\.(?:hookspath|attributesfile)$|include\.path$|includeif\..+\.path$|init\.templatedir$",
    r"(?:user|author|committer|color|column|advice|init|pull|push|fetch|log|branch|status|commit|tag"
    r"|merge|rebase|rerere"
    r"|format|gc|pack|index|feature|checkout|clone|diff|grep|blame|http|safe|remote|stash|submodule"
    r"|transfer|receive|lfs"
    r"|notes|versionsort|maintenance|worktree|gpg|apply|sequence|core|am|mailinfo|i18n|fsck|splitindex"
    r"|repack|show|delta"
    r"|difftool|mergetool|credential|filter|trace2|uploadpack|sendemail|web|man|help|interactive|pager|ssh|extensions"
    r"|protocol\.(?:version|https?|ssh|git|file))(?:\.|$)",
)
SSH_SETTING = setting(
    r"(?:proxycommand|localcommand|knownhostscommand|xauthlocation|ssh_command)$",
    r"(?:include|pkcs11provider|securitykeyprovider|smartcarddevice)$",
    r"addkeys|address|batch|bind|canonical|casignature|certificate|challenge|checkhost|cipher|clear"
    r"|compression|connect"
    r"|control|dynamic|enable|escape|exiton|fingerprint|fork|forward|gateway|global|gssapi|hash|host"
    r"|identit|ignore|ip"
    r"|kbd|kex|localforward|log|mac|nohost|number|password|permit|port|preferred|protocol|proxyjump"
    r"|proxyuse|pubkey|rekey"
    r"|remote|requesttty|required|revoked|send|server|session|setenv|stdin|stream|strict|syslog|tcpkeep|tunnel|update"
    r"|user|verify|visual|allow_|reconnect|follow_|cache|r[ow]$|[ug]id|default_|umask|idmap|auto_|volname",
)
SETTINGS: dict[str, SettingKeys] = {
    "git": GIT_SETTING,
    **dict.fromkeys(("ssh", "scp", "sftp", "ssh-copy-id", "autossh", "sshfs", "check_by_ssh"), SSH_SETTING),
    "cargo": setting(
        r"build\.rustc(?:-[\w-]+)?$|build\.rustdoc$|target\..+\.(?:runner|linker)$|alias\.|.*credential-provider$",
        r"include$|[./~]|.*\.toml$|paths$|patch\.|source\.",
        r"net|http|profile|term|build|env|install|target|registr|future|unstable|doc|cache",
    ),
    **dict.fromkeys(
        ("apt", "apt-get", "aptitude", "apt-cache"),
        setting(
            r".*invoke|dir::bin|.*(?:pager|command|hook|auto-?detect|pre-install-pkgs)|dpkg::(?:tools|chroot)",
            r"dir::(?!bin)",
            r"acquire|apt|debug|dpkg::(?:options|use-pty|lock|progress)|aptitude|quiet",
        ),
    ),
    "hg": setting(
        r"ui\.(?:ssh|editor|merge|remotecmd)$|pager\.pager$|alias\.|hooks\.|extdiff\.|merge-tools\.",
        r"extensions\.",
        r"(?:ui|diff|format|web|phases|experimental|progress|color|defaults|paths|email|devel)\.",
    ),
    "svn": setting(r".*(?:tunnels:|-cmd|editor)"),
    "php": setting(
        r"sendmail_path$", r"auto_(?:prepend|append)_file$|(?:zend_)?extension(?:_dir)?$|opcache\.preload$|ffi\."
    ),
    "wget": setting(
        r"use_askpass$", harmless=r"(?!output_document|logfile|dir_prefix|(?:post|body)_file|input|config)"
    ),
    "jj": setting(r".*(?:pager|editor|diff\.tool|formatter|merge-tools|aliases|backends|fsmonitor|\.command|program)"),
    "restic": setting(r".*command"),
    **dict.fromkeys(("mail", "mailx"), setting(r"(?:sendmail|mta|editor|visual|pager|shell|ncommand)$|pipe-")),
}
"""For each program, what the keys of its settings do; a key of no kind needs approval."""


def rows(table: str) -> dict[str, dict[str, str]]:
    """The table by program, or by program and sub-command: what each option's value is."""
    found: dict[str, dict[str, str]] = {}
    for line in table.strip().splitlines():
        programs, options, kind = line.split(" | ", 2)
        names = programs.split()
        if names[0] in WITH_SUBCOMMANDS and len(names) > 1:
            names = [f"{names[0]} {sub}" for sub in names[1:]]
        for name in names:
            found.setdefault(name, {}).update(dict.fromkeys(options.split(), kind))
    return found


BY_PROGRAM = rows(TABLE)
_VARIABLE_KINDS = {
    name: kind
    for names, _, kind in (line.partition(" | ") for line in VARIABLES_TABLE.strip().splitlines())
    for name in names.split()
}
VARIABLES = {name: kind for name, kind in _VARIABLE_KINDS.items() if "*" not in name}
VARIABLE_PATTERNS = [
    (name.partition("*")[0], name.partition("*")[2], kind) for name, kind in _VARIABLE_KINDS.items() if "*" in name
]


def kind_of_variable(name: str) -> str:
    """What the value of a variable is; empty for one that no program runs."""
    kind = VARIABLES.get(name, "")
    if not kind and name.startswith(("GIT_", "CARGO_")):
        for start, end, each in VARIABLE_PATTERNS:
            if name.startswith(start) and name.endswith(end):
                return each
    return kind
