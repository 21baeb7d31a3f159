# Reports the output and exits of background commands: `bash -c TEXT bash FOLDER LIMIT`.
# Reads `follow ID OFFSET` and `forget ID` lines; writes `data ID LENGTH` lines, each followed by that many bytes, and
# `end ID CODE` lines. Exits at the end of its standard input.
folder=$1 limit=$2
declare -A offsets
pause=0.1 line=
while :; do
    # A line truncated by the timeout continues with the next piece.
    piece=
    if ((${#offsets[@]})); then
        IFS= read -r -t "$pause" piece
    else
        IFS= read -r piece
    fi
    code=$?
    line+=$piece
    case $code in
    0)
        set -- $line
        verb=${1-} id=${2-} offset=${3-} line=
        case $verb in
        follow) offsets[$id]=$offset ;;
        forget) unset -v "offsets[$id]" ;;
        esac
        continue
        ;;
    1) exit 0 ;;
    esac
    pause=0.1
    for id in "${!offsets[@]}"; do
        # First the exit, then the size: that way all output before the exit is seen.
        code=
        { read -r code <"$folder/$id.exit"; } 2>/dev/null
        # A log that is there has a size: if none can be had now (no process could be started), the next round has it.
        size=$(stat -c %s "$folder/$id.log" 2>/dev/null) || size=0
        ((size)) || [[ ! -s $folder/$id.log ]] || continue
        offset=${offsets[$id]}
        # The log was truncated, below or by another watcher.
        ((offset <= size)) || offset=0
        if ((size > offset)); then
            length=$((size - offset))
            ((length < 1048576)) || length=1048576 pause=0.001
            echo "data $id $length"
            tail -c "+$((offset + 1))" "$folder/$id.log" | head -c "$length"
            offset=$((offset + length))
        elif [[ -n $code ]]; then
            echo "end $id $code"
            unset -v "offsets[$id]"
            continue
        fi
        if ((offset == size && offset > limit)); then
            # The command appends, so it continues at the start of the truncated file.
            : >"$folder/$id.log"
            offset=0
        fi
        offsets[$id]=$offset
    done
done
