# Runs a program whose input arrives later, for runners that pass all input at the start:
# `bash -c TEXT toolcrib FIFO PROGRAM …`. While FIFO.ready exists and FIFO.done does not, whatever is written to FIFO is
# the program's input; a line written to FIFO.end ends it.
__tc_fifo=$1
shift
mkfifo -m 600 "$__tc_fifo" "$__tc_fifo.end" || exit 125
exec {__tc_held}<>"$__tc_fifo" {__tc_end}<>"$__tc_fifo.end"
# Holds the FIFO open in both directions until told otherwise: a writer that closes it does not end the input.
(
    exec </dev/null >/dev/null 2>&1
    read -r _ <&"$__tc_end"
) &
# The reading end is opened while the FIFO is held, so that input written and ended at once is not lost.
exec {__tc_input}<"$__tc_fifo" {__tc_held}>&- {__tc_errors}>&2 2>/dev/null
: >"$__tc_fifo.ready"
# In the foreground, because background jobs of a script ignore interrupts. This shell's own messages about the end are
# not output of the program.
"$@" <&"$__tc_input" 2>&"$__tc_errors" {__tc_errors}>&- {__tc_end}>&- {__tc_input}<&-
__tc_code=$?
: >"$__tc_fifo.done"
echo >&"$__tc_end"
rm -f "$__tc_fifo" "$__tc_fifo.end" "$__tc_fifo.ready"
exit "$__tc_code"
