# Creates the folder of a session and its first state: `bash -c TEXT bash FOLDER CWD LOGIN VARIABLES SECRETS`.
# Answers `\0ready\0CWD\0HOME\0STATE\0`, or `\0failed\0REASON\0`.
__tc_fail() {
    [[ ${__tc_was-} != new ]] || command rm -rf -- "$__tc_folder"
    printf '\0failed\0%s\0\4\0' "$1"
    exit 1
}
((BASH_VERSINFO[0] * 100 + BASH_VERSINFO[1] >= 404)) || __tc_fail "bash $BASH_VERSION is too old; 4.4 or later is needed"
__tc_folder=$1 __tc_cwd=$2 __tc_login=$3 __tc_variables=$4 __tc_secrets=$5
__tc_was=new
[[ ! -e $__tc_folder/sessions ]] || __tc_was=old
(umask 077 && command mkdir -p -- "$__tc_folder") || __tc_fail "cannot create the folder $__tc_folder"
# As the shell prints it: that is how it is recognised in the state that a command leaves.
declare -f trap >|"$__tc_folder/trap"
__tc_trap=$(<"$__tc_folder/trap")
unset -f trap
set --
if [[ -n $__tc_login ]]; then
    # The files that a login shell and an interactive shell read; what they print or break stays in this process.
    shopt -s expand_aliases
    while IFS= read -r __tc_file; do
        [[ $__tc_file != "~/"* ]] || __tc_file=$HOME/${__tc_file:2}
        # Without `-e`: profile files often contain a failing command.
        [[ ! -r $__tc_file ]] || builtin source "$__tc_file" </dev/null >/dev/null 2>&1
    done <<<"$__tc_login"
    set +CEefTuvx +o posix
    builtin trap - EXIT DEBUG ERR RETURN
    shopt -s nocasematch
    while IFS= read -r __tc_name; do
        [[ ! $__tc_name =~ $__tc_secrets ]] || unset -v "$__tc_name"
    done < <(compgen -e)
    shopt -u nocasematch
fi
eval "$__tc_variables"
[[ $__tc_cwd != "~" && $__tc_cwd != "~/"* ]] || __tc_cwd=$HOME${__tc_cwd:1}
builtin cd -- "${__tc_cwd:-$HOME}" 2>/dev/null || {
    [[ -z $__tc_cwd ]] || __tc_fail "the folder $__tc_cwd does not exist there"
    builtin cd /
}
# As in a shell that has just loaded the session.
export OLDPWD=$PWD
unset -f __tc_fail
__tc_write() {
    builtin printf 'builtin cd -- %q 2>/dev/null || __tc_gone=%q\n' "$PWD" "$PWD"
    builtin export -p
    unset -f __tc_write
    builtin declare -f
    builtin declare -Fx
    builtin alias -p
}
# The session, and the same as a command would write it: with our function, unless the profile defines that name.
(__tc_write) >|"$__tc_folder/state" || exit 1
declare -F trap >/dev/null || eval "$__tc_trap"
__tc_write >|"$__tc_folder/dump"
: >>"$__tc_folder/sessions"
builtin printf '\0ready\0%s\0%s\0%s\0\4\0' "$PWD" "${HOME-}" "$(<"$__tc_folder/state")"
