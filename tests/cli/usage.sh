# Help, options, exit codes.
listed() { "$winnow" $1 --help | awk '/^Commands:/ { on = 1; next } /^[^ ]/ { on = 0 } on && NF { print $1 }'; } # PATH
commands=$(listed "")
leaves=() parents=()
for command in $commands; do
  under=$(listed $command)
  [ -n "$under" ] || leaves+=("$command")
  [ -z "$under" ] || parents+=("$command")
  for word in $under; do leaves+=("$command $word"); done
done
[ ${#leaves[@]} -ge 23 ] && pass "help lists the commands" || fail "help lists the commands" "${leaves[*]}"
for file in "$root"/cli/cmd_*.c; do # one file per command
  command=$(basename "$file" .c)
  case " "$commands" " in
    *[[:space:]]${command#cmd_}[[:space:]]*) pass "help lists ${command#cmd_}" ;;
    *) fail "help lists ${command#cmd_}" "$commands" ;;
  esac
done
for leaf in "${leaves[@]}"; do
  run "$winnow" $leaf --help
  why=
  [ $code -eq 0 ] || why="exit code"
  [ -s err ] && why="$why standard error"
  grep -q -- --help out || why="$why no --help"
  grep -q -- --json out || why="$why no --json"
  head -n 1 out | grep -q "^winnow $leaf" || why="$why first line"
  sed '/^Recipe keys/,$d' out | awk 'length > 125 { exit 1 }' || why="$why a line is longer than 125"
  if [ -z "$why" ]; then pass "$leaf --help"; else fail "$leaf --help" "$why" "$(shown $leaf --help)"; fi
  refuses "$leaf refuses an unknown option" 2 'unknown option' $leaf --no-such-thing
  refuses "$leaf suggests the nearest option" 2 'did you mean --threads\?' $leaf --thread 2
done
for command in "${parents[@]}"; do
  run "$winnow" $command --help
  is "$command --help" 0 $code
  cp out said
  run "$winnow" $command
  is "$command without a subcommand shows them" "0 $(cat said)" "$code $(cat out)"
done
"$winnow" --help >said
run "$winnow"
is "winnow alone shows the commands" "0 $(cat said)" "$code $(cat out)"
run "$winnow" help data prepare
is "help of a command" "winnow data prepare" "$(head -n 1 out | cut -c1-19)"
refuses "an unknown command" 2 'did you mean "train"\?' trian
refuses "a command like nothing" 2 'unknown command' xyzzyplugh
refuses "an unknown subcommand" 2 'did you mean "prepare"\?' data prepair
refuses "a value that is missing" 2 '\-\-out' train --out
refuses "a checkpoint that is not given" 2 '\-\-model' eval
refuses "a checkpoint given twice" 2 'one checkpoint' generate --model a b
refuses "an option that is required" 2 '\-\-out is required' train --config x
refuses "a flag with a value" 2 '\-\-json' info --json=1
refuses "threads out of range" 2 '\-\-threads.*range' info --threads -1
refuses "threads that are no number" 2 '\-\-threads.*integer' info --threads two
refuses "a backend that is not there" 2 '\-\-backend' info --backend tpu
refuses "a temperature that is no number" 2 '\-\-temperature' generate --model x --temperature nan
refuses "a policy without budgets" 2 '\-\-budgets' generate --model x --policy h2o
refuses "a policy that does not exist" 2 '\-\-policy' generate --model x --budgets 4 --policy lru
refuses "an argument too many" 2 '' info a b
refuses "bench decode of nothing" 2 'model\.vocab_size=N, or --model' bench decode
refuses "bench train of a recipe without a vocabulary" 2 'model\.vocab_size=N' bench train --config "$root/recipes/demo-standard.json"
refuses "bench op: two ways to say what" 2 'exclude' bench op attention --selective --attention '{}'
refuses "nothing to train" 2 'nothing to train' train --out run
for spelling in --version -V version; do
  run "$winnow" $spelling
  if [ $code -eq 0 ] && grep -qE '^winnow [0-9]+\.[0-9]+\.[0-9]+ \(' out; then pass "version: $spelling"; else fail "version: $spelling" "$(shown $spelling)"; fi
done
run "$winnow" --help
grep -q -- --version out && pass "help tells of --version" || fail "help tells of --version" "$(cat out)"
refuses "help of no command" 2 'did you mean "train"\?' help trian
refuses "help of no subcommand" 2 'data: unknown command "xyzzy"' help data xyzzy
refuses "a range in whole numbers" 2 '0\.\.1048576 ' eval x --batch -1
refuses "policies' options without budgets" 2 '\-\-policy-options needs --budgets' eval x --policy-options recent=0.3
refuses "an option that no policy has" 2 'did you mean "recent"' eval x --budgets 4 --policy-options recnt=0.3
refuses "a policy's option out of range" 2 'snapkv.rows' eval x --budgets 4 --policy snapkv --policy-options snapkv.rows=0
refuses "h2o's choice without budgets" 2 '\-\-recent needs --budgets' eval x --recent 0.3
OMP_NUM_THREADS=1 json "at most OMP_NUM_THREADS" '.threads == 1' info
OMP_NUM_THREADS=1 json "threads asked for, whatever OMP_NUM_THREADS" '.threads == 3' info --threads 3
OMP_NUM_THREADS=x json "an OMP_NUM_THREADS that is no number" '.threads >= 1' info
WINNOW_ISA=mmx refuses "an instruction set that does not exist" 1 'WINNOW_ISA.*mmx|mmx' info
json "info of this build" '.version and (.features | type == "array") and (.libraries | length > 0) and .threads >= 1 and
  (.bfloat16 == "AMX" or .bfloat16 == "AVX512_BF16" or .bfloat16 == "float32") and
  (.prompts == "AMX" or .prompts == "AVX512_VNNI" or .prompts == "AVX2" or .prompts == "float32")' info
if [ "$(uname -m)" = x86_64 ] && WINNOW_ISA=avx2 "$winnow" info --json >out 2>err; then
  is "AVX2 multiplies prompts of GGUF models as integers" AVX2 "$(jq -r .prompts out)"
else
  skip "AVX2 multiplies prompts of GGUF models as integers" "no such processor"
fi
json "the reference backend multiplies rounded numbers" '.bfloat16 == "float32" and .prompts == "float32"' info --backend ref
json "info of the reference backend" '.backend == "ref"' info --backend ref
json "threads are taken" '.threads == 1' info --threads 1
# Found through PATH, the program knows only its name, which says nothing about the user's current folder.
mkdir -p planted/winnow
echo "no module of this build" | tee planted/winnow-cuda.so >planted/winnow/winnow-cuda.so
(cd planted && exec -a winnow "$winnow" info) >out 2>err
if [ $? -eq 0 ] && ! grep -q planted out; then
  pass "no module is taken from the folder that the user is in"
else
  fail "no module is taken from the folder that the user is in" "$(cat out err)"
fi
if [ -e /dev/full ]; then
  for command in info --version --help; do
    "$winnow" $command >/dev/full 2>err
    code=$?
    if [ $code -eq 1 ] && [ "$(wc -l <err)" -eq 1 ] && grep -q 'No space' err; then
      pass "a full standard output: $command"
    else
      fail "a full standard output: $command" "exit code $code" "$(cat err)"
    fi
  done
fi
run "$root/run-tests" --help
if [ $code -eq 0 ] && grep -q 'NAME' out; then pass "run-tests --help runs no test"; else fail "run-tests --help runs no test" "exit code $code" "$(head -3 out)"; fi
run "$root/run-tests" --no-such
is "run-tests refuses an unknown option" 2 $code
