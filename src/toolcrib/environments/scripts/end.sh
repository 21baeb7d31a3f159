# Ends every process of the commands, as `bash -c FIND+TEXT bash FOLDER GRACE_TENTHS ID …`: TERM, after the grace KILL.
# The ID `*` stands for all. Answers `\0gone\0`, or `\0left\0PID …\0` for those that refuse to go. Standard input stays
# open meanwhile.
folder=$1 grace=$2
shift 2
wanted=" $* "
[[ $wanted != " * " ]] || wanted="*"
told=" " pause=0.02

# What belongs to another user hears it only through who started it: a sudo, which may still have been asking for a
# password when it was told itself.
tell_starters() {
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
        # One that was asked for an instant ago has not said yet who it is.
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
        # What is stopped cannot hear it.
        kill -s CONT "${found[@]}" 2>/dev/null
    elif ((tenths >= grace)); then
        kill -s KILL "${found[@]}" 2>/dev/null
    else
        tell_starters
    fi
    read -r -t "$pause" _
    pause=0.1
done
printf '\0left\0%s\0\4\0' "${found[*]}"
exit 1
