# What became of a command of an earlier process of ours, as `bash -c FIND+TEXT bash FOLDER ID`. Answers `\0runs\0`;
# `\0over\0` when its log and exit code are all there is; `\0left\0` when it has no log, but processes; else `\0none\0`.
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
    # It may just be starting, or just have ended.
    read -r -t 0.05 _
done
# Killed together with whoever would have written down how it ended.
echo lost >|"$folder/$id.exit"
answer over
