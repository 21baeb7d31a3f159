# Ends every process of the commands: TERM, and KILL after the grace period. Called as
# `bash -c FIND+TEXT bash FOLDER GRACE_TENTHS ID …`; the ID `*` stands for all. Answers `\0gone\0`, or
# `\0left\0PID …\0` for processes that do not end. Standard input must stay open meanwhile.
folder=$1 grace=$2
shift 2
wanted=" $* "
[[ $wanted != " * " ]] || wanted="*"
told=" " pause=0.02

# A process of another user can only be reached through its parent: a sudo, which may still have been prompting for a
# password when it got TERM itself.
signal_parents() {
    local pid stat
    for pid in "${found[@]}"; do
        [[ $told != *" $pid "* ]] && ! kill -s 0 "$pid" 2>/dev/null || continue
        told+="$pid "
        { read -r stat <"/proc/$pid/stat"; } 2>/dev/null || continue
        set -- ${stat##*) }
        [[ " ${found[*]} " != *" $2 "* ]] || kill -s TERM "$2" 2>/dev/null
    done
}

for ((tenths = 0; tenths < grace + 50; tenths++)); do
    find_sessions
    look
    if ((${#found[@]} == 0)); then
        # A command that was just requested has not recorded itself yet.
        begun=1
        for id in ${wanted#"*"}; do
            [[ $known == *" $id "* ]] || begun=
        done
        if [[ -n $begun ]] || ((tenths > 10)); then
            printf '\0gone\0\4\0'
            exit 0
        fi
    elif [[ $told == " " ]]; then
        told=" ${found[*]} "
        kill -s TERM "${found[@]}" 2>/dev/null
        # A suspended process cannot react to TERM.
        kill -s CONT "${found[@]}" 2>/dev/null
    elif ((tenths >= grace)); then
        kill -s KILL "${found[@]}" 2>/dev/null
    else
        signal_parents
    fi
    read -r -t "$pause" _
    pause=0.1
done
printf '\0left\0%s\0\4\0' "${found[*]}"
exit 1
