# Chromium for the browser tools, and the tasks of MiniWoB++ (only its pages; its own requirements are not needed).

up() {
    install_packages chromium -- chromium fonts-liberation strace
    make --silent .venv/.dev
    .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps 'miniwob==1.1.0'
    status
}

down() { :; }

status() {
    command -v chromium >/dev/null || fail "down"
    .venv/bin/python -c 'import importlib.util as u, sys; sys.exit(u.find_spec("miniwob") is None)' || fail "miniwob is missing"
    say "up ($(chromium --version 2>/dev/null | tail -1))"
}
