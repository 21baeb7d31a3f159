# Tells whether a command waits for somebody to type: `bash -c TEXT bash FOLDER ID PROMPT`. PROMPT says that its last line
# of output is unfinished. Answers `\0yes\0` or `\0no\0`.
#
# A command waits if one of its processes is blocked in `read` on its terminal or on the command's own input, or is in the
# foreground of its terminal, shows a prompt, and waits for a set of descriptors that the terminal is in: line editors,
# pagers and full-screen programs do one or the other. Relays (`ssh -t`, `sudo`) always wait for the terminal, too, so
# that alone is not enough. Where the kernel does not show us the descriptors, open sockets and the mode of the terminal
# decide.
folder=$1 wanted=$2 prompt=$3
case $HOSTTYPE in
x86_64) reads=' 0 19 ' polls=' 7 271 ' selects=' 23 270 ' epolls=' 232 281 441 ' ;;
aarch64) reads=' 63 65 ' polls=' 73 ' selects=' 72 ' epolls=' 22 441 ' ;;
*) reads= polls= selects= epolls= ;;
esac
shopt -s nullglob

is_terminal() { # DESCRIPTOR of $process
    local file=$process/fd/$1 other
    [[ -c $file ]] || return
    for other in null zero full random urandom ptmx; do
        [[ ! $file -ef /dev/$other ]] || return
    done
}

is_own_input() { [[ -p $process/fd/0 && $process/fd/0 -ef /proc/$leader/fd/0 ]]; }

has_socket() {
    local file
    for file in "$process"/fd/*; do
        [[ ! -S $file ]] || return 0
    done
    return 1
}

has_child() {
    local children
    { read -r children <"$process/task/${process##*/}/children"; } 2>/dev/null
    [[ -n $children ]]
}

# Whether keys are read one by one, or are not shown.
is_terminal_special() {
    local file mode=
    for file in "$process"/fd/* "/proc/$leader"/fd/0; do
        [[ -c $file && ! $file -ef /dev/null ]] && mode=$(stty -a <"$file" 2>/dev/null) && break
    done
    [[ " ${mode//[$'\n;']/ } " == *" -icanon "* || " ${mode//[$'\n;']/ } " == *" -echo "* ]]
}

memory() { # ADDRESS SIZE: words of four bytes
    dd if="$process/mem" bs=1 skip="$(($1))" count="$2" 2>/dev/null | od -A n -v -t d4 2>/dev/null
}

# The descriptors that a thread waits for, in `awaited`; fails if they are unknown. SYSCALL and its arguments
find_awaited() {
    local words word bit number=0
    awaited=()
    if [[ $epolls == *" $1 "* ]]; then
        while read -r word number _; do
            [[ $word != tfd: ]] || awaited+=("$number")
        done 2>/dev/null <"$process/fdinfo/$(($2))"
    elif [[ $polls == *" $1 "* ]] && (($3 > 0 && $3 < 256)); then
        words=($(memory "$2" $(($3 * 8))))
        for word in "${!words[@]}"; do
            ((word % 2)) || awaited+=("${words[word]}")
        done
    elif [[ $selects == *" $1 "* ]] && (($2 > 0 && $2 <= 1024 && $3 != 0)); then
        for word in $(memory "$3" $((($2 + 31) / 32 * 4))); do
            for bit in {0..31}; do
                ((!(word >> bit & 1))) || awaited+=($((number * 32 + bit)))
            done
            ((number += 1))
        done
    fi
    ((${#awaited[@]}))
}

polls_terminal() { # SYSCALL and its arguments, if known
    local number
    if find_awaited "$@"; then
        for number in "${awaited[@]}"; do
            ! is_terminal "$number" || return 0
        done
        return 1
    fi
    is_terminal_special || ! has_socket
}

reads_terminal() { # WHERE SYSCALL DESCRIPTOR
    if [[ -n $2 && -n $reads ]]; then
        [[ $reads == *" $2 "* ]] || return
        if is_terminal "$(($3))"; then
            # A thread beside the others may read what is typed while they work.
            [[ -n $is_first || -n $prompt ]]
        else
            (($3 == 0)) && is_own_input
        fi
        return
    fi
    case $1 in
    *pipe_read | fifo_read) is_own_input && ! has_child ;;
    n_tty_read) [[ -n $is_first || -n $prompt ]] ;;
    # Or it receives from a socket.
    *) [[ -n $foreground ]] && { ! has_socket || [[ -n $prompt ]] || is_terminal_special; } ;;
    esac
}

waits() { # TASK
    local state where= call= one= two=
    { read -r state <"$1/stat"; } 2>/dev/null || return
    [[ ${state##*) } == S* ]] || return
    is_first=
    [[ ${1##*/} != "${process##*/}" ]] || is_first=1
    { read -r where <"$1/wchan"; } 2>/dev/null
    { read -r call one two _ <"$1/syscall"; } 2>/dev/null
    case $where in
    n_tty_read | wait_woken | *pipe_read | fifo_read) reads_terminal "$where" "$call" "$one" ;;
    *poll* | *select*) [[ -n $foreground && -n $prompt ]] && polls_terminal "$call" "$one" "$two" ;;
    # A process of another user, such as sudo.
    0 | '') [[ -n $foreground && -n $prompt ]] && is_terminal_special ;;
    *) return 1 ;;
    esac
}

sessions=" " leader=
while read -r id pid _; do
    [[ $id != "$wanted" ]] || sessions+="$pid " leader=${leader:-$pid}
done <"$folder/sessions"
for process in /proc/[0-9]*; do
    { read -r stat <"$process/stat"; } 2>/dev/null || continue
    set -- ${stat##*) }
    [[ $sessions == *" $3 "* || $sessions == *" $4 "* ]] || continue
    foreground=
    [[ $5 == 0 || $6 != "$3" ]] || foreground=1
    for task in "$process"/task/[0-9]*; do
        ! waits "$task" || { printf '\0yes\0\4\0' && exit; }
    done
done
printf '\0no\0\4\0'
