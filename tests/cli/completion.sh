# Completion in bash offers what the program's own help lists.
completes() { # NAME WANTED WORDS...: the words of a command line; the last is incomplete
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
# All commands, and all subcommands of a command: the list in the help.
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

# zsh and fish offer the same lists.
if command -v zsh >/dev/null; then
  zsh_completed() {
    zsh -f -c 'source "$1"; shift; _winnow_candidates "$@" ""; print -rl -- ${reply%%:*}' completion "$root/cli/winnow.zsh" "$winnow" "$@"
  }
  is "completion in zsh: all commands" "$(listed "")" "$(zsh_completed)"
  for command in "${parents[@]}"; do is "completion in zsh: all of $command" "$(listed $command)" "$(zsh_completed $command)"; done
  is "completion in zsh: choices" "$(completed eval --policy)" "$(zsh_completed eval --policy)"
  grep -qx 'model.attention.selective.enabled=' <(zsh_completed train --set) && pass "completion in zsh: recipe keys" || fail "completion in zsh: recipe keys"
else
  skip "completion in zsh" "zsh is not installed"
fi
if command -v fish >/dev/null; then
  mkdir -p fish
  ln -sf "$winnow" fish/winnow
  fish_completed() { PATH=$PWD/fish:$PATH HOME=$PWD/fish fish --no-config -c "source $root/cli/winnow.fish; complete -C 'winnow $*'" | cut -f1; }
  is "completion in fish: all commands" "$(listed "" | sort)" "$(fish_completed "" | sort)"
  for command in "${parents[@]}"; do is "completion in fish: all of $command" "$(listed $command | sort)" "$(fish_completed "$command " | sort)"; done
  is "completion in fish: choices" "$(completed eval --policy | sort)" "$(fish_completed "eval --policy " | sort)"
  grep -qx 'model.attention.selective.enabled=' <(fish_completed "train --set model.attention.selective.en") && pass "completion in fish: recipe keys" || fail "completion in fish: recipe keys"
else
  skip "completion in fish" "fish is not installed"
fi
