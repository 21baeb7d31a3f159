# Prepended to `runner.sh` if the shell may not lead a session, or may inherit variables.

# Start a session, so that the whole tree can be found and ended.
if read -r __tc_stat 2>/dev/null </proc/$$/stat; then
    __tc_stat=(${__tc_stat##*) })
    [[ ${__tc_stat[3]} == "$$" ]] || ! type -P setsid >/dev/null ||
        exec setsid "$BASH" --norc --noprofile -c "$BASH_EXECUTION_STRING" bash "$@"
    unset -v __tc_stat
fi

# Variables unset in the session must not come back from the environment that the backend starts programs with; TERM
# stays, because it describes the terminal.
if [[ ${PATH@a} == *x* ]]; then
    for __tc_name in ${!A@} ${!B@} ${!C@} ${!D@} ${!E@} ${!F@} ${!G@} ${!H@} ${!I@} ${!J@} ${!K@} ${!L@} ${!M@} \
        ${!N@} ${!O@} ${!P@} ${!Q@} ${!R@} ${!S@} ${!T@} ${!U@} ${!V@} ${!W@} ${!X@} ${!Y@} ${!Z@} ${!a@} ${!b@} \
        ${!c@} ${!d@} ${!e@} ${!f@} ${!g@} ${!h@} ${!i@} ${!j@} ${!k@} ${!l@} ${!m@} ${!n@} ${!o@} ${!p@} ${!q@} \
        ${!r@} ${!s@} ${!t@} ${!u@} ${!v@} ${!w@} ${!x@} ${!y@} ${!z@}; do
        [[ ${!__tc_name@a} == *r* || ${!__tc_name@a} != *x* || $__tc_name == TERM ]] || unset -v "$__tc_name"
    done
fi
unset -v __tc_name
