# Downstream tasks with end_to_end.sh's trained model.
mkdir -p sets
cat >sets/copa.jsonl <<'LINES'
{"context": "The sun rose, so", "choices": ["the snow melted.", "the snow fell."], "label": 0}
{"context": "The cup broke because", "choices": ["it fell.", "it was full."], "label": 0}
{"context": "She was late, so", "choices": ["she ran.", "she slept on."], "label": 0}
LINES
gzip -c >sets/lambada_openai.jsonl.gz <<'LINES'
{"text": "He took the key and opened the door"}
LINES
json "eval --task" '.tasks | map(.task) == ["copa", "lambada_openai"] and .[0].questions == 3 and
    (.[0].acc * 3 | (. - round | fabs) < 1e-9) and .[0].acc_stderr >= 0 and .[1].perplexity > 1 and (.[1] | has("acc_norm") | not)' \
  eval talker --task copa,lambada_openai --data sets --log task.log
is "the log has a line for each question" "4 2" "$(wc -l <task.log.copa) $(wc -l <task.log.lambada_openai)"
json "eval --task --resume answers nothing twice" '.tasks[0] | .resumed == 3 and .tokens_fed == 0' \
  eval talker --task copa --data sets --log task.log.copa --resume
json "under budgets" '.tasks[0].questions == 3' eval talker --task copa --data sets --budgets 4 --policy window
sed 's/label/gold/' sets/copa.jsonl >own.jsonl
json "eval --sweep: a setting each, texts that fit answered once" '.tasks | map(.setting) == ["full", "window-4", "window-400"] and
  .[0].reused == 0 and .[2].reused == 3 and .[2].tokens_fed == 0 and .[2].acc == .[0].acc and .[2].acc_change == 0' \
  eval talker --task copa --data sets --sweep 4,400 --policies window --log swept.log
json "eval --sweep --resume" '.tasks | map(.resumed) == [3, 3, 3]' \
  eval talker --task copa --data sets --sweep 4,400 --policies window --log swept.log --resume
refuses "a sweep's log of other settings" 1 'swept.log.window-4: the log of another evaluation' eval talker --task copa --data sets \
  --sweep 4 --policies window --log swept.log --resume --policy-options sinks=1
succeeds "eval --sweep as a table" eval talker --task copa,lambada_openai --data sets --sweep 4 --policies window,h2o
grep -q '^copa  *h2o-4 ' out && pass "a line for each setting" || fail "a line for each setting" "$(cat out)"
refuses "a sweep beside budgets" 2 'budgets and --sweep exclude' eval talker --task copa --data sets --sweep 4 --budgets 4
refuses "a sweep that is no list" 2 'not a list of budgets' eval talker --task copa --data sets --sweep 4,x
refuses "policies without a sweep" 2 'goes with --sweep' eval talker --task copa --data sets --policies window
json "eval --choices" '.tasks[0] | .task == "choices" and .questions == 3 and has("acc_norm")' \
  eval talker --choices own.jsonl
refuses "an unknown task" 2 'did you mean copa' eval talker --task cope --data sets
refuses "a task twice" 2 'copa stands there twice' eval talker --task copa,copa --data sets
refuses "a task without its folder" 2 'needs --data' eval talker --task copa
refuses "a task whose file is missing" 1 'no piqa.jsonl and no piqa.jsonl.gz' eval talker --task piqa --data sets
refuses "--resume without a log" 2 'needs --log' eval talker --task copa --data sets --resume
refuses "--limit without a task" 2 'goes with --task' eval talker --data train.bin --limit 3
refuses "a log of other settings" 1 'the log of another evaluation' eval talker --task copa --data sets --log task.log.copa \
  --resume --budgets 4 --policy window
json "prune compare --task" '(.results | length) == 3 and ([.results[].tasks.copa.accuracy | . * 3 | (. - round | fabs) < 1e-9] | all)
    and .results[0].tasks.lambada_openai.stderr == null' prune compare --standard talker --data bpe-data/val.bin --rows 1 \
  --budgets 4,8 --policies window --task copa,lambada_openai --task-data sets --out task-compared
succeeds "prune compare --task as tables" prune compare --standard talker --data bpe-data/val.bin --rows 1 --budgets 4 \
  --policies window --task copa --task-data sets --out task-compared --quiet
is "a table for each task" "1" "$(grep -c '^copa, accuracy' out)"
run "$winnow" eval talker --task copa --data sets --budgets 4 --policy window --json
is "the accuracy is that of eval" "$(jq '.tasks[0].acc * 3 | round' out)" "$(jq '.results[1].tasks.copa.accuracy * 3 | round' task-compared/compare.json)"
succeeds "a report of it" report task-compared --out task-report.html --quiet
is "with the task's figure" "yes" "$(grep -q 'Accuracy against memory, copa' task-report.html && echo yes)"
# A comparison with tasks under the budgets of a search. The model's answers depend on what it still sees.
mkdir -p many
awk 'BEGIN { for (i = 1; i <= 60; i++) printf "{\"context\": \"%d of %d, and %d:\", \"choices\": [\" %d\", \" %d\"], \"label\": %d}\n",
  i * 7919 % 97, i, i * 31 % 89, i * 13 % 10, (i * 13 + 1 + i % 7) % 10, i % 2 }' >many/copa.jsonl
succeeds "a model that has learned nothing" train --config recipe.json --set data.tokenizer=bpe-data --set data.train=bpe-data/train.bin \
  --set data.val=bpe-data/val.bin --set model.position=rope --set model.init_std=0.4 --set train.steps=1 --set train.lr=0 \
  --set train.warmup=0 --out untaught --quiet
succeeds "a search to its floor" prune search untaught --search bpe-data/val.bin --report bpe-data/val.bin --search-rows 1 --report-rows 1 \
  --policy window --step 8 --target 1e9 --out to-floor --quiet
json "prune compare --task: searched budgets are answered under their budgets" '
  [.results[] | select(.searched and (.tokens | unique) == [8])][0].tasks.copa == [.results[] | select(.policy == "window" and (.searched | not))][0].tasks.copa
  and ([.results[] | .tasks.copa.accuracy] | unique | length) > 1' \
  prune compare --standard untaught --standard-search to-floor --data bpe-data/val.bin --rows 1 --budgets 8 --policies window --task copa \
  --task-data many --out floor-compared
json "prune compare --per-kv-head: policies that lack it go without, others that cannot are left out" \
  '[.results[].policy] | index("window") and (index("h2o") | not)' \
  prune compare --standard talker --data bpe-data/val.bin --rows 1 --budgets 8 --per-kv-head --out heads-compared
json "eval --sweep --per-kv-head: likewise" '[.tasks[].setting] | index("window-4") and (index("h2o-4") | not)' \
  eval talker --task copa --data sets --sweep 4 --per-kv-head
refuses "prune compare: a name that no file of results could hold" 2 'is not a line of UTF-8' prune compare --standard talker --labels $'m\xe9' \
  --data bpe-data/val.bin --rows 1 --budgets 8 --policies window --out latin-compared
refuses "prune compare: two of one name" 1 'two models are called "a"' prune compare --standard talker --selective talker --labels a,a \
  --data bpe-data/val.bin --rows 1 --budgets 8 --policies window --out twins-compared
refuses "prune compare --task without a folder" 2 'needs --task-data' prune compare --standard talker --data bpe-data/val.bin \
  --task copa --out task-compared
jq '.results[1].tasks.copa.accuracy = 2' task-compared/compare.json >bad.json && mkdir -p bad-task-compared && mv bad.json bad-task-compared/compare.json
refuses "a comparison with an impossible accuracy" 1 'compare.json: result 1: "tasks"' report bad-task-compared --out bad-task.html
echo '{"context": "a", "choices": ["b"], "label": 3}' >>sets/copa.jsonl
refuses "a bad line" 1 'sets/copa.jsonl:4: field "label": expected a number from 0 to 0' eval talker --task copa --data sets
