# apptainer. Debian has it in its newest release only, built for a newer C library than a stable system has: it is
# taken from there with a private copy of the libraries, into the data folder; the system is not changed. That release
# moves, so this may fail one day: then the tests that need apptainer are skipped with a reason.

libraries=(libc6 libseccomp2 libsqlite3-0)

up() {
    local folder program
    folder=$(data_folder)/apptainer
    program=$(command -v apptainer || true)
    if [ -z "$program" ]; then
        need_root
        program=$folder/root/usr/bin/apptainer
        install_packages mksquashfs squashfuse patchelf fusermount3 -- squashfs-tools squashfuse patchelf fuse3 uidmap
        if [ ! -e "$folder/complete" ]; then
            rm -rf "$folder"
            mkdir -p "$folder"
            fetch "$folder"
            relocate "$folder"
            touch "$folder/complete"
        fi
    fi
    record APPTAINER "$program"
    mkdir -p "$folder"
    make_images "$folder" "$program"
    status
}

fetch() {
    local mirror options lists=$1/lists
    mirror=$(awk '/^URIs:/ { print $2; exit }' /etc/apt/sources.list.d/debian.sources)
    mkdir -p "$lists/partial" "$1/cache/archives/partial" "$1/packages"
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror sid main" >"$1/sources.list"
    options=(-qq -o Dir::Etc::sourcelist="$1/sources.list" -o Dir::Etc::sourceparts=- -o Dir::State::lists="$lists"
        -o Dir::Cache="$1/cache" -o APT::Sandbox::User=root -o Acquire::Retries=2)
    say "fetching it …"
    apt-get "${options[@]}" update
    (cd "$1/packages" && apt-get "${options[@]}" download apptainer "${libraries[@]}")
    rm -rf "$lists" "$1/cache"
}

relocate() {
    local name loader program
    dpkg -x "$1"/packages/apptainer_*.deb "$1/root"
    for name in "${libraries[@]}"; do
        dpkg -x "$1"/packages/"$name"_*.deb "$1/unpacked"
    done
    mkdir -p "$1/libraries"
    cp -a "$1"/unpacked/usr/lib/*-linux-gnu*/*.so* "$1/libraries/"
    rm -rf "$1/unpacked" "$1/packages"
    loader=$(echo "$1"/libraries/ld-linux*.so.*)
    for program in "$1/root/usr/bin/apptainer" "$1"/root/usr/lib/*/apptainer/bin/starter; do
        patchelf --set-interpreter "$loader" --force-rpath --set-rpath "$1/libraries" "$program"
    done
    # Its two programs find their files from where they lie; one takes usr for the top, the other usr/lib.
    mv "$1/root/etc" "$1/root/usr/etc"
    mkdir -p "$1/root/usr/var/lib/apptainer/mnt/session"
    for name in etc var bin; do
        ln -s "../$name" "$1/root/usr/lib/$name"
    done
    ln -s . "$1/root/usr/lib/lib"
    # Limits are set without asking systemd, which need not be there.
    sed -i 's/^systemd cgroups = yes/systemd cgroups = no/' "$1/root/usr/etc/apptainer/apptainer.conf"
}

make_images() {
    local folder=$1 program=$2 source
    source=$(recall IMAGE_FOLDER)
    mkdir -p "$folder/home"
    if [ ! -d "$folder/image" ]; then
        HOME=$folder/home "$program" --silent build --sandbox "$folder/image" "$source"
    fi
    if [ ! -e "$folder/image.sif" ] && ! HOME=$folder/home "$program" --silent build "$folder/image.sif" "$source"; then
        say "no .sif image could be made; the folder does"
    fi
    record APPTAINER_IMAGE "$folder/image"
    [ ! -e "$folder/image.sif" ] || record APPTAINER_SIF "$folder/image.sif"
}

down() {
    local folder process
    folder=$(recall FOLDER)/apptainer
    # Instances that tests left behind: they run a program of the data folder.
    for process in /proc/[0-9]*; do
        case "$(readlink "$process/exe" 2>/dev/null || true)" in
            "$folder"/root/*) kill -KILL "${process#/proc/}" 2>/dev/null || true ;;
        esac
    done
    forget APPTAINER APPTAINER_IMAGE APPTAINER_SIF
}

status() {
    local program image
    program=$(recall APPTAINER)
    image=$(recall APPTAINER_IMAGE)
    [ -x "$program" ] && [ -n "$image" ] || fail "down"
    # Without --no-privs it wants every capability, and a root in a virtual machine need not have them all.
    HOME=$(recall FOLDER)/apptainer/home timeout 30 "$program" exec --no-privs --containall --pwd / "$image" true ||
        fail "installed, but runs no container"
    say "up ($program, $image)"
}
