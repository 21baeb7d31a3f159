# A client of the Agent Client Protocol that others wrote: acpx, with a Node that is new enough for it, under
# .services/acp; the system gets at most npm.

folder=.services/acp

up() {
    install_npm client node@24 acpx@0.19.1
    note ACP_NODE "$PWD/$folder/client/node_modules/.bin/node"
    note ACPX "$PWD/$folder/client/node_modules/.bin/acpx"
    status
}

down() {
    rm -rf "$folder"
    forget ACP_NODE ACPX
}

status() {
    local node
    node=$(recall ACP_NODE)
    [ -n "$node" ] || fail "down"
    say "up (node $("$node" --version), $folder)"
}
