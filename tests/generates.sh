# Sourced. `generates NAME PROGRAM BACKEND TOKENS MODEL [OPTIONS...]` checks that PROGRAM generates the same tokens on
# BACKEND as on ref, after $PROMPT or a default. Prints a TAP line and, where they differ, both outputs; then sets
# failed=1.
generates() {
  name=$1
  program=$2
  other=$3
  tokens=$4
  model=$5
  shift 5
  drawn=$(mktemp -d)
  for backend in ref "$other"; do
    "$program" generate --model "$model" --backend "$backend" --prompt "${PROMPT:-Once upon a}" \
      --tokens "$tokens" --ignore-end "$@" >"$drawn/$backend" 2>"$drawn/$backend.log" || : >"$drawn/$backend.failed"
  done
  if [ -s "$drawn/ref" ] && cmp -s "$drawn/ref" "$drawn/$other" && [ ! -e "$drawn/ref.failed" ] &&
    [ ! -e "$drawn/$other.failed" ]; then
    echo "ok - $name: ${model##*/} $*"
  else
    echo "not ok - $name: ${model##*/} $*"
    sed 's/^/# /' "$drawn/ref" "$drawn/$other" "$drawn/ref.log" "$drawn/$other.log"
    failed=1
  fi
  rm -rf "$drawn"
}
