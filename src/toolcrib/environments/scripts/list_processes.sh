# Lists the processes of commands: `bash -c FIND+TEXT bash FOLDER ID …`. Answers `\0found\0PID WORDS newline …\0`.
folder=$1
shift
wanted=" $* "
find_sessions
look
printf '\0found\0'
for pid in "${found[@]}"; do
    words=()
    { mapfile -d '' -t words <"/proc/$pid/cmdline"; } 2>/dev/null
    printf '%s %s\n' "$pid" "${words[*]//$'\n'/ }"
done
printf '\0\4\0'
