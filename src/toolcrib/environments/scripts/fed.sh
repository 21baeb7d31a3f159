# Runs a program whose input arrives later, where a shell command gets its whole input at its start:
# `bash -c TEXT toolcrib FIFO PROGRAM …`. From when FIFO.ready is there until FIFO.done is, what is written to FIFO is its
# input, which ends when a line is written to FIFO.end.
__tc_fifo=$1
shift
mkfifo -m 600 "$__tc_fifo" "$__tc_fifo.end" || exit 125
exec {__tc_held}<>"$__tc_fifo" {__tc_end}<>"$__tc_fifo.end"
# Holds the input open in both directions until it is told: a writer that comes and goes does not end it.
(
    exec </dev/null >/dev/null 2>&1
    read -r _ <&"$__tc_end"
) &
# The reading end is opened while it is held open: whoever writes and ends the input at once does not come too early.
exec {__tc_input}<"$__tc_fifo" {__tc_held}>&- {__tc_errors}>&2 2>/dev/null
: >"$__tc_fifo.ready"
# In the foreground, since what runs in the background of a script ignores interrupts. What this shell would say about
# its end is not the program's.
"$@" <&"$__tc_input" 2>&"$__tc_errors" {__tc_errors}>&- {__tc_end}>&- {__tc_input}<&-
__tc_code=$?
: >"$__tc_fifo.done"
echo >&"$__tc_end"
rm -f "$__tc_fifo" "$__tc_fifo.end" "$__tc_fifo.ready"
exit "$__tc_code"
