#compdef winnow
# Completion of winnow's commands, options, choices and recipe keys in zsh, read from the program's own --help.
# Installed where zsh looks (share/zsh/site-functions/_winnow).

# NAME:DESCRIPTION of what `winnow PATH... --help` lists under $1, Commands or Options.
_winnow_list() {
  local part=$1
  shift
  "$@" --help 2>/dev/null | awk -v part="$part:" '
    /^[A-Z].*:$/ { on = $1 == part; next }
    on && /^  [a-z-]/ { name = $1; sub(/^ +[^ ]+ +/, ""); sub(/^[A-Z][^ ]*  +/, ""); print name ":" $0 }'
}

# The candidates for the words $2... of which the last is being typed, into the array reply; $1: the program.
# Status 1: a file, a folder or a number is expected.
_winnow_candidates() {
  emulate -L zsh
  local program=$1 word line
  shift
  local -a typed=("$@") place=("$program") names
  local previous=${typed[-2]:-}
  reply=()
  for word in ${typed[1,-2]}; do
    [[ $word == help && ${#place} -eq 1 ]] && continue
    [[ $word == -* ]] && break
    names=("${(@f)$(_winnow_list Commands $place)}")
    (( ${names[(I)$word:*]} )) || break
    place+=($word)
  done
  if [[ $previous == --set ]]; then
    reply=("${(@f)$("$program" train --help 2>/dev/null | sed -n 's/^  \([a-z]*\.[a-z_0-9.]*\)  *\([a-z].*\)/\1=:\2/p')}")
    return 0
  fi
  if [[ $previous == --* ]]; then
    line=$($place --help 2>/dev/null | awk -v option="$previous" '
      /^  --/ { on = $1 == option } /^[^ ]/ { on = 0 } on { if (bar) sub(/^ +/, ""); bar = /[|]$/; printf "%s", $0 }')
    if [[ $line =~ '\(([a-z0-9_-]+(\|[a-z0-9_-]+)+)\)' ]]; then
      reply=(${(s:|:)match[1]})
      return 0
    fi
    [[ $line =~ "^  $previous [A-Z]" ]] && return 1
  fi
  reply=("${(@f)$(_winnow_list Commands $place)}")
  if [[ -z ${reply[1]} ]]; then
    reply=("${(@f)$(_winnow_list Options $place)}")
    [[ ${typed[-1]} == -* ]] || return 1
  fi
  return 0
}

_winnow() {
  local -a reply
  if _winnow_candidates ${words[1]} "${(@)words[2,CURRENT]}"; then
    if [[ ${words[CURRENT-1]} == --set ]]; then _describe -t keys 'recipe key' reply -S ''; else _describe -t words 'winnow' reply; fi
  else
    _files
    (( ${#reply} )) && _describe -t options option reply
  fi
}
[[ ${funcstack[1]:-} == _winnow ]] && _winnow "$@"
(( $+functions[compdef] )) && compdef _winnow winnow
