# Lists the orphans of the command as `pid command` lines: processes in its group or session, or with its id.
__tc_find_orphans() {
    builtin local IFS=$' \t\n' pid last stat words word
    builtin read -r _ _ _ _ last 2>/dev/null </proc/loadavg || builtin return
    # Whatever the command started has a pid between the newest one before it and the newest one now.
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
        [[ $pid != "$BASHPID" && $pid != "$$" ]] || builtin continue
        { builtin read -r stat <"/proc/$pid/stat"; } 2>/dev/null || builtin continue
        builtin set -- ${stat##*) }
        [[ $1 != [ZX] ]] || builtin continue
        if [[ $3 != "$BASHPID" && $4 != "$BASHPID" ]]; then
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
