"""Small bash programs that read, write and inspect files inside an environment; any small image can run them.

Each is called with a token, the folder that relative paths start from, the path, `plain` or nothing, and its own
arguments; paths are written for `printf %b`, so that any byte passes. The answer is the token, the requested bytes, the
token again, a code and texts: neither what a shell prints by itself nor a broken connection can be mistaken for
content. A program works from inside the folder of the file, so replacing that folder meanwhile changes nothing.
"""

from __future__ import annotations

OK = "ok"
MISSING = "missing"
IS_FOLDER = "folder"
NOT_FOLDER = "notfolder"
DENIED = "denied"
FAILED = "failed"
EXISTS = "exists"
LINKED = "linked"
"""There is a link where none is allowed; the text says where it leads."""
CHANGED = "changed"
"""The content is not the expected one; the text says what is there instead: other, nothing, something."""

_START = r"""
set +eux +C +f; unset IFS CDPATH GLOBIGNORE; LC_ALL=C; export LC_ALL
token=$1 plain=$4; printf -v folder %b "$2"; printf -v path %b "$3"; shift 4
answer() { printf '\0%s' "$token" "$@"; exit 0; }
# Classifies the message of a program, or of ls: only ls knows whether a parent folder is unreadable or missing.
refuse() {
    local said=${1:-}
    if [ -z "$said" ]; then
        [ ! -L "$shown" ] || [ -e "$shown" ] || answer missing
        # It did not exist a moment ago.
        said=$(ls -ld "$shown" 2>&1) && answer changed other
    fi
    case $said in
        *': Permission denied'|*$': Permission denied\n'*) answer denied ;;
        *': Not a directory'|*': File exists') answer notfolder ;;
        *': No such file or directory') answer missing ;;
        *) answer failed "$said" ;;
    esac
}
linked() { answer linked "$(readlink -f "$path" 2>/dev/null)"; }
about() {  # mode in octal, size, owner, group, stamp
    local follow=-L
    [ ! -L "$1" ] || [ -z "${itself:-}" ] || follow=
    stat $follow -c '%a %s %u %g %d.%i.%y.%z' "$1" 2>/dev/null ||
        stat $follow -f '%Mp%Lp %z %u %g %d.%i.%Fm.%Fc' "$1" 2>/dev/null || by_ls "$1" "$follow"
}
by_ls() {
    local bits links user group size rest mode=0 at char
    read -r bits links user group size rest <<<"$(ls -lnd $2 "$1")"
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
shown=$path
"""

# From here on everything printed is content, so error messages are discarded.
_BEGIN = r"""
exec 2>/dev/null
printf '\0%s\0' "$token"
"""

# Changes to the folder of the path; `make=1` creates it. With `itself=1` a link at the end is not followed.
_GO = r"""
enter() {
    local now
    cd -P "$1" 2>/dev/null || refuse
    [ -n "$plain" ] || return 0
    # The builtin trusts the path that was given; the program of the same name asks the kernel.
    now=$(env pwd -P 2>/dev/null && echo x) && now=${now%x} && [ "${now%?}" = "$2" ] || linked
}
opened() {  # fails if the descriptor belongs to something that a link led to while it was opened
    local now there
    [ -n "$plain" ] || return 0
    [ ! -L "./$name" ] || linked
    now=$(readlink "/proc/self/fd/$1" 2>/dev/null && echo x)
    if [ -n "$now" ]; then
        now=${now%x} now=${now%?} there=${above%/}/$name
        [ "$now" = "$there" ] || [ "$now" = "$there (deleted)" ] || linked
    elif [ -e "/dev/fd/$1" ]; then
        [ "./$name" -ef "/dev/fd/$1" ] || linked
    fi
}
go() {
    local up rest= said
    while [ "${path%/}" != "$path" ] && [ "$path" != / ]; do path=${path%/}; done
    if [ -z "$plain$itself" ] && [ -L "$path" ]; then
        # The x preserves newlines at the end of a name.
        up=$(readlink -f "$path" && echo x) && up=${up%x} && path=${up%?}
    fi
    above=${path%/*} name=${path##*/}; above=${above:-/} name=${name:-.} up=$above
    while [ -n "$make" ] && [ ! -e "$up" ] && [ ! -L "$up" ]; do
        rest=${up##*/}${rest:+/$rest} up=${up%/*}; up=${up:-/}
    done
    enter "$up" "$up"
    if [ -n "$rest" ]; then
        said=$(mkdir -p "./$rest" 2>&1) || refuse "$said"
        enter "./$rest" "$above"
    fi
    shown=./$name
}
itself= make=
"""

_FIND = r"""
[ -z "$plain" ] || [ ! -L "./$name" ] || linked
[ -e "./$name" ] || refuse
[ ! -d "./$name" ] || answer folder
[ -f "./$name" ] || answer failed 'it is neither a file nor a folder'
[ -r "./$name" ] || answer denied
{ exec 4<"./$name"; } 2>/dev/null || answer denied
opened 4
exec 3>&1
"""

# Compares the content with the expected one: `any`, `none`, or its SHA-256.
_EXPECT = r"""
sum=
for each in sha256sum 'shasum -a 256' 'openssl dgst -sha256 -r'; do
    [ -n "$sum" ] || ! command -v "${each%% *}" >/dev/null || sum=$each
done
expect() {
    local seen
    [ "$1" != any ] || return 0
    if [ ! -e "./$name" ] && [ ! -L "./$name" ]; then
        [ "$1" = none ] || answer changed nothing
        return 0
    fi
    [ "$1" != none ] || answer changed something
    [ ! -L "./$name" ] || linked
    [ -n "$sum" ] || answer failed 'there is no sha256sum, shasum or openssl to compare it with; install coreutils'
    seen=$($sum <"./$name" 2>/dev/null)
    [ "${seen%% *}" = "$1" ] || answer changed other
}
"""

# Renames the copy to the file. Without -T, mv would move it into a folder, but not every mv has -T.
_REPLACE = r"""
replace() {
    said=$(mv -fT "$copy" "./$name" 2>&1) && return 0
    [ ! -d "./$name" ] && said=$(mv -f "$copy" "./$name" 2>&1)
}
"""

_REAL = r"""
real=${PWD%/}/$name
if [ -d "./$name" ] && { [ -z "$itself" ] || [ ! -L "./$name" ]; }; then
    inner=$(cd -P "./$name" 2>/dev/null && printf '%sx' "$PWD") && real=${inner%x}
fi
"""

READ = (
    _START
    + _BEGIN
    + _GO
    + "go\n"
    + _FIND
    + r"""
said=$(cat <&4 2>&1 >&3) || answer failed "$said"
answer ok
"""
)

# Arguments: first line, number of lines, maximum bytes, size up to which all lines are counted.
LINES = (
    _START
    + _BEGIN
    + _GO
    + "go\n"
    + _FIND
    + _REAL
    + r"""
if [ "$1" -gt 1 ]; then
    tail -n "+$1" <&4 2>/dev/null | head -n "$2" 2>/dev/null | head -c "$3"
else
    head -n "$2" <&4 2>/dev/null | head -c "$3"
fi
facts=$(about "./$name") total=
read -r _ size _ <<<"$facts"
if [ "$size" -le "$4" ]; then
    total=$(($(wc -l <"./$name")))
    [ "$size" = 0 ] || [ "$(($(tail -c 1 "./$name" | wc -l)))" = 1 ] || total=$((total + 1))
fi
answer ok file "$facts" "$real" '' "$total"
"""
)

# Argument: non-empty to inspect a link instead of its target.
STATUS = (
    _START
    + _BEGIN
    + _GO
    + r"""
itself=$1
go
[ -e "./$name" ] || { [ -n "$itself" ] && [ -L "./$name" ]; } || refuse
kind=other link=
[ ! -f "./$name" ] || kind=file
[ ! -d "./$name" ] || kind=folder
if [ -n "$itself" ] && [ -L "./$name" ]; then
    kind=link link=$(readlink "./$name" && echo x) && link=${link%x} && link=${link%?}
fi
"""
    + _REAL
    + r"""
answer ok "$kind" "$(about "./$name")" "$real" "$link" ''
"""
)

# Arguments: number of bytes on standard input, mode or nothing, expected content.
WRITE = (
    _START
    + _BEGIN
    + _GO
    + _EXPECT
    + _REPLACE
    + r"""
size=$1 mode=$2 expected=$3
[ ! -d "$path" ] || { [ -n "$plain" ] && [ -L "$path" ]; } || answer folder
case $path in */) answer folder ;; esac
make=1; go
[ ! -L "./$name" ] || linked
old=
if [ -e "./$name" ]; then
    [ -f "./$name" ] || answer failed 'it is neither a file nor a folder'
    [ -w "./$name" ] || answer denied
    old=$(about "./$name")
fi
usual=$(printf '%o' $((0666 & ~$(umask))))
umask 077
copy=./.toolcrib-$token in_place=
if ! { : >"$copy"; } 2>/dev/null; then
    [ -n "$old" ] || answer denied
    copy=${TMPDIR:-/tmp}/.toolcrib-$token in_place=1
fi
trap 'rm -f "$copy"' EXIT
said=$(cat 2>&1 >"$copy") || answer failed "$said"
[ "$(($(wc -c <"$copy")))" = "$size" ] || answer failed 'it did not arrive completely'
if [ -n "$old" ]; then
    read -r old_mode _ user group _ <<<"$old"
    mode=${mode:-$old_mode}
    if [ -z "$in_place" ]; then
        read -r _ _ own_user own_group _ <<<"$(about "$copy")"
        # A file keeps its owner: if the copy cannot be given to that user, the file is overwritten instead.
        [ "$user:$group" = "$own_user:$own_group" ] || chown "$user:$group" "$copy" 2>/dev/null || in_place=1
    fi
fi
if [ -z "$in_place" ]; then
    # ACLs and the like, where cp supports them; the folder may have given the copy a default ACL that admits others.
    [ -z "$old" ] || cp --attributes-only --preserve=mode,xattr "./$name" "$copy" 2>/dev/null
    chmod "${mode:-$usual}" "$copy"
    # Flushed to disk before the rename; not every dd supports that.
    dd if=/dev/null of="$copy" conv=notrunc,fsync 2>/dev/null
    expect "$expected"
    [ ! -L "./$name" ] || linked
    # Unlike a rename, a hard link never overwrites a file.
    [ "$expected" != none ] || ! ln -T "$copy" "./$name" 2>/dev/null || answer ok
    expect "$expected"
    replace && answer ok
    # A file that is a mount point cannot be replaced, only overwritten.
    [ -n "$old" ] || refuse "$said"
fi
expect "$expected"
{ exec 5>>"./$name"; } 2>/dev/null || answer denied
opened 5
there=./$name
[ ! -e /proc/self/fd/5 ] || there=/proc/self/fd/5
said=$(cat "$copy" 2>&1 >"$there") || answer failed "$said"
[ "$mode" = "${old_mode:-}" ] || chmod "$mode" "./$name" 2>/dev/null
answer ok
"""
)

# Argument: the expected content.
REMOVE = (
    _START
    + _BEGIN
    + _GO
    + _EXPECT
    + r"""
itself=1; go
[ -e "./$name" ] || [ -L "./$name" ] || refuse
[ -L "./$name" ] || [ ! -d "./$name" ] || answer folder
expect "$1"
said=$(rm -f "./$name" 2>&1) || refuse "$said"
answer ok
"""
)

REMOVE_FOLDER = (
    _START
    + _BEGIN
    + _GO
    + r"""
itself=1; go
[ -e "./$name" ] || [ -L "./$name" ] || refuse
{ [ -d "./$name" ] && [ ! -L "./$name" ]; } || answer notfolder
said=$(rmdir "./$name" 2>&1) || refuse "$said"
answer ok
"""
)

# Argument: the mode of a new folder, or nothing.
MAKE_FOLDER = (
    _START
    + _BEGIN
    + _GO
    + r"""
[ ! -d "$path" ] || answer ok
make=1; go
{ [ ! -e "./$name" ] && [ ! -L "./$name" ]; } || answer exists
said=$(mkdir "./$name" 2>&1) || refuse "$said"
[ -z "$1" ] || chmod "$1" "./$name"
answer ok
"""
)

# Argument: the target of the link.
MAKE_LINK = (
    _START
    + _BEGIN
    + _GO
    + _REPLACE
    + r"""
itself=1 make=1; go
[ -L "./$name" ] || [ ! -d "./$name" ] || answer folder
printf -v target %b "$1"
copy=./.toolcrib-$token
trap 'rm -f "$copy"' EXIT
said=$(ln -s -- "$target" "$copy" 2>&1) || refuse "$said"
replace && answer ok
[ ! -L "./$name" ] || rm -f "./$name"
replace || refuse "$said"
answer ok
"""
)

LIST = (
    _START
    + _BEGIN
    + r"""
[ -e "$path" ] || refuse
[ -d "$path" ] || answer notfolder
{ [ -r "$path" ] && [ -x "$path" ]; } || answer denied
cd -P "$path" 2>/dev/null || answer denied
shopt -s nullglob dotglob
for each in *; do printf '%s\0' "$each"; done
answer ok
"""
)

# Argument: the mode of the folder if it is new. Reads a tar archive from standard input.
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

# Sends a file as it is and a folder as a tar archive; the answer says which, and its mode.
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
