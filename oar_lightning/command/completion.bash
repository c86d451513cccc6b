# Completion of `oar-lightning ...` and `python -m oar_lightning ...` in bash.
_oar_lightning() {
    local line=${COMP_LINE:0:COMP_POINT} arguments word strip="" candidate
    local -a program=("${COMP_WORDS[0]/#\~/$HOME}")
    COMPREPLY=()
    case $line in
        *" -m oar_lightning "*) arguments=${line#*" -m oar_lightning "} program+=(-m oar_lightning) ;;
        *"oar-lightning "*) arguments=${line#*"oar-lightning "} ;;
        *) return ;;  # another program of this python: names of files
    esac
    word=${arguments##*[[:space:]]}
    word=${word#[\"\']}
    # where = separates words for bash, it replaces what follows it only
    [[ $COMP_WORDBREAKS == *=* && $word == *=* ]] && strip=${word%"${word##*=}"}
    while IFS= read -r candidate; do
        [[ $candidate == "$word"* ]] || continue
        case $candidate in
            *=*/* ) [[ -d ${candidate#*=} ]] && candidate+=/ ;;
            *[=./] ) ;;
            *=* ) candidate+=" " ;;
        esac
        COMPREPLY+=("${candidate#"$strip"}")
    done < <(OAR_LIGHTNING_LINE=$arguments "${program[@]}" -sc query=bash 2>/dev/null)
}
complete -o nospace -o default -F _oar_lightning oar-lightning python python3
