# Sourced: `generates NAME PROGRAM TOKENS MODEL [OPTIONS...]`: on backend guard PROGRAM draws the tokens that it draws on
# ref. A line of TAP, with what was drawn and said where they differ; then failed=1.
generates() {
  name=$1
  program=$2
  tokens=$3
  model=$4
  shift 4
  drawn=$(mktemp -d)
  for backend in ref guard; do
    "$program" generate --model "$model" --backend "$backend" --prompt "Once upon a" --tokens "$tokens" --ignore-end \
      "$@" >"$drawn/$backend" 2>"$drawn/$backend.log" || : >"$drawn/$backend.failed"
  done
  if [ -s "$drawn/ref" ] && cmp -s "$drawn/ref" "$drawn/guard" && [ ! -e "$drawn/ref.failed" ] &&
    [ ! -e "$drawn/guard.failed" ]; then
    echo "ok - $name: ${model##*/} $*"
  else
    echo "not ok - $name: ${model##*/} $*"
    sed 's/^/# /' "$drawn/ref" "$drawn/guard" "$drawn/ref.log" "$drawn/guard.log"
    failed=1
  fi
  rm -rf "$drawn"
}
