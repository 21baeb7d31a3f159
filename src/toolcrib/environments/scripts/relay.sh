# Runs a program through a service that transfers text only: `bash -c TEXT toolcrib INPUT PROGRAM …`.
#
# Output is sent as lines of base64 on standard output, followed by a line `.`. On standard error, `=CODE` reports the
# exit, `=CODE+` an exit with the output still held open, `!REASON` that the program could not run.
# With INPUT `coded` the input arrives as lines of base64 and ends with a line `.`, for services that cannot close it;
# with `plain` the program inherits our input.

for __tc_needed in base64 dd; do
    command -v "$__tc_needed" >/dev/null || {
        printf '!the image has no %s\n' "$__tc_needed" >&2
        exit 127
    }
done

__tc_encode() {
    local chunk
    # dd returns what has arrived, however little; base64 alone would wait for more.
    while chunk=$(dd bs=65536 count=1 2>/dev/null | base64 -w 0) && [[ -n $chunk ]]; do
        printf '%s\n' "$chunk" || return
    done
    printf '.\n'
}

__tc_decode() {
    local line
    while IFS= read -r line && [[ $line != . ]]; do
        base64 -d <<<"$line" || return
    done
}

__tc_input=$1
shift
exec {__tc_lines}>&1 {__tc_control}>&2
exec {__tc_out}> >(
    exec {__tc_control}>&-
    __tc_encode >&"$__tc_lines" 2>/dev/null
)
__tc_encoder=$!
if [[ $__tc_input == coded ]]; then
    exec {__tc_in}< <(
        exec {__tc_control}>&- {__tc_lines}>&- {__tc_out}>&-
        __tc_decode 2>/dev/null
    )
    __tc_decoder=$!
else
    exec {__tc_in}<&0
    __tc_decoder=
fi

# In the foreground, because background jobs of a script ignore interrupts.
"$@" <&"$__tc_in" >&"$__tc_out" 2>&1 {__tc_in}<&- {__tc_out}>&- {__tc_lines}>&- {__tc_control}>&-
__tc_code=$?

exec {__tc_out}>&- {__tc_in}<&-
[[ -z $__tc_decoder ]] || kill "$__tc_decoder" 2>/dev/null
# Send all output before reporting the exit, but do not wait for children that keep printing.
__tc_open=+
for ((__tc_try = 0; __tc_try < 50; __tc_try++)); do
    kill -0 "$__tc_encoder" 2>/dev/null || { __tc_open= && break; }
    sleep 0.01
done
printf '=%d%s\n' "$__tc_code" "$__tc_open" >&"$__tc_control"
exit "$__tc_code"
