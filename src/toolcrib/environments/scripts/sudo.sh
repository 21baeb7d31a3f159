# Prepended to a command that calls sudo and for which a password was given. The password arrives as the first line of
# input, as escapes for `printf`: no variable holds the plain text, so neither `set` nor a trace shows it. It reaches
# sudo through a pipe that only the process beside it can read, so that sudo's own input stays the command's. Expects
# __tc_sudo_program and, on a terminal, __tc_sudo_ready, which is printed once typed text is no longer echoed.
if [[ -z $__tc_sudo_ready ]]; then
    IFS= builtin read -r -t 30 __tc_sudo_line
elif builtin command stty -echo 2>/dev/null; then
    builtin printf '%s1' "$__tc_sudo_ready"
    IFS= builtin read -r -t 30 __tc_sudo_line
    builtin command stty echo
else
    builtin printf '%s0' "$__tc_sudo_ready"
fi
# A function of that name in the session takes precedence.
if [[ -n ${__tc_sudo_line-} ]] && ! builtin declare -F sudo >/dev/null; then
    function sudo () {
        (
            { builtin set +euxv; } 2>/dev/null
            given=()
            while [[ ${1-} == -?* && $1 != -- ]]; do
                # The command says itself where the password comes from.
                if [[ $1 =~ ^-[BEHKNPbeiklsv]*[ASn] || $1 == --stdin || $1 == --askpass || $1 == --non-interactive ]]; then
                    "$__tc_sudo_program" "${given[@]}" "$@"
                    builtin exit "$?"
                fi
                case $1 in
                    -p | --prompt) builtin shift ;;
                    -[CDRTUghrtu]) given+=("$1" "${2-}") && builtin shift ;;
                    -p?* | --prompt=*) ;;
                    *) given+=("$1") ;;
                esac
                builtin shift
            done
            if [[ -d /proc/$BASHPID/fd && -x /bin/cat ]]; then
                builtin exec {line}< <(builtin printf "$__tc_sudo_line\n")
                SUDO_ASKPASS=/bin/cat "$__tc_sudo_program" -k -A -p "/proc/$BASHPID/fd/$line" "${given[@]}" "$@"
            else
                builtin printf "$__tc_sudo_line\n" | "$__tc_sudo_program" -k -S -p '' "${given[@]}" "$@"
            fi
            # No exec: this process must outlive sudo.
            builtin exit "$?"
        )
    }
    # Not part of the session.
    builtin mapfile -d '' -t __tc_added < <(builtin declare -f sudo)
fi
