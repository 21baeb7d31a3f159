# Tells what happened to a command of an earlier toolcrib process: `bash -c FIND+TEXT bash FOLDER ID`. Answers
# `\0runs\0`; `\0over\0` if only its log and exit code remain; `\0left\0` if it has processes but no log; else
# `\0none\0`.
folder=$1 id=$2
wanted=" $id "
answer() {
    printf '\0%s\0\4\0' "$1"
    exit 0
}
if [[ ! -e $folder/$id.log ]]; then
    find_sessions
    look
    ((${#found[@]} == 0)) || answer left
    answer none
fi
for try in {1..10}; do
    [[ ! -s $folder/$id.exit ]] || answer over
    find_sessions
    look
    ((${#found[@]} == 0)) || answer runs
    # It may be starting, or have just ended.
    read -r -t 0.05 _
done
# It was killed together with the process that would have recorded its exit.
echo lost >|"$folder/$id.exit"
answer over
