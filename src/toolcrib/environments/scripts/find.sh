# Finds the processes of commands. Prepended to `end.sh`, `list_processes.sh` and `command_status.sh`, which set
# `folder` and `wanted` (` ID ID `, or `*`). A process belongs to a command if it is in the group or session that the
# command's shell leads, has the command's id in its environment, or is a descendant of such a process.

# The sessions of the commands. A session belongs to the command if its leader has ended (a session id is not reused
# while the session has members) or is still the recorded one. `known` lists the commands that have begun.
find_sessions() {
    local id pid started stat
    sessions=" " known=" "
    while read -r id pid started; do
        [[ $wanted == "*" || $wanted == *" $id "* ]] || continue
        known+="$id "
        if [[ $pid == ended ]]; then
            # Its orphans have its id in their environment.
            [[ $wanted != "*" ]] || sessions=${sessions/" ${leader[$id]-} "/" "}
            continue
        fi
        leader[$id]=$pid
        if { read -r stat <"/proc/$pid/stat"; } 2>/dev/null; then
            set -- ${stat##*) }
            [[ ${20} == "$started" ]] || continue
        fi
        sessions+="$pid "
    done <"$folder/sessions"
}

look() {
    local pid stat words word ours parents=() more=1
    found=()
    declare -A ours=() parent=()
    for pid in /proc/[0-9]*; do
        pid=${pid#/proc/}
        { read -r stat <"/proc/$pid/stat"; } 2>/dev/null || continue
        set -- ${stat##*) }
        [[ $1 != [ZX] && $pid != "$$" ]] || continue
        parent[$pid]=$2
        if [[ $sessions == *" $3 "* || $sessions == *" $4 "* ]]; then
            ours[$pid]=1
            continue
        fi
        words=()
        { mapfile -d '' -t words <"/proc/$pid/environ"; } 2>/dev/null
        for word in "${words[@]}"; do
            [[ $word == TOOLCRIB_COMMAND_ID=* ]] || continue
            [[ $wanted != "*" || $known != *" ${word#*=} "* ]] || ours[$pid]=1
            [[ $wanted != *" ${word#*=} "* ]] || ours[$pid]=1
        done
    done
    while ((more)); do
        more=0
        for pid in "${!parent[@]}"; do
            [[ -z ${ours[$pid]-} && -n ${ours[${parent[$pid]}]-} ]] || continue
            ours[$pid]=1 more=1
        done
    done
    found=("${!ours[@]}")
}
declare -A leader=()
