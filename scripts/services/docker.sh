# A docker engine of our own: own data, own socket, no bridge and no firewall rules, so that the host's network stays as
# it is. Containers get `--network none` (or host).

up() {
    need_root
    install_packages dockerd docker -- docker.io iptables
    local folder host
    folder=$(data_folder)/docker
    host=unix://$folder/docker.sock
    record DOCKER_HOST "$host"
    if ! runs DOCKER_PROCESS || ! answers >/dev/null; then
        # Where overlay mounts are refused, plain copies do.
        start overlay2 || start vfs || fail "the engine does not start: $(tail -n 5 "$folder/log")"
    fi
    DOCKER_HOST=$host import_image docker
    status
}

start() {
    local folder host
    folder=$(data_folder)/docker
    host=$(recall DOCKER_HOST)
    stop_daemon DOCKER_PROCESS
    mkdir -p "$folder"
    start_daemon DOCKER_PROCESS "$folder/log" dockerd \
        --data-root "$folder/data-$1" --exec-root "$folder/exec" --pidfile "$folder/pid" --host "$host" \
        --bridge=none --iptables=false --ip6tables=false --ip-forward=false --ip-masq=false \
        --storage-driver="$1" --exec-opt native.cgroupdriver=cgroupfs
    wait_until 30 answers
}

answers() {
    timeout 10 docker --host "$(recall DOCKER_HOST)" version
}

down() {
    local folder host containers containerd
    folder=$(recall FOLDER)/docker
    host=$(recall DOCKER_HOST)
    if runs DOCKER_PROCESS; then
        mapfile -t containers < <(timeout 20 docker --host "$host" ps --all --quiet)
        if [ ${#containers[@]} -gt 0 ]; then
            timeout 60 docker --host "$host" rm --force --volumes "${containers[@]}" >/dev/null || true
        fi
    fi
    # The engine starts a containerd and ends it with itself, unless it had to be killed.
    containerd=$(cat "$folder/exec/containerd/containerd.pid" 2>/dev/null || true)
    if [ -n "$containerd" ] && grep -qaF "$folder" "/proc/$containerd/cmdline" 2>/dev/null; then
        record DOCKER_CONTAINERD_PROCESS "$containerd:$(start_time "$containerd")"
    fi
    stop_daemon DOCKER_PROCESS
    stop_daemon DOCKER_CONTAINERD_PROCESS
    end_containers "$folder"
    forget DOCKER_HOST
}

# Containers outlive an engine that was killed, each under a shim that names our folder.
end_containers() {
    local shim
    for shim in $(pgrep --full -- "containerd-shim.* -address $1/exec/" || true); do
        pkill -KILL --parent "$shim" || true
        kill -KILL "$shim" 2>/dev/null || true
    done
}

status() {
    runs DOCKER_PROCESS && answers >/dev/null || fail "down"
    timeout 30 docker --host "$(recall DOCKER_HOST)" run --rm --network none toolcrib-test:latest true ||
        fail "the engine answers, but runs no container"
    say "up ($(recall DOCKER_HOST))"
}
