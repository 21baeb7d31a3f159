# Every command runs under this text, in every backend, as `bash -c ENTRY bash TEXT FOLDER [BLOB_FILE]`, where ENTRY is
#     eval "$1"; builtin eval "$__tc_before"; __tc_take_command; builtin eval "$__tc_command"
#
# The shell is started ahead of its command: it loads the session (folder, exported variables, functions, aliases) and
# waits. The command arrives on standard input as `LENGTH newline BLOB`, or in a file; a blob is a list of assignments.
# At the end the session is written back if it changed, and a trailer tells the exit code, so that the end is known
# exactly, also while children hold the output open.
#
# Everything that runs after the session was loaded is called by `builtin`, and stands in functions that were read
# before: the session may have functions and aliases of any name.

__tc_folder=$2 __tc_file=${3-} __tc_started=0 __tc_arguments=("$@")
# A session of its own, so that the whole tree can be found and ended.
if read -r __tc_stat 2>/dev/null </proc/$$/stat; then
    set -- ${__tc_stat##*) }
    [[ $4 == "$$" ]] ||
        exec setsid "$BASH" --norc --noprofile -c "$BASH_EXECUTION_STRING" bash "${__tc_arguments[@]}"
    __tc_started=${20}
fi
set --

# What was unset in the session must not come back from the environment that the backend starts programs with. What a
# terminal says about itself stays.
if [[ ${PATH@a} == *x* ]]; then
    for __tc_name in ${!A@} ${!B@} ${!C@} ${!D@} ${!E@} ${!F@} ${!G@} ${!H@} ${!I@} ${!J@} ${!K@} ${!L@} ${!M@} \
        ${!N@} ${!O@} ${!P@} ${!Q@} ${!R@} ${!S@} ${!T@} ${!U@} ${!V@} ${!W@} ${!X@} ${!Y@} ${!Z@} ${!a@} ${!b@} \
        ${!c@} ${!d@} ${!e@} ${!f@} ${!g@} ${!h@} ${!i@} ${!j@} ${!k@} ${!l@} ${!m@} ${!n@} ${!o@} ${!p@} ${!q@} \
        ${!r@} ${!s@} ${!t@} ${!u@} ${!v@} ${!w@} ${!x@} ${!y@} ${!z@}; do
        [[ ${!__tc_name@a} == *r* || ${!__tc_name@a} != *x* || $__tc_name == TERM ]] || unset -v "$__tc_name"
    done
fi

__tc_take_command() {
    builtin shopt -u extglob
    if [[ -n $__tc_file ]]; then
        builtin mapfile -d '' -t __tc_blob <"$__tc_file"
    else
        # End of file: nobody needs this shell.
        IFS= builtin read -r __tc_length || builtin exit 0
        # The length is in bytes. A session with a locale that does not exist is told so once, not here again.
        { LC_ALL=C IFS= builtin read -r -d '' -N "$__tc_length" __tc_blob; } 2>/dev/null || builtin exit 0
    fi
    builtin eval "$__tc_blob"
    # Its processes are found by these wherever they hide.
    builtin export TOOLCRIB_COMMAND_ID="$__tc_id"
    builtin printf '%s\n' "$__tc_id $$ $__tc_started" >>"$__tc_folder/sessions"
    IFS=" " builtin read -r _ _ _ _ __tc_first_pid 2>/dev/null </proc/loadavg
    builtin unset -v __tc_blob __tc_length __tc_name __tc_stat __tc_started __tc_arguments __tc_file
    # Behind `builtin` a redirection would end with the line.
    exec {__tc_out}>&1 2>&1
    [[ $__tc_input == open ]] || exec </dev/null
    __tc_enter_folder
    # Whoever traces the command does not want to read about ours.
    builtin trap '{ __tc_code=$?; builtin set +x; } 2>/dev/null; __tc_finish' EXIT
    builtin trap 'builtin exit 143' TERM
    builtin trap 'builtin exit 129' HUP
}

__tc_enter_folder() {
    if [[ -n $__tc_cwd ]]; then
        builtin cd -- "$__tc_cwd" 2>/dev/null && builtin return
        [[ -z $__tc_marker ]] || builtin printf '\0%s\0no_folder\0%s\0' "$__tc_marker" "$__tc_cwd"
        [[ -z $__tc_exit_file ]] || builtin printf 'no_folder\n' >|"$__tc_exit_file"
        builtin exit 1
    fi
    [[ -n ${__tc_gone-} ]] || builtin return
    builtin local above="$__tc_gone"
    until builtin cd -- "$above" 2>/dev/null; do
        above=${above%/*}
        above=${above:-/}
    done
}

# Notes the processes that the command leaves behind, as `pid command` lines: of this session, or marked with its name.
__tc_look_for_left_behind() {
    builtin local IFS=$' \t\n' pid last stat words word
    builtin read -r _ _ _ _ last 2>/dev/null </proc/loadavg || builtin return
    # Whatever the command started has a number between the newest one before it and the newest one now.
    ((last != __tc_first_pid)) || builtin return 0
    builtin set --
    if ((last > __tc_first_pid && last - __tc_first_pid < 2000)); then
        for ((pid = __tc_first_pid + 1; pid <= last; pid++)); do
            [[ ! -d /proc/$pid ]] || builtin set -- "$@" "$pid"
        done
    else
        builtin unset -v GLOBIGNORE
        builtin shopt -u failglob nullglob
        builtin set -- /proc/[0-9]*
    fi
    for pid in "$@"; do
        pid=${pid#/proc/}
        [[ $pid != "$$" ]] || builtin continue
        { builtin read -r stat <"/proc/$pid/stat"; } 2>/dev/null || builtin continue
        builtin set -- ${stat##*) }
        [[ $1 != [ZX] ]] || builtin continue
        if [[ $4 != "$$" ]]; then
            { builtin mapfile -d '' -t words <"/proc/$pid/environ"; } 2>/dev/null || builtin continue
            for word in "${words[@]}"; do
                [[ $word != "TOOLCRIB_COMMAND_ID=$__tc_id" ]] || builtin break
            done
            [[ ${word-} == "TOOLCRIB_COMMAND_ID=$__tc_id" ]] || builtin continue
        fi
        { builtin mapfile -d '' -t words <"/proc/$pid/cmdline"; } 2>/dev/null
        __tc_left+="$pid ${words[*]//$'\n'/ }"$'\n'
    done
}

# Writes the session back; fails when nothing changed.
__tc_write_back() {
    builtin unset -v TOOLCRIB_COMMAND_ID
    builtin unset -f __tc_take_command __tc_enter_folder __tc_look_for_left_behind __tc_write_back __tc_finish
    {
        builtin printf 'builtin cd -- %q 2>/dev/null || __tc_gone=%q\n' "$PWD" "$PWD"
        builtin export -p
        builtin declare -f
        builtin declare -Fx
        builtin alias -p
    } >|"$__tc_new" 2>/dev/null
    builtin local __tc_after
    builtin mapfile -d '' -t __tc_after <"$__tc_new"
    # Ours is no part of the session; one that the user made is.
    __tc_after=${__tc_after/"$__tc_trap"/}
    [[ $__tc_after != "$__tc_before" ]] || builtin return 1
    builtin printf '%s' "$__tc_after" >|"$__tc_new"
    builtin command mv -f "$__tc_new" "$__tc_folder/state"
}

__tc_finish() {
    builtin local __tc_changed=0 __tc_left=
    builtin set +CEefTuv +o posix
    builtin trap - EXIT DEBUG ERR RETURN
    [[ $__tc_scan == 0 ]] || __tc_look_for_left_behind
    [[ $__tc_keep == 1 ]] && __tc_write_back && __tc_changed=1
    if [[ -n ${__tc_at_exit-} ]]; then
        (builtin exit "$__tc_code")
        builtin eval "$__tc_at_exit"
    fi
    builtin printf '%s\n' "$__tc_id ended" >>"$__tc_folder/sessions"
    [[ -z $__tc_exit_file ]] || builtin printf '%d\n' "$__tc_code" >|"$__tc_exit_file"
    [[ -z $__tc_marker ]] || builtin printf '\0%s\0%d\0%d\0%s\0%s\0%s\0' \
        "$__tc_marker" "$__tc_code" "$__tc_changed" "$PWD" "${__tc_gone-}" "$__tc_left" >&"$__tc_out"
    builtin exit "$__tc_code"
}

shopt -s expand_aliases extglob
mapfile -d '' -t __tc_trap 2>/dev/null <"$__tc_folder/trap"
mapfile -d '' -t __tc_before 2>/dev/null <"$__tc_folder/state"
