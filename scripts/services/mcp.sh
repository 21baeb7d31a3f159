# What speaks MCP besides us: the official conformance suite, the public reference servers, and two generations of the
# Inspector, with a Node that is new enough for them. All of it lies under .services/mcp; the system gets at most npm.

folder=.services/mcp

up() {
    suite
    servers
    python_servers
    status
}

# The suite alone, with its Node: what scripts/mcp-conformance needs.
suite() {
    # The script may be run while the services come up.
    exec 8<scripts/services/mcp.sh
    flock --wait 220 8 || fail "another installation is still running"
    install_npm suite \
        node@24 \
        @modelcontextprotocol/conformance@0.2.0-alpha.12
    local node=$PWD/$folder/suite/node_modules/.bin/node
    case "$("$node" --version)" in
        v24.*) ;;
        *) fail "Node 24 was installed, but it does not run here" ;;
    esac
    note MCP_NODE "$node"
    note MCP_SUITE "$PWD/$folder/suite/node_modules/@modelcontextprotocol/conformance"
}

servers() {
    install_npm servers \
        @modelcontextprotocol/server-everything@2026.8.31 \
        @modelcontextprotocol/server-filesystem@2026.8.31 \
        @modelcontextprotocol/server-memory@2026.8.31 \
        @modelcontextprotocol/server-sequential-thinking@2026.8.31 \
        @modelcontextprotocol/inspector@2.12.0
    install_npm before @modelcontextprotocol/inspector@0.22.0
    note MCP_SERVERS "$PWD/$folder/servers/node_modules/.bin"
    note MCP_INSPECTOR_BEFORE "$PWD/$folder/before/node_modules/.bin"
}

# Apart from our own environment: they want other versions of what we use.
python_servers() {
    if ! is_complete python; then
        make --silent .venv/.dev
        rm -rf "$folder/python"
        .venv/bin/python -m venv "$folder/python"
        "$folder/python/bin/python" -m pip install --quiet --disable-pip-version-check \
            mcp-server-fetch==2026.10.24 mcp-server-git==2026.10.19 mcp-server-time==2026.10.19
        complete python
    fi
    note MCP_PYTHON_SERVERS "$PWD/$folder/python/bin"
}

down() {
    rm -rf "$folder"
    forget MCP_NODE MCP_SUITE MCP_SERVERS MCP_INSPECTOR_BEFORE MCP_PYTHON_SERVERS
}

status() {
    local node
    node=$(recall MCP_NODE)
    [ -n "$node" ] && [ -n "$(recall MCP_PYTHON_SERVERS)" ] || fail "down"
    say "up (node $("$node" --version), $folder)"
}
