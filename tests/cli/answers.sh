# Written answers with end_to_end.sh's trained model.
cat >answers.jsonl <<'LINES'
{"task": "one", "context": "He took the key and", "question": " opened", "answer_prefix": " the", "references": ["e", "no such words"], "scorer": "all", "max_tokens": 6}
{"task": "one", "context": "He took the key and", "question": " closed", "references": ["e"], "scorer": "f1", "max_tokens": 6, "stop": ["no such words"]}
{"task": "two", "question": "She was late, so", "references": ["e"], "scorer": "any", "length": 3}
LINES
json "eval --answers" '(.tasks | map(.task)) == ["one", "two"] and (.tasks | map(.samples)) == [2, 1] and .contexts_read == 1 and
  .all.samples == 3 and .all.score >= 0 and .all.score_stderr >= 0 and .tasks[1].score_stderr == null and .tasks[1].context_kept == null and
  .tasks[0].kept > .tasks[0].prompt_tokens and .all.cache_peak_bytes >= .all.cache_final_bytes and .all.first_seconds > 0' \
  eval talker --answers answers.jsonl --max-tokens 3 --save answers.save
is "a line for each answer" "4" "$(wc -l <answers.save)"
for i in 1 2 3; do
  run "$winnow" generate talker --prompt "$(sed -n "$i"p answers.jsonl | jq -j '.context + .question + .answer_prefix')" --temperature 0 \
    --tokens "$(sed -n "$i"p answers.jsonl | jq '.max_tokens // 3')" --json
  is "answer $i is what generate writes" "$(jq -c '[(.text | sub("\ufffd+$"; "")), .tokens]' out)" "$(sed -n "$((i + 1))"p answers.save | jq -c '[(.answer | sub("\ufffd+$"; "")), .answer_tokens]')"
done
sed -i '$d' answers.save
printf '{"sample":2,' >>answers.save
json "eval --answers goes on from --save" '.resumed == 2 and .contexts_read == 0 and .all.samples == 3' \
  eval talker --answers answers.jsonl --max-tokens 3 --save answers.save
refuses "answers of other budgets" 1 'answers.save: the log of another evaluation' eval talker --answers answers.jsonl --max-tokens 3 \
  --save answers.save --budgets 4 --policy window
json "under budgets a layer keeps so many tokens" '.all.kept == 4 and .tasks[0].context_kept == 4' eval talker --answers answers.jsonl \
  --budgets 4 --policy window
json "eval --answers --limit is by task" '.tasks | map(.samples) == [1, 1]' eval talker --answers answers.jsonl --limit 1
json "eval --answers --chat" '.all.samples == 3 and .all.prompt_tokens > 10' eval talker --answers answers.jsonl --chat --template chatml --system Be.
succeeds "eval --answers as a table" eval talker --answers answers.jsonl --stop e
is "a line for each task and for all" "one two all" "$(awk 'NR > 2 { print $1 }' out | xargs)"
echo 5 6 7 8 9 10 11 12 13 14 15 16 >ids
succeeds "a model with rotary positions" train --config recipe.json --set train.steps=1 --set model.attention.selective.enabled=false \
  --set model.position=rope --out turned --quiet
json "analyze kept: a method that asks in words" '.tokens == 12 and ([.kept[][] | length] | add) == 6 * ([.kept[] | length] | add) and .peak_bytes > .bytes' \
  analyze kept turned --ids ids --policy kvzip --ratio 0.5 --when prompt --cache float
json "a method that asks in words: budgets that hold the context" '[.kept[][] | length] | unique == [12]' \
  analyze kept turned --ids ids --policy kvzip --budgets 40 --when hold --cache float
json "a method that asks in words: a layer that holds the context" '[.kept[] | map(length) | add] | .[1] == 12 * (.[0] / 4)' \
  analyze kept turned --ids ids --policy kvzip --budgets 4,40 --when hold --cache float
refuses "answers beside a text" 2 'goes with none of --data, --text' eval talker --answers answers.jsonl --text answers.jsonl
refuses "answers beside a context's length" 2 '\-\-context' eval talker --answers answers.jsonl --context 8
refuses "a template without --chat" 2 'need --chat' eval talker --answers answers.jsonl --template chatml
refuses "--save without answers" 2 'save: for --answers only' eval talker --data train.bin --save x
refuses "answers into no folder" 2 'nowhere' eval talker --answers answers.jsonl --save nowhere/x
echo '{"question": "x", "references": ["y"], "scorer": "number"}' >wrong.jsonl
refuses "a reference without a number" 1 'wrong.jsonl:1: field "references": expected a number in each text' eval talker --answers wrong.jsonl
echo '{"question": "x", "references": ["y"], "scorer": "all", "depth": 1.5}' >wrong.jsonl
refuses "a depth beyond a context" 1 'wrong.jsonl:1: field "depth": expected a number from 0 to 1' eval talker --answers wrong.jsonl
echo '{"question": "x", "references": ["y"], "scorer": "bleu"}' >>answers.jsonl
refuses "a scorer that there is not" 1 'answers.jsonl:4: field "scorer": expected all, any, exact, f1, rouge-l or number, found "bleu"' \
  eval talker --answers answers.jsonl
if command -v python3 >/dev/null; then
  ruler=(python3 "$root/tools/make-ruler" bytes --winnow "$winnow" --length 2048 --samples 2)
  run "${ruler[@]}" --tasks niah_multikey_3,fwe --out ruler.jsonl
  is "make-ruler: lines whose answers stand in their contexts" "0 true" "$code $(jq -s 'length == 4 and all(.[]; . as $l |
    all($l.references[]; . as $r | $l.context | contains($r)) and (.context + .question + .answer_prefix | length) <= 2048)' ruler.jsonl)"
  run "${ruler[@]}" --tasks fwe
  is "make-ruler: the same seed, the same samples" "$(tail -n 2 ruler.jsonl)" "$(cat out)"
  run "${ruler[@]}" --tasks fwe --seed 3
  is "make-ruler: another seed, others" "2 0" "$(wc -l <out) $(grep -cFf out ruler.jsonl)"
  jq -n '{data: [range(12) | {paragraphs: [{context: "The owl number \(.) sleeps in tree \(. * 7).", qas: [{question: "Where is owl \(.)?",
    answers: [{text: "tree \(. * 7)"}], is_impossible: false}]}]}]}' >squad.json
  run "${ruler[@]}" --tasks qa_1 --squad squad.json
  is "make-ruler: questions about a set's documents" "0 true" "$code $(jq -s 'length == 2 and all(.[]; . as $l | .scorer == "any" and
    ($l.context | contains($l.references[0])))' out)"
  run "${ruler[@]}" --tasks qa_1 --squad answers.save
  is "make-ruler: a file that is no set" "1 1" "$code $(grep -c '^make-ruler: answers.save' err)"
  mkdir -p toy/wonderwords/assets # two words for needles
  : >toy/wonderwords/__init__.py
  echo old >toy/wonderwords/assets/adjectivelist.txt
  echo fox >toy/wonderwords/assets/nounlist.txt
  PYTHONPATH=$PWD/toy run "${ruler[@]}" --tasks niah_single_1,niah_single_2 --haystack text.txt --samples 8 --depths 4 --out depths.jsonl
  is "make-ruler: needles at four depths in turn" "0 [0.125,0.375,0.625,0.875] true" "$code $(jq -s -c 'map(.depth) | unique' depths.jsonl) $(jq -s '
    length == 16 and all(.[]; ((.context | index("One of the special")) / (.context | length) - .depth | fabs) < 0.11)' depths.jsonl)"
  sed -i '1!d' depths.jsonl
  succeeds "eval --answers of a needle at a depth" eval talker --answers depths.jsonl --max-tokens 2 --save depths.save
  is "its depth is saved" 0.125 "$(jq 'select(.sample == 0).depth' depths.save)"
  run "${ruler[@]}" --tasks fwe --depths 4
  is "make-ruler: depths of a task without a needle" "1 make-ruler: fwe has no needle alone: --depths is for niah_single_1 to 3" "$code $(cat err)"
  run python3 "$root/tools/make-swaps" --steps 5 --samples 4
  cp out swaps.jsonl
  is "make-swaps: chains that end with the answer" "0 true" "$code $(jq -s 'length == 4 and all(.[]; . as $l | ([$l.question |
    scan("swaps card ([0-9]+) for card ([0-9]+)")]) as $s | ($s | length) == 5 and all(range(4); $s[. + 1][0] == $s[.][1]) and
    $s[4][1] == $l.references[0] and ($l.context | [scan("The answer is ([0-9]+)")] | flatten | index($l.references[0])) == null)' swaps.jsonl)"
  run python3 "$root/tools/make-swaps" --steps 5 --samples 4 --seed 43
  is "make-swaps: another seed, others" "0 0" "$code $(grep -cFf out swaps.jsonl)"
  run python3 "$root/tools/make-swaps" --steps 40
  is "make-swaps: too many steps" "1 make-swaps: there are 48 places: expected at most so many steps in the shots and the question together" "$code $(cat err)"
  json "eval --answers of a chain" '.all.samples == 1' eval talker --answers swaps.jsonl --limit 1 --max-tokens 4
  run "${ruler[@]}" --tasks vt
  is "make-ruler: an example that does not fit" "1 make-ruler: vt: its example does not fit into 500 tokens" "$code $(cat err)"
  run "${ruler[@]}" --tasks vx
  is "make-ruler: an unknown task" "1 1" "$code $(grep -c 'there is no task vx; there are niah_single_1' err)"
fi
