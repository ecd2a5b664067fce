# Completion in bash: what stands in the program's own help.
completes() { # NAME WANTED WORDS...: the words of a command line, the last one being typed
  local name=$1 want=$2
  shift 2
  local found
  found=$(bash --norc -c '
    source "$1"; shift
    COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
    _winnow 2>/dev/null
    printf "%s " "${COMPREPLY[@]}"' completion "$root/cli/winnow.bash" "$winnow" "$@")
  case " $found" in
    *" $want "*) pass "completion: $name" ;;
    *) fail "completion: $name" "expected: $want" "found: $found" ;;
  esac
}
# Every command, and every command of a command: the list that help has.
completed() { # WORDS...: all words that complete them
  bash --norc -c '
    source "$1"; shift
    COMP_WORDS=("$@" "") COMP_CWORD=$#
    _winnow 2>/dev/null
    printf "%s\n" "${COMPREPLY[@]}"' completion "$root/cli/winnow.bash" "$winnow" "$@"
}
is "completion: all commands" "$(listed "")" "$(completed)"
for command in "${parents[@]}"; do is "completion: all of $command" "$(listed $command)" "$(completed $command)"; done
completes "commands" generate gen
completes "subcommands" prepare data pre
completes "options" --temperature generate --temp
completes "options behind an argument" --temperature generate model --temp
completes "choices" streaming eval --policy str
completes "recipe keys" model.attention.selective.enabled= train --set model.attention.selective.en
completes "help of a command" search help prune se
completes "files are left to bash" "" generate --model x
