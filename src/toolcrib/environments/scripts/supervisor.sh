# Starts a background command and supervises it: `bash -c TEXT bash FOLDER ID ENTRY RUNNER`, with the command's blob on
# standard input as `LENGTH newline BLOB`. Answers `\0started\0`, or `\0failed\0`.
# Output goes to ID.log and the exit code to ID.exit, so that both outlive the toolcrib process. Whatever is written to
# ID.in is the command's input; USR1 to this shell ends it.
folder=$1 id=$2 entry=$3 runner=$4
if [[ ${5-} != detached ]]; then
    umask 077
    read -r length && LC_ALL=C IFS= read -r -d '' -N "$length" blob
    printf '%s' "$blob" >"$folder/$id.blob" && mkfifo "$folder/$id.in" && : >"$folder/$id.log" || {
        printf '\0failed\0\4\0'
        exit 1
    }
    setsid "$BASH" --norc --noprofile -c "$BASH_EXECUTION_STRING" bash "$@" detached </dev/null >/dev/null 2>&1 &
    printf '\0started\0\4\0'
    exit 0
fi
# Held open in both directions: a writer that closes it does not end the input.
exec 9<>"$folder/$id.in"
trap 'exec 9>&-' USR1
echo $$ >"$folder/$id.supervisor"
setsid "$BASH" --norc --noprofile -c "$entry" bash "$runner" "$folder" "$folder/$id.blob" \
    <"$folder/$id.in" >>"$folder/$id.log" 2>&1 9>&- &
child=$!
while :; do
    wait "$child"
    code=$?
    # A signal to this shell interrupts the wait, but not the command.
    kill -0 "$child" 2>/dev/null || break
done
# The runner records the code itself unless it was killed or replaced by exec.
[[ -s $folder/$id.exit ]] || echo "$code" >|"$folder/$id.exit"
rm -f "$folder/$id.in" "$folder/$id.supervisor" "$folder/$id.blob"
