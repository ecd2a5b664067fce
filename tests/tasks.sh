# Sourced by bash scripts that have a folder $work. `task COMMAND...` runs a command in the background, JOBS (2) at a
# time, with its own folder $own and its own TAP lines. `shown` waits for all, prints their lines in order, and returns
# false if one is "not ok" or there are none. $tasks counts them.
tasks=0
task() {
  [ "$(jobs -pr | wc -l)" -lt "${JOBS:-2}" ] || wait -n
  tasks=$((tasks + 1))
  own=$work/$tasks
  mkdir "$own"
  "$@" >"$own.tap" &
}
shown() {
  local i wrong=0
  wait
  for ((i = 1; i <= tasks; i++)); do
    [ -s "$work/$i.tap" ] || echo "not ok - the task $i, which has said nothing" >"$work/$i.tap"
    cat "$work/$i.tap"
    ! grep -q '^not ok' "$work/$i.tap" || wrong=1
  done
  return $wrong
}
