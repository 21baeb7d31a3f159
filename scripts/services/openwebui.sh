# Open WebUI, a chat front end that others wrote, in an environment of its own under .services/openwebui. It is under its
# own licence, so it is only started by a test. What it does with models of its own is left out: that would be
# gigabytes, and it asks our server instead.

folder=.services/openwebui
left_out=(torch sentence-transformers accelerate faster-whisper rapidocr opencv-python-headless)

up() {
    if ! is_complete python; then
        make --silent .venv/.dev
        .venv/bin/python -c 'import sys; sys.exit(sys.version_info >= (3, 13))' ||
            fail "Open WebUI needs Python 3.11 or 3.12"
        rm -rf "$folder"
        mkdir -p "$folder"
        .venv/bin/python -m venv "$folder/python"
        # pip cannot leave out what a package asks for; uv can.
        "$folder/python/bin/python" -m pip install --quiet --disable-pip-version-check uv==0.13.7
        printf "%s ; python_version < '3'\n" "${left_out[@]}" >"$folder/left-out.txt"
        [ -n "${SSL_CERT_FILE:-}" ] || [ ! -e "$certificates" ] || export SSL_CERT_FILE=$certificates
        say "installing open-webui …"
        "$folder/python/bin/uv" pip install --quiet --python "$folder/python/bin/python" \
            --override "$folder/left-out.txt" open-webui==0.12.4 2>"$folder/uv.log" ||
            fail "uv could not install it: $(tail -n 3 "$folder/uv.log")"
        complete python
    fi
    note OPEN_WEBUI "$PWD/$folder/python/bin/open-webui"
    status
}

down() {
    rm -rf "$folder"
    forget OPEN_WEBUI
}

status() {
    [ -n "$(recall OPEN_WEBUI)" ] || fail "down"
    say "up ($folder)"
}
