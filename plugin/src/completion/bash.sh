# kubectl jobqueue completion for bash:
#   source <(kubectl jobqueue completion bash)
_kubectl_jobqueue() {
    local words answer line directive
    words=("${COMP_WORDS[@]:1:COMP_CWORD}")
    [ "${COMP_WORDS[0]##*/}" = kubectl ] && words=("${words[@]:1}")
    answer=$(kubectl-jobqueue __complete -- "${words[@]}" 2>/dev/null) || return
    COMPREPLY=()
    while IFS= read -r line; do
        case $line in
            :*) directive=${line#:} ;;
            *) COMPREPLY+=("${line%%$'\t'*}") ;;
        esac
    done <<<"$answer"
    if [ "$directive" = 0 ]; then
        COMPREPLY=($(compgen -f -- "${COMP_WORDS[COMP_CWORD]}"))
    fi
}
complete -F _kubectl_jobqueue kubectl-jobqueue
