# Home Assistant, for the tools of a smart home: the last version for Python 3.11, in an environment of its own. A test
# starts it, with a home of template devices. Its web page is left out: that and its requirements are most of its size.

folder=.services/homeassistant

up() {
    if [ ! -e "$folder/.complete" ]; then
        make --silent .venv/.dev
        mkdir -p "$folder"
        [ -e "$folder/python" ] || .venv/bin/python -m venv "$folder/python"
        # All of its requirements are in the list: to find out which ones fit takes longer than to install them.
        "$folder/python/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps \
            --requirement scripts/services/homeassistant.txt >"$folder/pip.log" 2>&1 ||
            fail "pip cannot install it: $(grep -v ^WARNING "$folder/pip.log" | tail -n 1)"
        touch "$folder/.complete"
    fi
    note HOMEASSISTANT "$PWD/$folder/python/bin/python"
    status
}

down() {
    rm -rf "$folder"
    forget HOMEASSISTANT
}

status() {
    local python
    python=$(recall HOMEASSISTANT)
    [ -n "$python" ] || fail "down"
    say "up ($("$python" -m homeassistant --version), $folder)"
}
