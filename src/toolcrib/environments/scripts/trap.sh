# Stores the command's own EXIT trap and runs it before the end, instead of replacing ours.
trap() {
    if ((BASH_SUBSHELL > __tc_level || $# < 2)) || [[ $1 == -[lp]* ]]; then
        builtin trap "$@"
        builtin return
    fi
    [[ $1 == -- ]] && builtin shift
    builtin local __tc_signal __tc_others
    __tc_others=()
    for __tc_signal in "${@:2}"; do
        case $__tc_signal in
        EXIT | exit | 0)
            __tc_at_exit=$1
            [[ $1 != - && $1 != *__tc_finish ]] || __tc_at_exit=
            ;;
        *) __tc_others+=("$__tc_signal") ;;
        esac
    done
    ((${#__tc_others[@]} == 0)) || builtin trap -- "$1" "${__tc_others[@]}"
}
