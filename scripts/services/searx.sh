# Searx, a search server of the family that `web_search` talks to, from Debian's package. It is under the AGPL, so it is
# only started by a test, in an environment of its own, and asks nothing but a server of that test.

folder=.services/searx

up() {
    if [ ! -e "$folder/.complete" ]; then
        make --silent .venv/.dev
        rm -rf "$folder"
        mkdir -p "$folder"
        # Unpacked, not installed: the system gets no web server.
        (cd "$folder" && apt-get download --quiet searx python3-searx >apt.log 2>&1) ||
            fail "apt cannot get searx: $(tail -n 1 "$folder/apt.log")"
        local package
        for package in "$folder"/*.deb; do
            dpkg --extract "$package" "$folder/root"
        done
        .venv/bin/python -m venv "$folder/python"
        "$folder/python/bin/python" -m pip install --quiet --disable-pip-version-check \
            'flask<2.3' 'werkzeug<2.3' 'flask-babel<3' 'lxml<5' 'httpx<0.20' brotli certifi langdetect pygments \
            pyopenssl python-dateutil pyyaml requests setproctitle
        touch "$folder/.complete"
    fi
    record SEARX "$PWD/$folder"
    status
}

down() {
    rm -rf "$folder"
    forget SEARX
}

status() {
    [ -n "$(recall SEARX)" ] || fail "down"
    say "up ($folder)"
}
