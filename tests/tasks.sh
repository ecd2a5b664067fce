# Sourced by scripts of bash that have a folder $work: `task COMMAND...` runs a command in the background, JOBS (2) at a time, with
# a folder $own and its lines of TAP to itself. `shown` waits for all, prints their lines in their order, and is false
# where one says "not ok" or none at all. $tasks counts them.
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
