# Made by contrib/completions/generate.py: change the source, not this.

_tias_slurm() {
    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} command= i
    for ((i = 1; i < COMP_CWORD; i++)); do
        if [[ ${COMP_WORDS[i]} != -* ]]; then command=${COMP_WORDS[i]}; break; fi
    done
    COMPREPLY=()
    case $command:$before in
        dry-run:--config) compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -f -- "$word"); return ;;
        dry-run:--delimiter) return ;;
        dry-run:--format) return ;;
        dry-run:--columns) return ;;
        dry-run:--time-unit) mapfile -t COMPREPLY < <(compgen -W 's min h' -- "$word"); return ;;
        dry-run:--timezone) return ;;
        dry-run:--cluster) return ;;
        dry-run:--assume-deadlines) return ;;
        dry-run:--nodes) compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -f -- "$word"); return ;;
        dry-run:--gpus) return ;;
        dry-run:--gpus-per-node) return ;;
        dry-run:--placement) mapfile -t COMPREPLY < <(compgen -W 'nodes count' -- "$word"); return ;;
        dry-run:--policies) return ;;
        dry-run:--preemption) mapfile -t COMPREPLY < <(compgen -W 'on off' -- "$word"); return ;;
        dry-run:--consent) return ;;
        dry-run:--consent-seed) return ;;
        dry-run:--interval) return ;;
        dry-run:--checkpoint) return ;;
        dry-run:--restart-cost) return ;;
        dry-run:--requeue-delay) return ;;
        dry-run:--out) compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -d -- "$word"); return ;;
        run:--config) compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -f -- "$word"); return ;;
        run:--mode) mapfile -t COMPREPLY < <(compgen -W 'dry-run enforce' -- "$word"); return ;;
        once:--config) compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -f -- "$word"); return ;;
        once:--mode) mapfile -t COMPREPLY < <(compgen -W 'dry-run enforce' -- "$word"); return ;;
        plan:--config) compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -f -- "$word"); return ;;
        status:--config) compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -f -- "$word"); return ;;
        explain:--config) compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -f -- "$word"); return ;;
        history:--config) compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -f -- "$word"); return ;;
        report:--since) return ;;
        report:--until) return ;;
        report:--config) compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -f -- "$word"); return ;;
        report:--export) return ;;
        report:--nodes) compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -f -- "$word"); return ;;
        report:--cluster) return ;;
        report:--out) compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -d -- "$word"); return ;;
        pause:--reason) return ;;
        pause:--config) compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -f -- "$word"); return ;;
        resume:--config) compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -f -- "$word"); return ;;
        ignore:--reason) return ;;
        ignore:--config) compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -f -- "$word"); return ;;
        unignore:--config) compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -f -- "$word"); return ;;
        restore:--config) compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -f -- "$word"); return ;;
        check-config:--config) compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -f -- "$word"); return ;;
        show-config:--config) compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -f -- "$word"); return ;;
    esac
    local words= files=
    case $command in
        '') words='--version --help dry-run run once plan status explain history report pause resume ignore unignore restore check-config show-config' ;;
        dry-run) words='--config --delimiter --format --columns --time-unit --timezone --cluster --assume-deadlines --how-to-export --nodes --gpus --gpus-per-node --placement --policies --preemption --consent --consent-seed --interval --checkpoint --restart-cost --requeue-delay --out --json --anonymise --help' files=1 ;;
        run) words='--config --mode --help' ;;
        once) words='--config --mode --json --help' ;;
        plan) words='--config --json --help' ;;
        status) words='--config --json --watch --anonymise --help' ;;
        explain) words='--config --json --anonymise --help' ;;
        history) words='--config --json --anonymise --help' ;;
        report) words='--since --until --config --export --nodes --cluster --json --anonymise --out --help' ;;
        pause) words='--reason --config --json --help' ;;
        resume) words='--config --json --help' ;;
        ignore) words='--reason --config --json --help' ;;
        unignore) words='--config --json --help' ;;
        restore) words='--config --json --help' ;;
        check-config) words='--config --live --json --help' ;;
        show-config) words='--config --json --lua --help' ;;
    esac
    if [[ $files && $word != -* ]]; then compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -f -- "$word"); return; fi
    if [[ $command && $word != -* ]]; then return; fi
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word")
}
complete -F _tias_slurm tias-slurm
