"""The small programs that read, write and look at files inside a place; bash and the programs of any small image do.

Each is called with a token, the folder that relative paths start from, the path, and arguments of its own. It answers
with the token, the bytes asked for, the token again, a code and a text, so that nothing that a shell prints by itself,
and no cut connection, can be taken for content.
"""

from __future__ import annotations

OK = "ok"
MISSING = "missing"
IS_FOLDER = "folder"
NOT_FOLDER = "notfolder"
DENIED = "denied"
FAILED = "failed"

_START = r"""
set +eux +C +f; unset IFS; LC_ALL=C; export LC_ALL
token=$1 folder=$2 path=$3; shift 3
answer() { printf '\0%s\0%s\0%s' "$token" "$1" "$2"; exit 0; }
# By what a program said, or else what ls says: only it knows whether a folder above is closed or missing.
refuse() {
    local said=${1:-$(ls -ld "$path" 2>&1)}
    case $said in
        *': Permission denied'|*$': Permission denied\n'*) answer denied ;;
        *': Not a directory'|*': File exists') answer notfolder ;;
        *': No such file or directory') answer missing ;;
        *) answer failed "$said" ;;
    esac
}
about() {  # mode in octal, size, owner, group
    stat -L -c '%a %s %u %g' "$1" 2>/dev/null || stat -L -f '%Mp%Lp %z %u %g' "$1" 2>/dev/null || by_ls "$1"
}
by_ls() {
    local bits links user group size rest mode=0 at char
    read -r bits links user group size rest <<<"$(ls -lndL "$1")"
    for at in 1 2 3 4 5 6 7 8 9; do
        char=${bits:at:1}; mode=$((mode * 2))
        case $char in [-ST]) ;; *) mode=$((mode + 1)) ;; esac
    done
    printf '%o %s %s %s\n' "$mode" "$size" "$user" "$group"
}
case $path in
    '~') path=$HOME ;;
    '~/'*) path=$HOME/${path#'~/'} ;;
    /*) ;;
    *) path=${folder:-.}/$path ;;
esac
case $path in -*) path=./$path ;; esac
"""

_BEGIN = r"""
printf '\0%s\0' "$token"
"""

READ = (
    _START
    + _BEGIN
    + r"""
[ -e "$path" ] || refuse
[ ! -d "$path" ] || answer folder
[ -f "$path" ] || answer failed 'it is neither a file nor a folder'
[ -r "$path" ] || answer denied
exec 3>&1
said=$(cat "$path" 2>&1 >&3) || answer failed "$said"
answer ok "$(about "$path")"
"""
)

STATUS = (
    _START
    + _BEGIN
    + r"""
[ -e "$path" ] || refuse
kind=other
[ ! -f "$path" ] || kind=file
[ ! -d "$path" ] || kind=folder
answer ok "$kind $(about "$path")"
"""
)

# Arguments: the number of bytes that come on standard input, the mode or nothing.
WRITE = (
    _START
    + _BEGIN
    + r"""
size=$1 mode=$2
[ ! -d "$path" ] || answer folder
case $path in */) answer folder ;; esac
if [ -L "$path" ]; then
    # What a link points to is written, not the link; the x keeps line breaks at the end of a name.
    target=$(readlink -f "$path" && echo x) && target=${target%x} && path=${target%?}
fi
above=${path%/*}; above=${above:-/}
said=$(mkdir -p "$above" 2>&1) || refuse "$said"
old=
if [ -e "$path" ]; then
    [ -f "$path" ] || answer failed 'it is neither a file nor a folder'
    [ -w "$path" ] || answer denied
    old=$(about "$path")
fi
plain=$(printf '%o' $((0666 & ~$(umask))))
umask 077
copy=$above/.toolcrib-$token in_place=
if ! { : >"$copy"; } 2>/dev/null; then
    [ -n "$old" ] || answer denied
    copy=${TMPDIR:-/tmp}/.toolcrib-$token in_place=1
fi
trap 'rm -f "$copy"' EXIT
said=$(cat 2>&1 >"$copy") || answer failed "$said"
[ "$(($(wc -c <"$copy")))" = "$size" ] || answer failed 'it did not arrive in full'
if [ -n "$old" ]; then
    read -r old_mode _ user group <<<"$old"
    mode=${mode:-$old_mode}
    if [ -z "$in_place" ]; then
        read -r _ _ own_user own_group <<<"$(about "$copy")"
        # A file that another user owns stays his: where it cannot be given to him, it is filled anew instead.
        [ "$user:$group" = "$own_user:$own_group" ] || chown "$user:$group" "$copy" 2>/dev/null || in_place=1
    fi
fi
if [ -z "$in_place" ]; then
    chmod "${mode:-$plain}" "$copy"
    said=$(mv -f "$copy" "$path" 2>&1) && answer ok
    # A file that is itself a mount cannot be replaced, only filled.
    [ -n "$old" ] || refuse "$said"
fi
said=$(cat "$copy" 2>&1 >"$path") || answer failed "$said"
[ "$mode" = "${old_mode:-}" ] || chmod "$mode" "$path" 2>/dev/null
answer ok
"""
)

# Argument: the mode that the folder gets if it is new. A tar archive comes on standard input.
UNPACK = (
    _START
    + _BEGIN
    + r"""
mode=$1 new=
if [ ! -d "$path" ]; then
    new=1
    said=$(mkdir -p "$path" 2>&1) || { [ ! -e "$path" ] || answer notfolder; refuse "$said"; }
fi
said=$(tar -xpof - -C "$path" 2>&1) || refuse "$said"
[ -z "$new" ] || chmod "$mode" "$path"
answer ok
"""
)

# A file as it is, a folder as a tar archive; the answer says which, and its mode.
PACK = (
    _START
    + _BEGIN
    + r"""
[ -e "$path" ] || refuse
exec 3>&1
if [ -d "$path" ]; then
    { [ -r "$path" ] && [ -x "$path" ]; } || answer denied
    said=$(tar -cf - -C "$path" . 2>&1 >&3)
    case $?$said in
        0*|1*'file changed as we read it') answer ok "folder $(about "$path")" ;;
        *) answer failed "$said" ;;
    esac
fi
[ -f "$path" ] || answer failed 'it is neither a file nor a folder'
[ -r "$path" ] || answer denied
said=$(cat "$path" 2>&1 >&3) || answer failed "$said"
answer ok "file $(about "$path")"
"""
)
