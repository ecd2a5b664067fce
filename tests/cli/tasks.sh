# Downstream tasks by the trained model of end_to_end.sh.
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
echo '{"context": "a", "choices": ["b"], "label": 3}' >>sets/copa.jsonl
refuses "a bad line" 1 'sets/copa.jsonl:4: field "label": expected a number from 0 to 0' eval talker --task copa --data sets
