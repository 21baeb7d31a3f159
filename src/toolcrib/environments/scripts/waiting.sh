# Tells whether a process of a command reads from its terminal or standard input: `bash -c TEXT bash FOLDER ID PROMPT`.
# PROMPT says that the last line of output is unfinished: then a process that polls its terminal counts as well, as a
# line editor does. Answers `\0yes\0` or `\0no\0`.
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
        # In `read` on descriptor 0, if the kernel lets us see that.
        { read -r call descriptor _ <"$pid/syscall"; } 2>/dev/null
        [[ -z $call || $descriptor == 0x0 ]] && printf '\0yes\0\4\0' && exit
        ;;
    *poll* | *select*)
        # In the foreground of the terminal that is its input.
        [[ -n $prompt && $5 != 0 && $6 == "$3" && -c $pid/fd/0 ]] && printf '\0yes\0\4\0' && exit
        ;;
    esac
done
printf '\0no\0\4\0'
