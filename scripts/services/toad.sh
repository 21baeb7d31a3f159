# Toad, an editor for agents in the terminal that others wrote, as a client of the Agent Client Protocol. It needs Python
# 3.14, which comes from the packages of a later Debian: unpacked with their own C library, so the system gets nothing.

folder=.services/toad
suite=forky
toad=batrachian-toad==0.6.20

up() {
    if ! is_complete root; then
        rm -rf "$folder"
        mkdir -p "$folder"
        get_python
        complete root
    fi
    if ! is_complete toad; then
        make --silent .venv/.dev
        get_toad
        complete toad
    fi
    note TOAD "$(realpath "$folder")/toad/bin/toad"
    status
}

# Python and all that it depends on, from the machine's own mirror; apt believes that nothing is installed.
get_python() {
    local here mirror package root
    here=$(realpath "$folder")
    mirror=$(apt-get indextargets --format '$(REPO_URI)' | grep -m 1 '/debian/*$') || fail "apt knows no Debian mirror"
    mkdir -p "$here"/apt/{lists/partial,cache/archives/partial}
    : >"$here/apt/status"
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $suite main" >"$here/apt/sources.list"
    local options=(
        -qq -o Dir::Etc::SourceList="$here/apt/sources.list" -o Dir::Etc::SourceParts=/dev/null
        -o Dir::State::Lists="$here/apt/lists" -o Dir::State::Status="$here/apt/status" -o Dir::Cache="$here/apt/cache"
        -o APT::Install-Recommends=false -o APT::Sandbox::User=root -o Acquire::Retries=2
    )
    say "getting Python 3.14 from Debian $suite …"
    { apt-get "${options[@]}" update && apt-get "${options[@]}" install --download-only --yes python3.14; } \
        >"$here/apt.log" 2>&1 || fail "apt cannot get python3.14: $(tail -n 1 "$here/apt.log")"
    root=$here/root
    for package in "$here"/apt/cache/archives/*.deb; do
        dpkg --extract "$package" "$root"
    done
    rm -rf "$here/apt"
    # By its own loader: the C library of this machine is older.
    cat >"$here/python" <<END
#!/bin/sh
exec $root/usr/lib64/ld-linux-x86-64.so.2 --library-path $root/usr/lib/x86_64-linux-gnu \\
    --argv0 $root/usr/bin/python3.14 $root/usr/bin/python3.14 "\$@"
END
    chmod 755 "$here/python"
}

get_toad() {
    local here pip packages
    here=$(realpath "$folder")
    packages=$here/root/usr/local/lib/python3.14/dist-packages
    pip=$(.venv/bin/python -c 'import pip; print(pip.__path__[0])')
    say "installing $toad …"
    "$here/python" -W ignore "$pip" install --quiet --disable-pip-version-check --root-user-action ignore \
        --only-binary :all: --target "$packages" "$toad" >"$here/pip.log" 2>&1 ||
        fail "pip cannot install $toad: $(tail -n 1 "$here/pip.log")"
    mkdir -p "$here/toad/bin"
    printf '#!/bin/sh\nexec %s -m toad "$@"\n' "$here/python" >"$here/toad/bin/toad"
    chmod 755 "$here/toad/bin/toad"
}

down() {
    rm -rf "$folder"
    forget TOAD
}

status() {
    local program
    program=$(recall TOAD)
    [ -n "$program" ] || fail "down"
    say "up ($("$program" --version), $folder)"
}
