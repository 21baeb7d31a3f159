# The weights of the small models that tests run, in the cache of this user (or in TOOLCRIB_MODEL_DIR). They stay there:
# fetching them anew would take minutes.

up() {
    make --silent .venv/.dev
    local folder
    folder=$(.venv/bin/python scripts/services/fetch_models.py)
    record MODEL_DIR "$folder"
    status
}

down() {
    forget MODEL_DIR
}

status() {
    local folder
    folder=$(recall MODEL_DIR)
    [ -n "$folder" ] && [ -d "$folder" ] || fail "down"
    say "up ($folder)"
}
