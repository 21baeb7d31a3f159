# An ssh server on a free port of 127.0.0.1, and an ordinary user with an empty home, who logs in by key.

up() {
    need_root
    install_packages sshd ssh ssh-keygen -- openssh-server openssh-client
    local folder
    folder=$(data_folder)/ssh
    if [ ! -e "$folder/complete" ]; then
        rm -rf "$folder"
        mkdir -m 711 "$folder"
        ssh-keygen -q -t ed25519 -N '' -C toolcrib-test -f "$folder/host_key"
        ssh-keygen -q -t ed25519 -N '' -C toolcrib-test -f "$folder/key"
        install -m 644 "$folder/key.pub" "$folder/authorized_keys"
        touch "$folder/complete"
    fi
    make_user "$folder"
    record SSH_HOST 127.0.0.1
    record SSH_KEY "$folder/key"
    record SSH_KNOWN_HOSTS "$folder/known_hosts"
    if ! runs SSH_PROCESS || ! answers; then
        # Another program may take the port in between.
        start "$folder" || start "$folder" || fail "sshd does not answer: $(tail -n 5 "$folder/log")"
    fi
    status
}

make_user() {
    local name
    name=$(recall SSH_USER)
    if [ -n "$name" ] && id "$name" >/dev/null 2>&1; then
        [ ! -d "$1/home" ] || return 0
        remove_user
    fi
    name=toolcrib-test-$RANDOM
    mkdir -p "$1/skeleton"
    touch "$1/skeleton/.bashrc"
    useradd --create-home --home-dir "$1/home" --skel "$1/skeleton" --shell /bin/bash "$name"
    # No password fits, and yet the account is not locked.
    usermod --password '*' "$name"
    record SSH_USER "$name"
    record SSH_UID "$(id -u "$name")"
}

start() {
    local folder=$1 port
    stop_daemon SSH_PROCESS
    port=$(free_port)
    record SSH_PORT "$port"
    echo "[127.0.0.1]:$port $(cut -d' ' -f1,2 "$folder/host_key.pub")" >"$folder/known_hosts"
    cat >"$folder/sshd_config" <<END
Port $port
ListenAddress 127.0.0.1
HostKey $folder/host_key
PidFile $folder/pid
AuthorizedKeysFile $folder/authorized_keys
AllowUsers $(recall SSH_USER)
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
UseDNS no
StrictModes no
Subsystem sftp internal-sftp
MaxSessions 50
MaxStartups 100
LoginGraceTime 30
END
    mkdir -p /run/sshd
    # It starts itself anew for every connection, so it wants its full path.
    start_daemon SSH_PROCESS "$folder/log" "$(PATH=$PATH:/usr/sbin command -v sshd)" -D -e -f "$folder/sshd_config"
    wait_until 10 answers
}

free_port() {
    local port attempt
    for attempt in {1..50}; do
        # Below the ports that the kernel gives to outgoing connections.
        port=$((20000 + RANDOM % 12000))
        if ! (: <"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then
            echo "$port"
            return
        fi
    done
    fail "no free port after $attempt attempts"
}

answers() {
    timeout 10 ssh -F none -i "$(recall SSH_KEY)" -p "$(recall SSH_PORT)" \
        -o UserKnownHostsFile="$(recall SSH_KNOWN_HOSTS)" -o StrictHostKeyChecking=yes \
        -o BatchMode=yes -o IdentitiesOnly=yes "$(recall SSH_USER)@127.0.0.1" true
}

down() {
    stop_daemon SSH_PROCESS
    remove_user
    forget SSH_HOST SSH_PORT SSH_KEY SSH_KNOWN_HOSTS
}

remove_user() {
    local name uid
    name=$(recall SSH_USER)
    uid=$(recall SSH_UID)
    if [ -n "$name" ] && [ "$(id -u "$name" 2>/dev/null)" = "$uid" ]; then
        # Whatever its sessions left behind; the user is ours, so are its processes.
        pkill -KILL --uid "$uid" || true
        wait_until 10 no_process_of "$uid" || fail "processes of $name do not end"
        userdel "$name"
    fi
    forget SSH_USER SSH_UID
}

no_process_of() {
    ! pgrep --uid "$1"
}

status() {
    runs SSH_PROCESS && answers || fail "down"
    say "up ($(recall SSH_USER)@127.0.0.1 port $(recall SSH_PORT))"
}
