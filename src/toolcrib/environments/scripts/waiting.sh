# Whether a process of a command is reading from its terminal or standard input, as `bash -c TEXT bash FOLDER ID PROMPT`.
# PROMPT says that the last line it printed is not finished: then one that waits for anything to happen on its terminal
# counts as well, as a program does that edits its input line. Answers `\0yes\0` or `\0no\0`.
folder=$1 wanted=$2 prompt=$3
sessions=" "
while read -r id pid _; do
    [[ $id != "$wanted" ]] || sessions+="$pid "
done <"$folder/sessions"
for pid in /proc/[0-9]*; do
    { read -r stat <"$pid/stat"; } 2>/dev/null || continue
    set -- ${stat##*) }
    [[ $1 == S && ($sessions == *" $3 "* || $sessions == *" $4 "*) ]] || continue
    where= call= descriptor=
    { read -r where <"$pid/wchan"; } 2>/dev/null
    case $where in
    n_tty_read | wait_woken | *pipe_read | fifo_read)
        # In `read` of descriptor 0, where the kernel lets us see that much.
        { read -r call descriptor _ <"$pid/syscall"; } 2>/dev/null
        [[ -z $call || $descriptor == 0x0 ]] && printf '\0yes\0\4\0' && exit
        ;;
    *poll* | *select*)
        # In the foreground of a terminal that is its input.
        [[ -n $prompt && $5 != 0 && $6 == "$3" && -c $pid/fd/0 ]] && printf '\0yes\0\4\0' && exit
        ;;
    esac
done
printf '\0no\0\4\0'
