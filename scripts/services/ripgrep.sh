# ripgrep, for the searches that are done by it.

up() {
    install_packages rg -- ripgrep
    status
}

down() { :; }

status() {
    command -v rg >/dev/null || fail "down"
    say "up ($(rg --version | sed -n 1p))"
}
