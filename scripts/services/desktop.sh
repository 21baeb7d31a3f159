# An X server without a screen, the programs that drive it, and an accessibility bus.

up() {
    install_packages Xvfb xdotool scrot dbus-run-session -- xvfb xdotool scrot dbus-daemon at-spi2-core
    status
}

down() { :; }

status() {
    command -v Xvfb >/dev/null || fail "down"
    command -v xdotool >/dev/null || fail "xdotool is missing"
    say "up"
}
