# Every command in every backend runs under this script. A shell serves the commands of a session one after the other
# (`bash -c SERVING_ENTRY bash TEXT FOLDER MARKER`), or runs a single one (`bash -c ENTRY bash TEXT FOLDER [BLOB_FILE]`):
#     eval "$1"; builtin eval "$__tc_before"; __tc_take_command; builtin eval "$__tc_command"
#
# The shell is started before its first command: it loads the session (folder, exported variables, functions, aliases)
# and waits. A command arrives on standard input as `MARKER LENGTH newline BLOB` (the marker is `-` for a single command),
# or in a file; a blob is a list of assignments. Other input is what the last command left unread, and never run.
# A serving shell forks before each command: that costs a third of a new shell, and the session is already loaded.
# When the command ends, the session is saved if it changed, and a sentinel message reports the exit code, so that the
# end is known exactly even while children hold the output open.
#
# Everything that runs after the session was loaded uses `builtin` and lives in functions defined before: the session
# may have functions and aliases of any name.

__tc_folder=$2 __tc_file=${3-} __tc_marker= __tc_serves=
set --

# Serving shell: waits for the fork and reports its exit code, in case the fork could not.
__tc_wait_for_fork() {
    # With job control, a suspended fork would count as ended.
    builtin set +m
    builtin wait "$!"
    __tc_code=$?
    [[ ! -e $__tc_folder/report.$! ]] || __tc_pass_on_report "$__tc_folder/report.$!"
    builtin printf '\0%s\0done\0%d\0' "$__tc_marker" "$__tc_code"
    builtin set -m
}

# The fork could not report itself, and left its message in a file.
__tc_pass_on_report() {
    builtin local IFS=' ' fields
    builtin mapfile -d '' -t fields <"$1"
    builtin printf '%s\0' "${fields[@]}"
    builtin command -p rm -f -- "$1"
}

__tc_take_command() {
    builtin local IFS=' ' __tc_stat __tc_blob __tc_word __tc_length
    builtin read -r __tc_stat 2>/dev/null </proc/$BASHPID/stat
    builtin set -- ${__tc_stat##*) }
    if [[ -n $__tc_file ]]; then
        builtin mapfile -d '' -t __tc_blob <"$__tc_file"
    else
        # The length is in bytes. Bash warns about a missing locale once; do not repeat that here.
        builtin read -r -n 64 __tc_word __tc_length && [[ $__tc_word == "${__tc_marker:--}" ]] &&
            { LC_ALL=C IFS= builtin read -r -d '' -N "$__tc_length" __tc_blob; } 2>/dev/null ||
            __tc_leave "${2-}"
    fi
    builtin shopt -u extglob
    builtin eval "$__tc_blob"
    # A toolcrib below this command knows by it that no person started it; see config/tool_call_mark.py.
    [[ $__tc_mark == 0 ]] || builtin ulimit -x 4611686018427387903 2>/dev/null
    # Its processes are found by these, wherever they hide.
    builtin export TOOLCRIB_COMMAND_ID="$__tc_id"
    builtin printf '%s\n' "$__tc_id $BASHPID ${20-0}" 2>/dev/null >>"$__tc_folder/sessions"
    [[ $__tc_scan == 0 ]] || builtin read -r _ _ _ _ __tc_first_pid 2>/dev/null </proc/loadavg
    __tc_level=$BASH_SUBSHELL SECONDS=0
    # The jobs of the shell are not jobs of its command.
    [[ -z $__tc_serves ]] || builtin disown -a
    # With `builtin` the redirection would end with the line.
    [[ -z $__tc_marker ]] || exec {__tc_out}>&1
    exec 2>&1
    [[ $__tc_input == open ]] || exec </dev/null
    __tc_enter_folder
    # A trace (`set -x`) must not show our own commands.
    builtin trap '{ __tc_code=$?; builtin set +x; } 2>/dev/null; __tc_finish' EXIT
    # Otherwise the exit code of the last command would be reported.
    builtin trap 'builtin exit 129' HUP
    builtin trap 'builtin exit 130' INT
    builtin trap 'builtin exit 138' USR1
    builtin trap 'builtin exit 140' USR2
    builtin trap 'builtin exit 142' ALRM
    builtin trap 'builtin exit 143' TERM
}

# End of input: neither this shell nor the one it was forked from is needed any more.
__tc_leave() {
    [[ -z $__tc_serves || $1 != "$$" ]] || builtin kill -s TERM "$$"
    builtin exit 0
}

__tc_enter_folder() {
    if [[ -n $__tc_cwd ]]; then
        [[ $__tc_cwd != "~" && $__tc_cwd != "~/"* ]] || __tc_cwd=$HOME${__tc_cwd:1}
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

# A command removed our folder (`rm -rf /tmp/*`): restore the session.
__tc_make_folder_again() {
    (builtin umask 077 && builtin command mkdir -p -- "$__tc_folder") 2>/dev/null || builtin return
    builtin printf '%s' "$__tc_before" >|"$__tc_folder/state"
    builtin printf '%s' "$__tc_dump" >|"$__tc_folder/dump"
    builtin printf '%s' "$__tc_trap" >|"$__tc_folder/trap"
}

# Saves the session; fails if nothing changed.
__tc_write_back() {
    builtin unset -v TOOLCRIB_COMMAND_ID
    [[ -d $__tc_folder ]] || __tc_make_folder_again
    builtin unset -f __tc_wait_for_fork __tc_pass_on_report __tc_take_command __tc_leave __tc_enter_folder \
        __tc_find_orphans __tc_make_folder_again __tc_write_back __tc_end_without_shell __tc_finish
    {
        builtin printf 'builtin cd -- %q 2>/dev/null || __tc_gone=%q\n' "$PWD" "$PWD"
        builtin export -p
        builtin declare -f
        builtin declare -Fx
        builtin alias -p
    } 2>/dev/null >|"$__tc_new"
    builtin local __tc_after
    builtin mapfile -d '' -t __tc_after <"$__tc_new"
    # Most commands change nothing, and then the dump is identical.
    builtin test "$__tc_after" != "$__tc_dump" || builtin return 1
    [[ -z ${__tc_added-} ]] || __tc_after=${__tc_after/"$__tc_added"/}
    # Our trap function is not part of the session; one that the user defined is.
    __tc_dump=$__tc_after
    __tc_after=${__tc_after/"$__tc_trap"/}
    builtin test "$__tc_after" != "$__tc_before" || builtin return 1
    builtin printf '%s' "$__tc_after" >|"$__tc_new"
    # Without the session's variables, which may be too large for exec or have a broken PATH.
    (builtin exec -c "$__tc_mv" -f "$__tc_new" "$__tc_folder/state")
    builtin printf '%s' "$__tc_dump" >|"$__tc_folder/dump"
}

# A command that killed the shell of its session (`kill $$`) ends with it and saves nothing.
__tc_end_without_shell() {
    # A zombie has no executable.
    [[ -e /proc/$$/exe || ! -e /proc/$BASHPID/exe ]] || builtin exit "$__tc_code"
}

__tc_finish() {
    builtin local __tc_changed=0 __tc_left=
    builtin set +CEefTuv +o posix
    builtin trap - EXIT DEBUG ERR RETURN
    [[ -z $__tc_serves ]] || __tc_end_without_shell
    [[ $__tc_scan == 0 ]] || __tc_find_orphans
    [[ $__tc_keep == 1 ]] && __tc_write_back 2>/dev/null && __tc_changed=1
    if [[ -n ${__tc_at_exit-} ]]; then
        (builtin exit "$__tc_code")
        builtin eval "$__tc_at_exit"
    fi
    # From here on messages of this shell are not the command's.
    builtin unset -f exec
    exec 2>/dev/null
    builtin printf '%s\n' "$__tc_id ended" >>"$__tc_folder/sessions"
    [[ -z $__tc_exit_file ]] || builtin printf '%d\n' "$__tc_code" >|"$__tc_exit_file"
    [[ -n $__tc_marker ]] || builtin exit "$__tc_code"
    # The command may have closed our descriptor, or opened a file of its own under that number.
    [[ /proc/self/fd/$__tc_out -ef /proc/$$/fd/1 ]] || exec {__tc_out}>|"$__tc_folder/report.$BASHPID"
    builtin printf '\0%s\0%d\0%d\0%d\0%s\0%s\0%s\0' \
        "$__tc_marker" "$__tc_code" "$BASHPID" "$__tc_changed" "$PWD" "${__tc_gone-}" "$__tc_left" >&"$__tc_out"
    builtin exit "$__tc_code"
}

shopt -s expand_aliases extglob
mapfile -d '' -t __tc_before 2>/dev/null <"$__tc_folder/state"
# A function of that name would run instead of all that follows, and could leave out what marks a command.
while [[ $'\n'$__tc_before == *$'\n'@(builtin\ \(\)|declare\ -fx?(t)\ builtin$'\n')* ]]; do
    __tc_before=$'\n'$__tc_before
    __tc_before=${__tc_before//$'\n''builtin ()'/$'\n''__tc_no_builtin ()'}
    __tc_before=${__tc_before//$'\n''declare -fx'?(t)' builtin'$'\n'/$'\n'}
done
mapfile -d '' -t __tc_dump 2>/dev/null <"$__tc_folder/dump"
mapfile -d '' -t __tc_trap 2>/dev/null <"$__tc_folder/trap"
__tc_mv=/bin/mv
[[ -x $__tc_mv ]] || __tc_mv=/usr/bin/mv
