# The data folder and the state, removed when all services are down.

down() {
    local folder
    folder=$(recall FOLDER)
    if [ -n "$folder" ] && [ -d "$folder" ]; then
        unmount_under "$folder"
        rm -rf --one-file-system "$folder" || fail "$folder could not be removed"
    fi
    rm -rf .services
}
