#compdef kubectl-jobqueue
# kubectl jobqueue completion for zsh:
#   source <(kubectl jobqueue completion zsh)
_kubectl_jobqueue() {
    local line word directive
    local -a asked found
    asked=("${(@)words[2,CURRENT]}")
    while IFS= read -r line; do
        case $line in
            :*) directive=${line#:} ;;
            *)
                # A colon ends the word for _describe: one that is part of it (a context of EKS) is escaped.
                word=${line%%$'\t'*}
                found+=("${word//:/\\:}${line#$word}")
                found[-1]=${found[-1]/$'\t'/:}
                ;;
        esac
    done < <(kubectl-jobqueue __complete -- "${asked[@]}" 2>/dev/null)
    if [ "$directive" = 0 ]; then
        _files
    else
        _describe 'kubectl jobqueue' found
    fi
}
compdef _kubectl_jobqueue kubectl-jobqueue
