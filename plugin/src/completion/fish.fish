# kubectl jobqueue completion for fish:
#   kubectl jobqueue completion fish | source
function __kubectl_jobqueue
    set -l words (commandline -opc)
    set -e words[1]
    set -l answer (kubectl-jobqueue __complete -- $words (commandline -ct) 2>/dev/null)
    # The last line says what else may be offered: with 0, files.
    if test "$answer[-1]" = ':0'
        __fish_complete_path (commandline -ct)
    end
    string match -v -r '^:' -- $answer
end
complete -c kubectl-jobqueue -f -a '(__kubectl_jobqueue)'
