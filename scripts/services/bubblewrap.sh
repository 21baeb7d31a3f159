# bubblewrap, for the local sandbox.

up() {
    install_packages bwrap -- bubblewrap
    status
}

down() { :; }

status() {
    command -v bwrap >/dev/null || fail "down"
    bwrap --ro-bind / / --unshare-all true || fail "installed, but it cannot make a sandbox here"
    say "up ($(command -v bwrap))"
}
