# What every service uses: the state file, packages, daemons that are known by pid and start time, bounded waits.

state_file=.services/env

say() {
    echo "$service: $*"
}

fail() {
    echo "$service: $*" >&2
    exit 1
}

# ---- state: KEY=VALUE lines, quoted for a shell ----

record() {
    forget "$1"
    printf '%s=%q\n' "TOOLCRIB_TEST_$1" "$2" >>"$state_file"
}

recall() {
    (
        unset "TOOLCRIB_TEST_$1"
        [ ! -e "$state_file" ] || source "$state_file"
        name="TOOLCRIB_TEST_$1"
        printf '%s' "${!name:-}"
    )
}

forget() {
    mkdir -p .services
    touch "$state_file"
    local key
    for key in "$@"; do
        sed -i "/^TOOLCRIB_TEST_$key=/d" "$state_file"
    done
}

# The folder for all data, outside the repo: an engine's data root is large, and a socket's path must be short.
data_folder() {
    local folder
    folder=$(recall FOLDER)
    if [ ! -d "$folder" ]; then
        folder=$(mktemp -d "${TMPDIR:-/tmp}/toolcrib-services.XXXXXX")
        # The user who logs in over ssh passes through, and cannot look around.
        chmod 711 "$folder"
        record FOLDER "$folder"
    fi
    printf '%s' "$folder"
}

# ---- packages ----

# install_packages PROGRAM… -- PACKAGE…: installs the packages when one of the programs is missing.
install_packages() {
    local missing=()
    while [ "$1" != -- ]; do
        PATH=$PATH:/usr/sbin:/sbin command -v "$1" >/dev/null || missing+=("$1")
        shift
    done
    shift
    [ ${#missing[@]} -gt 0 ] || return 0
    if ! command -v apt-get >/dev/null || [ "$(id -u)" -ne 0 ]; then
        fail "${missing[*]} missing; run this as root on Debian, or install by hand: $*"
    fi
    say "installing $* …"
    local options=(-qq -o DPkg::Lock::Timeout=120 -o Acquire::Retries=2)
    apt-get "${options[@]}" update >/dev/null || say "not all package lists could be refreshed; going on"
    # The daemons of a package are not wanted, ours are started with settings of their own: 101 forbids it.
    local policy=/usr/sbin/policy-rc.d made=
    if [ ! -e "$policy" ]; then
        printf '#!/bin/sh\nexit 101\n' >"$policy"
        chmod 755 "$policy"
        made=$policy
    fi
    local code=0
    DEBIAN_FRONTEND=noninteractive apt-get "${options[@]}" install -y --no-install-recommends "$@" >/dev/null || code=$?
    [ -z "$made" ] || rm -f "$made"
    return "$code"
}

need_root() {
    [ "$(id -u)" -eq 0 ] || fail "needs root; run scripts/test-services as root on Debian"
}

# ---- waiting ----

# wait_until SECONDS COMMAND…: whether the command succeeded within that time.
wait_until() {
    local deadline=$((SECONDS + $1))
    shift
    until "$@" >/dev/null 2>&1; do
        [ "$SECONDS" -lt "$deadline" ] || return 1
        sleep 0.1
    done
}

# ---- daemons ----

start_time() {
    local stat
    stat=$(cat "/proc/$1/stat" 2>/dev/null) || return 1
    # The name, in brackets, may hold blanks: count from behind it. Field 22 of the line is the 20th after it.
    local fields
    read -ra fields <<<"${stat##*) }"
    printf '%s' "${fields[19]}"
}

# start_daemon KEY LOG COMMAND…: started in a session of its own; KEY remembers pid and start time.
start_daemon() {
    local key=$1 log=$2 pid
    shift 2
    setsid nohup "$@" >"$log" 2>&1 </dev/null &
    pid=$!
    record "$key" "$pid:$(start_time "$pid")"
}

# Whether the process under KEY is alive, and still the same one.
runs() {
    local pid started
    IFS=: read -r pid started <<<"$(recall "$1")"
    [ -n "$started" ] && [ "$(start_time "$pid")" = "$started" ] || return 1
    ! grep -q '^State:.Z' "/proc/$pid/status" 2>/dev/null
}

ended() {
    ! runs "$1"
}

stop_daemon() {
    local key=$1 pid
    if runs "$key"; then
        pid=$(recall "$key")
        pid=${pid%%:*}
        kill -TERM "$pid" 2>/dev/null || true
        if ! wait_until 20 ended "$key"; then
            kill -KILL "$pid" 2>/dev/null || true
            wait_until 5 ended "$key" || fail "process $pid does not end"
        fi
    fi
    forget "$key"
}

# Unmounts everything under a folder, the innermost first.
unmount_under() {
    local place
    awk -v under="$1/" 'index($5, under) == 1 { print $5 }' /proc/self/mountinfo | sort -r | while read -r place; do
        umount "$place" 2>/dev/null || umount --lazy "$place" 2>/dev/null || true
    done
}

# ---- images ----

# import_image ENGINE-COMMAND…: loads it into a container engine that does not have it.
import_image() {
    if ! "$@" image inspect toolcrib-test:latest >/dev/null 2>&1; then
        tar -C "$(recall IMAGE_FOLDER)" -c . |
            timeout 100 "$@" import --change 'CMD ["/bin/bash"]' - toolcrib-test:latest >/dev/null
    fi
}

# ---- packages of npm ----

certificates=/etc/ssl/certs/ca-certificates.crt

# install_npm NAME PACKAGE…: a folder of that name, in the $folder of the service, with these packages.
install_npm() {
    local name=$1
    shift
    ! is_complete "$name" || return 0
    install_packages node npm -- nodejs npm
    rm -rf "${folder:?}/$name"
    mkdir -p "$folder/$name"
    echo '{"private": true}' >"$folder/$name/package.json"
    say "installing $* …"
    # In the folder itself: with --prefix npm would not read the settings of the machine. A Node that knows no
    # certificates but its own is told of those of the machine.
    (
        cd "$folder/$name"
        [ -n "${NODE_EXTRA_CA_CERTS:-}" ] || [ ! -e "$certificates" ] || export NODE_EXTRA_CA_CERTS=$certificates
        npm install --no-package-lock --no-audit --no-fund --no-update-notifier --fetch-retries=2 \
            --fetch-retry-maxtimeout=10000 --loglevel=error "$@" >npm.log 2>&1
    ) || fail "npm could not install $*: $(tail -n 3 "$folder/$name/npm.log")"
    complete "$name"
}

is_complete() {
    [ -e "$folder/$1/.complete" ]
}

complete() {
    touch "$folder/$1/.complete"
}

# The state is read by tests that run meanwhile: what is right stays untouched.
note() {
    [ "$(recall "$1")" = "$2" ] || record "$1" "$2"
}
