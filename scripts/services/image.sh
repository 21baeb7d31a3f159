# A small file system with bash and the usual programs, taken from this machine: nothing has to be fetched for it.
# The container engines are given it as toolcrib-test:latest.

packages=(
    bash bsdutils coreutils dash debianutils diffutils findutils grep gzip hostname mawk procps sed tar util-linux
)

up() {
    need_root
    install_packages ps tar gzip setsid -- procps tar gzip util-linux
    local folder
    folder=$(data_folder)/image
    if [ ! -e "$folder.complete" ]; then
        rm -rf "$folder"
        make_image "$folder"
        touch "$folder.complete"
    fi
    record IMAGE toolcrib-test:latest
    record IMAGE_FOLDER "$folder"
    status
}

make_image() {
    local folder=$1 program library
    mkdir -p "$folder"/usr/{bin,sbin,lib,lib64}
    mkdir -p "$folder"/{dev,etc,home/tester,mnt,opt,proc,root,run,sys,tmp,var/tmp,workspace}
    for program in bin sbin lib lib64; do
        ln -s "usr/$program" "$folder/$program"
    done
    dpkg -L "${packages[@]}" | grep -E '^(/usr)?/s?bin/[^/]+$' | sort -u | while read -r program; do
        [ ! -f "$program" ] || cp -L --preserve=mode "$program" "$folder/usr/bin/"
    done
    ln -sf mawk "$folder/usr/bin/awk"
    ln -sf dash "$folder/usr/bin/sh"
    # Every library that a program is linked with, and the loader, at the same place.
    { ldd "$folder"/usr/bin/* 2>/dev/null || true; } | grep -oE '/[^ :]*\.so[^ :]*' | sort -u |
        while read -r library; do
            mkdir -p "$folder$(dirname "$library")"
            cp -L --preserve=mode "$library" "$folder$library"
        done
    if [ -d /usr/lib/locale/C.utf8 ]; then
        mkdir -p "$folder/usr/lib/locale"
        cp -r /usr/lib/locale/C.utf8 "$folder/usr/lib/locale/"
    fi
    printf 'root:x:0:0:root:/root:/bin/bash\ntester:x:1000:1000:tester:/home/tester:/bin/bash\n' >"$folder/etc/passwd"
    printf 'root:x:0:\ntester:x:1000:\n' >"$folder/etc/group"
    printf 'passwd: files\ngroup: files\nhosts: files\n' >"$folder/etc/nsswitch.conf"
    printf '127.0.0.1 localhost\n' >"$folder/etc/hosts"
    touch "$folder/etc/resolv.conf"
    chmod 1777 "$folder/tmp" "$folder/var/tmp"
    chown 1000:1000 "$folder/home/tester"
}

down() {
    forget IMAGE IMAGE_FOLDER
}

status() {
    local folder
    folder=$(recall IMAGE_FOLDER)
    [ -n "$folder" ] && [ -e "$folder.complete" ] || fail "down"
    chroot "$folder" /bin/bash -c 'echo works | gzip | gzip -d | grep -q works && mktemp -u' >/dev/null ||
        fail "its programs do not run"
    say "up ($folder)"
}
