# Completion of winnow's commands, options, choices and recipe keys in bash, read from the program's own --help.
# Installed where bash-completion looks (share/bash-completion/completions/winnow); or: source cli/winnow.bash

# Words that `winnow PATH... --help` lists: commands, or options.
_winnow_words() {
  "$@" --help 2>/dev/null | awk '
    /^[A-Z].*:$/ { part = $1 }
    part == "Commands:" && /^  [a-z]/ { print $1 }
    part == "Options:" && /^  --/ { print $1 }'
}

_winnow() {
  local program=${COMP_WORDS[0]} current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]}
  local path=("${COMP_WORDS[0]}") words word i
  COMPREPLY=()
  command -v "$program" >/dev/null 2>&1 || return
  # `winnow help train` completes as `winnow train`.
  for ((i = 1; i < COMP_CWORD; i++)); do
    word=${COMP_WORDS[i]}
    [[ $word == help && ${#path[@]} -eq 1 ]] && continue
    [[ $word == -* ]] && break
    words=$(_winnow_words "${path[@]}")
    grep -qx -- "$word" <<<"$words" || break
    path+=("$word")
  done
  if [[ $previous == --set && $current != *=* ]]; then
    words=$("$program" train --help 2>/dev/null | sed -n 's/^  \([a-z]*\.[a-z_0-9.]*\)  *[a-z].*/\1=/p')
    COMPREPLY=($(compgen -W "$words" -- "$current"))
    type compopt >/dev/null 2>&1 && compopt -o nospace
    return
  fi
  if [[ $previous == --* ]]; then
    # One of several: "(a|b|c)" at the end of the option's line. Without a value's name in capitals it is a flag.
    word=$("${path[@]}" --help 2>/dev/null |
      awk -v option="$previous" '/^  --/ { on = $1 == option } /^[^ ]/ { on = 0 } on { if (bar) sub(/^ +/, ""); bar = /[|]$/; printf "%s", $0 }')
    if [[ $word =~ \(([a-z0-9_-]+(\|[a-z0-9_-]+)+)\) ]]; then
      COMPREPLY=($(compgen -W "${BASH_REMATCH[1]//|/ }" -- "$current"))
      return
    fi
    # The value is a file, a folder or a number: bash's own completion (-o default) does what it can.
    [[ $word =~ ^\ \ $previous\ [A-Z] ]] && return
  fi
  words=$(_winnow_words "${path[@]}")
  [[ ${#path[@]} -gt 1 && $current != -* && $words == --* ]] && return
  COMPREPLY=($(compgen -W "$words" -- "$current"))
}
complete -o default -F _winnow winnow
