# podman with storage of its own, behind a script that names it, and its docker-compatible socket.
# A container with a network would make a bridge and firewall rules on the host, so the default here is none.

up() {
    need_root
    install_packages podman runc -- podman runc fuse-overlayfs uidmap catatonit
    local folder program
    folder=$(data_folder)/podman
    program=$folder/podman
    mkdir -p "$folder"
    # Never changed under a running one: it keeps its locks as it was told at the start.
    [ -e "$folder/containers.conf" ] || write_config "$folder"
    write_program "$folder" "$(command -v podman)"
    record PODMAN "$program"
    record CONTAINERS_CONF "$folder/containers.conf"
    import_image "$program" 2>"$folder/import.log" || fail "no image: $(tail -n 5 "$folder/import.log")"
    record PODMAN_HOST "unix://$folder/podman.sock"
    if ! runs PODMAN_PROCESS; then
        rm -f "$folder/podman.sock"
        start_daemon PODMAN_PROCESS "$folder/log" "$program" system service --time 0 "unix://$folder/podman.sock"
        wait_until 20 test -S "$folder/podman.sock" || fail "its socket does not appear: $(tail -n 5 "$folder/log")"
    fi
    status
}

write_config() {
    # The limits: podman asks for more than a root without CAP_SYS_RESOURCE may give. The runtime: crun refuses machines
    # that have both versions of control groups.
    cat >"$1/containers.conf" <<END
[containers]
default_ulimits = ["nofile=4096:4096", "nproc=4096:4096"]
netns = "none"
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
tmp_dir = "$1/tmp"
lock_type = "file"
END
}

write_program() {
    cat >"$1/podman" <<END
#!/bin/sh
export CONTAINERS_CONF='$1/containers.conf'
exec '$2' --root '$1/root' --runroot '$1/run' "\$@"
END
    chmod 755 "$1/podman"
}

down() {
    local program
    program=$(recall PODMAN)
    stop_daemon PODMAN_PROCESS
    if [ -n "$program" ] && [ -x "$program" ]; then
        timeout 60 "$program" rm --all --force --time 0 >/dev/null || true
    fi
    forget PODMAN PODMAN_HOST CONTAINERS_CONF
}

status() {
    local program
    program=$(recall PODMAN)
    [ -x "$program" ] || fail "down"
    timeout 30 "$program" run --rm --network none toolcrib-test:latest true || fail "installed, but runs no container"
    runs PODMAN_PROCESS || fail "its socket is down"
    say "up ($program, $(recall PODMAN_HOST))"
}
