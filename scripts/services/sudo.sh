# sudo, with a password for the user who logs in over ssh. The password fits sudo alone: the server takes keys only.

up() {
    need_root
    install_packages sudo -- sudo
    local name
    name=$(recall SSH_USER)
    [ -n "$name" ] && id "$name" >/dev/null 2>&1 || fail "needs the user of the ssh service, which is down"
    if [ "$(recall SUDO_USER)" != "$name" ] || ! works; then
        allow "$name"
    fi
    status
}

allow() {
    local name=$1 password rule
    forbid
    password=sudo-$(od -An -N8 -tx1 /dev/urandom | tr -d ' \n')
    record SUDO_USER "$name"
    record SUDO_PASSWORD "$password"
    chpasswd <<<"$name:$password"
    rule=$(mktemp)
    # The lecture would be printed among what a command says.
    printf 'Defaults:%s !lecture\n%s ALL=(ALL) ALL\n' "$name" "$name" >"$rule"
    visudo --check --quiet --file="$rule"
    install -m 440 "$rule" "/etc/sudoers.d/$name"
    rm "$rule"
}

works() {
    recall SUDO_PASSWORD | timeout 20 runuser --user "$(recall SUDO_USER)" -- sudo -k -S -p '' true
}

forbid() {
    local name
    name=$(recall SUDO_USER)
    if [ -n "$name" ]; then
        rm -f "/etc/sudoers.d/$name" "/run/sudo/ts/$name" "/var/lib/sudo/lectured/$name"
        ! id "$name" >/dev/null 2>&1 || usermod --password '*' "$name"
    fi
    forget SUDO_USER SUDO_PASSWORD
}

down() {
    forbid
}

status() {
    [ -n "$(recall SUDO_USER)" ] && works || fail "down"
    say "up ($(recall SUDO_USER), $(command -v sudo))"
}
