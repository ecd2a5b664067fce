# From a text file to a trained model that generates text.

# A small language: sentences of a few words, in documents separated by blank lines.
make_text() { # DOCUMENTS SEED
  awk -v documents="$1" -v seed="$2" 'BEGIN {
    n = split("the a one every", article); m = split("cat dog sea ship wind old-man child river stone bird café", noun)
    k = split("sees finds carries loves forgets follows", verb); x = seed
    for (d = 0; d < documents; d++) {
      lines = 3 + next_int(5)
      for (l = 0; l < lines; l++)
        printf "%s %s %s %s %s. ", toupper(substr(article[1 + next_int(n)], 1, 1)) "he", noun[1 + next_int(m)],
          verb[1 + next_int(k)], article[1 + next_int(n)], noun[1 + next_int(m)]
      print "\n"
    } }
    function next_int(limit) { x = (x * 1103515 + 12345) % 2147483648; return int(x / 65536) % limit }'
}
make_text 600 1 >text.txt
make_text 40 2 >other.txt

steps=40 batch=32
[ $brief -eq 1 ] && steps=12 batch=4
half=$((steps / 2))
cat >recipe.json <<END
{
  "model": {"context": 32, "layers": 2, "width": 64, "heads": 2, "attention": {"selective": {}}},
  "data": {"kind": "tokens", "train": "data/train.bin", "val": "data/val.bin", "tokenizer": "tok.model"},
  "train": {"steps": $steps, "batch": $batch, "lr": 0.01, "warmup": 4, "eval_every": $half, "eval_batches": 2,
            "save_every": 0}
}
END

json "tokenizer train" . tokenizer train --out tok.model --vocab 300 text.txt
[ -s tok.model ] && pass "a tokenizer is written" || fail "a tokenizer is written"
printf 'The cat sees the sea.\n\nA ship: \t café ☂\n' >line.txt
json "tokenizer encode" '(.ids | length) > 3 and .count == (.ids | length)' tokenizer encode --tokenizer tok.model line.txt
cp out ids.json
run "$winnow" tokenizer encode --tokenizer tok.model line.txt
cp out ids.txt
is "ids as text and as JSON agree" "$(jq -r '.ids | map(tostring) | join(" ")' ids.json)" "$(cat ids.txt)"
for file in ids.txt ids.json; do
  run "$winnow" tokenizer decode --tokenizer tok.model $file
  if cmp -s out line.txt; then pass "decode of $file gives back the text"; else fail "decode of $file gives back the text" "$(shown)"; fi
done
json "tokenizer decode" '.text | startswith("The cat sees the sea.\n")' tokenizer decode --tokenizer tok.model ids.json
json "tokenizer of bytes" '.ids == [84, 104, 101]' tokenizer encode --tokenizer bytes <(printf The)
json "data prepare: three parts" '.test_tokens > 0' data prepare --tokenizer tok.model --document-break line \
  --val-fraction 0.1 --test-fraction 0.4 --out thirds text.txt
mean=$(jq '(.train_bytes + .val_bytes + .test_bytes) / (.train_tokens + .val_tokens + .test_tokens)' out)
run "$winnow" data prepare --tokenizer tok.model --document-break line --val-fraction 0.1 --test-fraction 0.4 --out thirds text.txt
is "bytes per token are those of all parts" "$(LC_ALL=C printf %.2f "$mean")" "$(sed -nE 's/.*\(([0-9.]+) bytes per token.*/\1/p' out)"
json "data prepare" '.train_tokens > 1000 and .val_tokens > 50' data prepare --tokenizer tok.model --out data \
  --document-break blank text.txt
if jq -e '.train_bytes > 0 or .train.bytes > 0' data/data.json >/dev/null; then pass "data.json"; else fail "data.json" "$(cat data/data.json)"; fi
[ -s data/train.bin ] && [ -s data/val.bin ] && pass "token files are written" || fail "token files are written"

json "train" ".step == $steps and .loss > 0 and .val_loss > 0 and .peak_resident_bytes > 0" \
  train --config recipe.json --out whole
for file in config.json recipe.json model.safetensors tokenizer.model log.jsonl state.json; do
  [ -s "whole/$file" ] && pass "the run has $file" || fail "the run has $file" "$(ls whole)"
done
if jq -es "length == $steps and all(.[]; .loss > 0)" whole/log.jsonl >/dev/null; then
  pass "log.jsonl has an object a step"
else
  fail "log.jsonl has an object a step" "$(head -n 3 whole/log.jsonl)"
fi
first=$(jq -s '.[0].loss' whole/log.jsonl) last=$(jq -s '.[-1].loss' whole/log.jsonl)
if awk -v a="$first" -v b="$last" 'BEGIN { exit !(b < a - 0.2) }'; then
  pass "the loss falls"
else
  fail "the loss falls" "from $first to $last"
fi
refuses "a folder that holds a run" 1 'whole' train --config recipe.json --out whole

# Interrupted half way by a signal and resumed: the same bits as an undisturbed run.
stopped_by() { # SIGNAL FOLDER: sets signal.code to the exit code
  rm -rf "$2"
  (
    # A shell's background jobs ignore SIGINT. This one must not.
    env --default-signal=INT,TERM,HUP "$winnow" train --config recipe.json --out "$2" --quiet --json >signal.out 2>signal.err &
    pid=$!
    for _ in $(seq 4000); do
      [ "$(grep -c . "$2/log.jsonl" 2>/dev/null)" -ge 2 ] 2>/dev/null && break
      sleep 0.005
    done
    kill -"$1" $pid 2>/dev/null
    wait $pid
    echo $? >signal.code
  )
  case $(cat signal.code) in
    130) pass "$1 saves and exits with 130" ;;
    0) skip "$1 saves and exits with 130" "the run was over before the signal" ;;
    *) fail "$1 saves and exits with 130" "exit code $(cat signal.code)" "$(cat signal.err)" ;;
  esac
}
stopped_by HUP closed
stopped_by INT parts
json "train --resume" ".step == $steps" train --resume --out parts
if cmp -s whole/model.safetensors parts/model.safetensors; then
  pass "resuming gives the same bits"
else
  fail "resuming gives the same bits" "$(ls -l whole parts)"
fi
json "resuming what is finished: no loss where nothing was trained" ".step == $steps and .loss == null and .tokens > 0" \
  train --resume --out parts
refuses "resuming what was never begun" 1 'nowhere' train --resume --out nowhere
refuses "resuming what was never begun by a recipe" 1 'nowhere: no checkpoint to resume from' train --resume --config recipe.json --out nowhere
refuses "adapt: resuming what was never begun" 1 'nowhere: no checkpoint to resume from' adapt --resume --out nowhere
refuses "resuming nothing, with a view" 1 'nowhere: no checkpoint' train --resume --config recipe.json --out nowhere --tensorboard events
[ -e nowhere ] || [ -e events ] && fail "nothing is made then" "$(ls -d nowhere events 2>&1)" || pass "nothing is made then"
# A folder with a model and a recipe but no training state: training from scratch would overwrite the model.
mkdir bare && cp whole/config.json whole/model.safetensors whole/tokenizer.model whole/recipe.json bare
for how in "--resume" "--resume --set train.steps=9" "--resume --config recipe.json"; do
  refuses "train $how of a model" 1 'bare: no checkpoint to resume from' train $how --out bare
done
refuses "a new run over a model" 1 'bare already holds a model' train --config recipe.json --out bare
rm bare/recipe.json
refuses "train --resume --set of a model without a recipe" 1 'bare: no checkpoint to resume from' train --resume --set train.steps=9 --out bare
is "the model is as it was" "config.json model.safetensors tokenizer.model $(cksum <whole/model.safetensors)" \
  "$(echo $(ls bare)) $(cksum <bare/model.safetensors)"
succeeds "train without a tokenizer named" train --config recipe.json --set 'data.tokenizer=""' --set train.steps=1 --out untold --quiet
cmp -s data/tokenizer.model untold/tokenizer.model && pass "the tokenizer beside the token file goes along" ||
  fail "the tokenizer beside the token file goes along" "$(ls untold)"
sed 's/, "tokenizer": "tok.model"//' recipe.json >untold.json
succeeds "resuming by a recipe that names no tokenizer" train --config untold.json --set train.steps=2 --out untold --resume --quiet
cmp -s data/tokenizer.model untold/tokenizer.model && pass "the tokenizer stays" || fail "the tokenizer stays" "$(ls untold)"
refuses "resuming another model names the key" 1 "checkpoint's model.attention.selective.relu is true, the recipe's false" train \
  --resume --out parts --set model.attention.selective.relu=false
run "$winnow" train --config recipe.json --set train.steps=2 --set train.warmup=2 --out rising --quiet
grep -q '^winnow: warning: .*train.warmup is 2 of 2 steps' err && pass "a warm-up that does not end is told" || fail "a warm-up that does not end is told" "$(cat err)"
without_effect() { # MESSAGE KEY=VALUE...
  told=$1; shift; set -- $(printf -- '--set %s ' "$@")
  rm -rf idle
  run "$winnow" train --config recipe.json --set train.steps=1 --set train.warmup=0 --set train.eval_every=0 "$@" --out idle
  grep -q "^winnow: warning: $told" err && pass "a key without effect is told: $told" || fail "a key without effect is told: $told" "$(cat err)"
}
without_effect 'model.attention.selective.mem.enabled is true and has no effect: model.attention.selective.enabled is false' \
  model.attention.selective.mem.enabled=true model.attention.selective.enabled=false
without_effect 'train.prune.draw is true and has no effect: train.prune.budgets is ""' train.prune.draw=true
without_effect 'L_mem never acts: train.mem.from_step is 9 of 1 steps' model.attention.selective.mem.enabled=true train.mem.from_step=9
without_effect 'the losses of gates never act: train.mem.from_step is 9 of 1 steps' model.attention.write.enabled=true \
  model.attention.write.loss=0.1 train.mem.from_step=9
without_effect 'nothing is evicted: at the last step train.prune.budgets, 0.5, are no less than the 16 tokens of a row' \
  train.prune.budgets=0.5 train.context=16
without_effect 'nothing is evicted: at the last step train.prune.budgets, 8, are no less than the 32 tokens of a row' \
  train.prune.budgets=8 train.prune.from_step=1 train.prune.to_step=2
run "$winnow" train --resume --out idle
grep -q 'has no effect' err && fail "a run that goes on as it was is not told again" "$(cat err)" || pass "a run that goes on as it was is not told again"
# The perplexity of this loss overflows a double: null, because JSON has no infinity.
succeeds "a hopeless model" train --config recipe.json --set model.layers=1 --set model.width=1024 --set model.heads=1 \
  --set model.ffn_width=8 --set model.init_std=10 --set train.steps=1 --set train.batch=1 --set train.lr=0 --set train.warmup=0 \
  --set train.eval_every=0 --out hopeless --quiet
json "a perplexity that is infinite" '.perplexity == null and .loss > 710' eval hopeless --max-batches 1
json "an analysis of it" '.perplexity == null' analyze attention hopeless --text other.txt --max-batches 1
rm -rf hopeless
json "set changes a key" '.step == 2' train --config recipe.json --set train.steps=2 --set model.layers=1 --out set
json "dense attention trains" '.loss > 0' train --config recipe.json --set train.steps=2 \
  --set model.attention.selective.enabled=false --out dense

# A document per sequence: tokens are counted a second time from the token file (256 int32 of header, then uint16).
documents=$(tail -c +1025 data/val.bin | od -An -v -tu2 -w2 | awk '$1 == 1 { if (n > 1) print n; n = 0; inside = 1 } inside { n++ } END { if (n > 1) print n }')
count() { awk -v least="$1" '$1 >= least { n += $1 > 32 ? 32 : $1 - 1 } END { print n + 0 }' <<<"$documents"; }
json "eval of rows of documents" ".tokens == $(count 2)" eval whole --data data/val.bin --set data.rows=document
json "eval of long documents" ".tokens == $(count 29)" eval whole --data data/val.bin --long-only
json "analyze of long documents" ".tokens == $(count 29)" analyze attention whole --data data/val.bin --long-only
json "train on rows of documents" '.step == 3 and .val_loss > 0' train --config recipe.json --set data.rows=document \
  --set train.steps=3 --set train.eval_every=3 --set train.eval_batches=100 --out by-document
json "eval of a run on rows of documents" ".tokens == $(count 2) and .unit == \"document\"" eval by-document
is "the error of a run's validation loss is that of its evaluation" true \
  "$(jq --argjson run "$(tail -n 1 by-document/log.jsonl)" '(.loss_stderr / $run.val_loss_stderr - 1 | fabs) < 1e-4' out)"

json "eval on the recipe's data" '.loss > 0 and .tokens > 0 and .bits_per_byte > 0' eval --model whole
gzip -c text.txt >text.txt.gz
json "data prepare: text compressed with gzip" ".documents == $(grep -c . text.txt)" data prepare --tokenizer bytes --document-break line \
  --val-fraction 0.2 --out gzip-data text.txt.gz
json "eval on a token file" '(.perplexity - (.loss | exp) | fabs) < 1e-6 * .perplexity' eval --model whole --data data/val.bin
json "its error over rows, and the rows" '.unit == "block" and .rows > 2 and .loss_stderr > 0 and .loss_low < .loss and .loss < .loss_high
  and (.perplexity_high - (.loss_high | exp) | fabs) < 1e-6 * .perplexity' eval --model whole --data data/val.bin --save-rows rows.csv
is "a line a row" "$(jq '"row,tokens,loss_sum,hits \(.rows + 1)"' -r out)" "$(head -n 1 rows.csv) $(wc -l <rows.csv | tr -d ' ')"
json "the same model is equal to itself" '.difference == 0 and .difference_stderr == 0 and .verdict == "equal" and .margin == 0.01' \
  eval --model whole --data data/val.bin --against rows.csv
json "a difference is paired row by row" '.difference != 0 and .difference_stderr < .loss_stderr and .difference_low < .difference
  and .verdict == (if .difference_low > 0 then "higher" elif .difference_high < 0 then "lower" else "open" end)' \
  eval --model whole --data data/val.bin --budgets 4 --policy window --against rows.csv --margin 0
json "one row has no error" '.rows == 1 and .loss_stderr == null and .loss_low == null' eval --model whole --data data/val.bin \
  --batch 1 --max-batches 1
run "$winnow" eval --model whole --data data/val.bin --against rows.csv --quiet
grep -q '^loss  .* +- ' out && grep -q 'blocks, taken as independent$' out && grep -q '^against .*: equal within 0.01 nats$' out &&
  pass "eval prints errors and what they are over" || fail "eval prints errors and what they are over" "$(shown)"
refuses "rows of other data" 1 'rows.csv: these are .* rows of other data' eval --model whole --data data/val.bin --batch 1 --max-batches 1 --against rows.csv --quiet
sed '3s/,/,x/' rows.csv >wrong.csv
refuses "rows that are none" 1 'wrong.csv: line 3: expected row 1, its tokens' eval --model whole --data data/val.bin --against wrong.csv
refuses "a file without rows" 1 'data.json: no rows of winnow eval --save-rows' eval --model whole --data data/val.bin --against data/data.json
printf '{"text": "fine"}\n{"text": "more"}\n' >lines
succeeds "JSON lines under another name are a text" data prepare --tokenizer bytes --document-break line --val-fraction 0 --out json-data lines --quiet
grep -q '^winnow: warning: lines: its first line is a JSON object with "text", and it is read as plain text' err &&
  pass "... of which there is a warning" || fail "... of which there is a warning" "$(cat err)"
succeeds "data of another tokenizer" data prepare --tokenizer bytes --document-break line --val-fraction 0.2 --out bytes-data text.txt --quiet
for command in "eval whole --data bytes-data/val.bin --max-batches 1" "analyze attention whole --data bytes-data/val.bin --max-batches 1" \
  "prune compare --selective whole --data bytes-data/val.bin --rows 1 --budgets 8 --policies window --out bytes-compared"; do
  run "$winnow" $command --quiet
  if [ $code -eq 0 ] && grep -q '^winnow: warning: bytes-data/data.json: .* 256,' err; then
    pass "tokens of another vocabulary are told: ${command%% --*}"
  else
    fail "tokens of another vocabulary are told: ${command%% --*}" "$(shown $command)"
  fi
done
json "eval on a text" '.loss > 0 and .bits_per_byte > 0' eval --model whole --text other.txt
succeeds "eval as text" eval --model whole --max-batches 1
grep -q '^perplexity' out && pass "eval prints perplexity" || fail "eval prints perplexity" "$(cat out)"

json "info of a checkpoint" '.parameters > 1000 and .config.layers == 2 and (.tensors | length) > 5 and .tokenizer == "sentencepiece" and .mechanisms[0].name == "selective" and .mechanisms[0].layers == [0, 1]' \
  info whole
succeeds "info as text" info whole
grep -q "^shape:      2 layers of width 64, 2 heads of 32, feed-forward 170 (SwiGLU), vocabulary 300$" out && pass "info tells the shape" ||
  fail "info tells the shape" "$(head -n 8 out)"

greedy=(generate --model whole --prompt "The cat" --tokens 12 --temperature 0)
run "$winnow" "${greedy[@]}"
cp out first
run "$winnow" "${greedy[@]}"
if [ $code -eq 0 ] && [ -s first ] && cmp -s first out; then
  pass "greedy generation repeats itself"
else
  fail "greedy generation repeats itself" "$(cat first)" "$(shown "${greedy[@]}")"
fi
bytes=$("$winnow" "${greedy[@]}" --json --quiet 2>err | jq .kv_bytes)
json "generate --cache half: half the cache" ".kv_bytes < $bytes and .kv_bytes * 2 >= $bytes and .cache == \"half\"" \
  "${greedy[@]}" --cache half
json "generate --cache q8_0: below half floats" ".kv_bytes * 2 < $bytes and .cache == \"q8_0\"" "${greedy[@]}" --cache q8_0
json "generate --cache q4_0: below q8_0" ".kv_bytes * 3 < $bytes and .cache == \"q4_0\"" "${greedy[@]}" --cache q4_0
json "the cache of a trained checkpoint holds floats" ".kv_bytes == $bytes and .cache == \"float\"" "${greedy[@]}"
json "half floats on the reference" ".kv_bytes < $bytes and .cache == \"half\"" "${greedy[@]}" --cache half --backend ref
json "generate --json" '.tokens > 0 and (.ids | length) == .tokens and .kv_bytes > 0' "${greedy[@]}"
is "streamed text and JSON agree" "$(cat first)" "$(jq -r .text out)"
run "$winnow" generate --model whole --prompt "The cat" --tokens 12 --seed 5
cp out first
run "$winnow" generate --model whole --prompt "The cat" --tokens 12 --seed 5
is "a seed repeats itself" "$(cat first)" "$(cat out)"
json "one token is forced by a bias" '(.ids | unique) == [97] and .tokens == 6' \
  generate --model whole --prompt "The cat" --tokens 6 --temperature 0 --logit-bias 97=1000
json "and no token comes twice under a penalty" '[.ids[]] | length == (unique | length)' \
  generate --model whole --prompt "The cat" --tokens 9 --temperature 0 --presence-penalty 10 --frequency-penalty 10
json "min-p of 1 is greedy" ".ids == $("$winnow" "${greedy[@]}" --json --quiet | jq -c .ids)" \
  generate --model whole --prompt "The cat" --tokens 12 --min-p 1 --seed 9
refuses "a bias without a number" 2 'logit-bias' generate --model whole --prompt x --logit-bias 97
refuses "a bias of a token that is not there" 2 'from 0 to' generate --model whole --prompt x --logit-bias 99999999=1
refuses "a min-p beyond 1" 2 'min-p' generate --model whole --prompt x --min-p 2
run "$winnow" "${greedy[@]}"
stop=$(head -c 6 out | tail -c 3)
json "generate --stop: nothing from there on" ".stopped == \"stop\" and (.text | length) <= 3 and .tokens <= 12" \
  "${greedy[@]}" --stop never --stop "$stop"
jq -r .text out >first
run "$winnow" "${greedy[@]}" --stop never --stop "$stop"
is "generate --stop: its streamed text and JSON agree" "$(cat first)" "$(cat out)"
json "generate --stop: a text that has none of them" '.stopped == "length" or .stopped == "end"' "${greedy[@]}" --stop never
refuses "generate --stop without a text" 1 'stop string 0 is empty' "${greedy[@]}" --stop ''
printf 'The dog' | "$winnow" generate --model whole --tokens 3 >out 2>err
is "a prompt from standard input" 0 $?
# With learned positions, text ends at the context, with a note and without an error.
json "generating past the context" '.tokens > 0' generate --model whole --prompt "The" --tokens 500 --ignore-end
refuses "a prompt longer than the context" 1 'context|positions' generate --model whole --prompt "$(head -c 2000 text.txt)"

# Budgets of the context change nothing; smaller ones take less memory; those in a file are used.
budgeted=(generate --model whole --prompt "The cat" --temperature 0 --tokens 20)
json "generate without budgets" '.kv_bytes > 0 and .policy == null' "${budgeted[@]}"
whole_text=$(jq -r .text out) whole_bytes=$(jq .kv_bytes out)
json "budgets of the context" ".kv_bytes == $whole_bytes and .policy == \"selective\" and .budget_tokens == 64" "${budgeted[@]}" --budgets 1.0
is "budgets of the context change nothing" "$whole_text" "$(jq -r .text out)"
# Every policy that the program lists.
policies=$("$winnow" eval --help | grep -oE 'selective\|[a-z0-9|]+' | head -n 1 | tr '|' ' ')
is "policies in the help" "selective h2o tova streaming window random snapkv knorm keydiff gates" "$policies"
refuses "a policy for models with gates" 1 'needs a model with write, forget or retention gates' "${greedy[@]}" --budgets 4 --policy gates
policies=${policies% gates}
for policy in $policies; do
  json "budgets with $policy" ".tokens > 0 and .kv_bytes * 3 < $whole_bytes and .policy == \"$policy\" and .budget_tokens == 10" \
    "${budgeted[@]}" --budgets 4,6 --policy $policy --policy-options snapkv.rows=4
done
json "budgets in bytes" '.kv_bytes <= 16384 and .kv_bytes > 12000' "${budgeted[@]}" --budgets 16KiB
echo '{"policy": "tova", "tokens": [3, 9]}' >whole/budgets.json
json "budgets beside a checkpoint" '.policy == "tova" and .budget_tokens == 12' "${budgeted[@]}" --budgets whole
json "another policy than the file's" '.policy == "window" and .budget_tokens == 12' "${budgeted[@]}" --budgets whole --policy window
rm whole/budgets.json
run "$winnow" "${budgeted[@]}" --budgets 4
grep -q 'cache' err && pass "the cache's bytes are told" || fail "the cache's bytes are told" "$(shown "${budgeted[@]}")"
refuses "budgets that are none" 1 'neither a number' "${greedy[@]}" --budgets many
refuses "budgets of another depth" 1 'the model has 2 layers' "${greedy[@]}" --budgets 3,4,5
refuses "a budget of nothing" 1 'at least 1' "${greedy[@]}" --budgets 0
refuses "a policy for another model" 1 'selective attention; without it: h2o' generate --model dense --prompt x --budgets 4 --policy selective
json "eval without budgets" '.budgets == null' eval --model whole
whole_loss=$(jq .loss out)
json "eval under budgets of the context" ".loss == $whole_loss and .budgets.saving == 1" eval --model whole --budgets 32
for policy in $policies; do
  json "eval under budgets with $policy" ".loss != $whole_loss and .budgets.policy == \"$policy\" and (.budgets.saving * 10 | round) == 64" \
    eval --model whole --budgets 4,6 --policy $policy
done
for n in 1 4; do
  echo "{\"policy\": \"streaming\", \"tokens\": [8, 8], \"sinks\": $n}" >sinks-$n.json
  run "$winnow" eval --model whole --budgets sinks-$n.json --max-batches 1 --json
  jq .loss out >sinks-$n
done
run "$winnow" eval --model whole --budgets sinks-1.json --sinks 4 --max-batches 1 --json
is "an option at its default is before a file's" "$(cat sinks-4)" "$(jq .loss out)"
[ "$(cat sinks-1)" != "$(cat sinks-4)" ] && pass "... and makes a difference" || fail "... and makes a difference"
succeeds "eval under budgets as text" eval --model whole --budgets 8 --max-batches 1
grep -q '^memory saving  4.00' out && pass "eval prints the saving" || fail "eval prints the saving" "$(cat out)"
refuses "eval under budgets of another depth" 1 'the model has 2 layers' eval --model whole --budgets 3,4,5
refuses "eval with positions in the cache" 1 'rotary|session' eval --model whole --budgets 9 --policy streaming --cache-positions

# Training under budgets: continues from a checkpoint's parameters with its recipe. The budgets are stored with the
# result.
succeeds "train from a checkpoint of other heads" train --init whole --out other-heads --set model.heads=4 --set model.kv_heads=4 --set model.head_size=16 \
  --set model.norm_eps=0.01 --set train.steps=1 --quiet
if grep -qE 'warning: whole was trained otherwise than the recipe has it: model.heads 4, not 2, model.norm_eps 0.01, not 1e-0?6$' err; then
  pass "what its parameters were trained with is told"
else
  fail "what its parameters were trained with is told" "$(cat err)"
fi
json "train from a checkpoint under budgets" '.step == 3' train --init whole --out pruned --set train.steps=3 \
  --set train.prune.budgets=8 --set train.prune.to_step=2
is "the budgets beside it" '[8,8]' "$(jq -c .tokens pruned/budgets.json)"
json "eval under the budgets beside it" '.budgets.tokens == [8, 8]' eval --model pruned --budgets pruned
json "train to the end under budgets" '.step == 4' train --resume --out pruned --set train.steps=4
refuses "a new run and an old one" 2 '\-\-init' train --init whole --resume --out pruned
refuses "a checkpoint of another shape" 1 'another shape' train --init whole --out other --set model.width=96 --set train.steps=1
refuses "budgets of another depth in training" 1 'the model has 2 layers' train --config recipe.json --out other2 \
  --set train.prune.budgets=4,5,6

json "bench decode under budgets" '.results[1].allocations == 0 and .results[1].kv_bytes == .results[0].kv_bytes' \
  bench decode --model whole --contexts 8,16 --repeats 2 --warmup 1 --budgets 4

json "bench op" '.forward.median > 0 and .backward.median > 0 and .commit and .threads' bench op attention --repeats 2 --warmup 0 --T 64
json "bench op on memory that is not the host's" '.forward.median > 0 and .backward.median > 0 and .backend == "guard"' \
  bench op attention --backend guard --repeats 2 --warmup 1 --T 40 --H 2 --Hkv 1 --D 8 --attention '{"selective": {"mem": {}}}'
json "bench train" '.tokens_per_second > 0 and .allocations_in_last_step == 0' bench train --config recipe.json \
  --set model.vocab_size=300 --repeats 2
json "bench decode" '.results | length == 2' bench decode whole --contexts 4,8 --repeats 2 --warmup 1
for task in variable_assignment copy parity; do
  json "train on $task" '.loss > 0' train --out task-$task --set data.kind=$task --set data.values=8 --set data.assignments=6 \
    --set data.max_length=8 --set model.attention.selective.enabled=true --set model.layers=1 --set model.width=16 --set model.heads=2 --set train.steps=2 \
    --set train.batch=2 --set train.eval_every=2 --set train.eval_batches=1
  json "analyze task $task" '.any.spent.tokens > 0 and (.layers | length) > 0 and .any.spent.selected >= (.layers | map(.spent.selected) | max)' \
    analyze task task-$task --sequences 3
  json "eval on $task" '.accuracy >= 0 and .accuracy <= 1' eval --model task-$task --max-batches 1
done

# Spans of a model with recurrence (`memory`), and of one whose tokens set their spans.
span=(--config recipe.json --set model.attention.selective.enabled=false --set model.position=rope --set data.stream=true
      --set model.memory=200 --set model.attention.span.enabled=true --set model.attention.span.limit=200
      --set model.attention.span.init=0.1 --set train.steps=3 --set train.batch=2 --quiet)
succeeds "train with spans" train "${span[@]}" --out spans
if jq -es 'all(.[]; .span > 0 and .memory_bytes > 0)' spans/log.jsonl >/dev/null; then
  pass "log.jsonl has the span and the memory"
else
  fail "log.jsonl has the span and the memory" "$(head -n 1 spans/log.jsonl)"
fi
json "analyze spans" '(.layers | length) == 2 and (.layers[0].heads | length) == 2 and .span > 10 and .span < 30 and .operations_per_token.total < .operations_per_token.total_full and .layers[0].memory_tokens == 64' \
  analyze spans spans
mean=$(jq '.span * 1000 | round' out)
json "analyze meaningful" '(.fits | length) == 9 and (.lengths | length) > 3 and .lengths[0].shares[0].mean <= 1 and (.lengths[-1].shares[0].layers[0].heads | length) > 0' \
  analyze meaningful whole --text other.txt --taus 0.5,0.9,1 --svg needed.svg --svg-fits fits.svg --csv needed.csv
grep -q '</svg>' needed.svg && grep -q '</svg>' fits.svg && pass "analyze meaningful draws" || fail "analyze meaningful draws" "$(ls)"
is "analyze meaningful: CSV" "length,rows,context,content,tau,layer,head,mean,p10,p50,p90" "$(head -n 1 needed.csv)"
json "analyze sweep" '(.taus | length) == 3 and .taus[2].loss == .full.loss and .baseline.loss > 0' \
  analyze sweep whole --text other.txt --taus 0.3,0.6,1
json "analyze attention" '.by_layer[0].heads[0].self_weight > 0 and .by_layer[0].entropy_bits > 0' analyze attention whole --text other.txt
# A pipe or device as output receives the text and is not replaced by a file.
mkfifo pipe.json
timeout 130 cat pipe.json >piped.json & # ends if nobody opens the pipe for writing
succeeds "analyze into a pipe" analyze attention whole --text other.txt --quiet --out pipe.json
wait $!
if [ -p pipe.json ] && jq -e '.by_layer' piped.json >/dev/null; then pass "the pipe is still one"; else fail "the pipe is still one" "$(ls -l pipe.json piped.json)"; fi
rm -f pipe.json
json "analyze survival" '([.policies[] | select(.policy == "h2o")][0].overlap.h2o) == 1' analyze survival whole --text other.txt --budgets 8
json "analyze survival --per-kv-head: what goes with it" '[.policies[].policy] | (index("window") and index("streaming")) and (index("h2o") | not)' \
  analyze survival whole --text other.txt --budgets 8 --per-kv-head
grep -q 'h2o is left out: .*selective.per_kv_head' err && pass "and what does not is told" || fail "and what does not is told" "$(cat err)"
refuses "analyze survival --per-kv-head: a policy that was asked for" 1 'selective.per_kv_head' \
  analyze survival whole --text other.txt --budgets 8 --per-kv-head --policies h2o
json "analyze attention --batch: as many as asked for" ".tokens == 12 * $(jq .model.context whole/recipe.json)" \
  analyze attention whole --data data/train.bin --batch 12 --max-batches 1
printf '{"document": "the old man", "reference": "a man"}\n\n{"document": "the sea", "id": 7}\n' >docs.jsonl
succeeds "generate for each line of a file" generate whole --jsonl docs.jsonl --out pred.jsonl --prompt "of {document}:" --tokens 4 --temperature 0
is "the predictions" "2 2 7" "$(jq -s '"\(length) \([.[] | select(.prediction | type == "string")] | length) \(.[1].id)"' -r pred.jsonl)"
# Counts of the tokens that a threshold keeps, a line for each generated token. Instructions are control tokens, however
# they are marked.
printf '{"document": "A cat."}\n{"document": "The sea."}\n' >counted.jsonl
counting=(generate whole --jsonl counted.jsonl --prompt '{document} Ha: the one.' --temperature 0 --tokens 4 --ignore-end
  --attention threshold.tau=0.75 --quiet --out counted.out)
succeeds "generate --counts" "${counting[@]}" --control-outside --counts outside.csv --counts-by head
is "its columns" document,index,id,context,content,kept,layer_0_head_0,layer_0_head_1,layer_1_head_0,layer_1_head_1 "$(head -n 1 outside.csv)"
is "the mean is that of its heads" 0 "$(awk -F, 'NR > 1 && ($7 + $8 + $9 + $10) / 4 != $6' outside.csv | wc -l)"
is "a row for each token" "1,0 1,1 1,2 1,3 2,0 2,1 2,2 2,3 " "$(awk -F, 'NR > 1 { printf "%s,%s ", $1, $2 }' outside.csv)"
succeeds "control tokens by span" "${counting[@]}" --control-span 10:14 --control-span 14:23 --counts named.csv
content_of() { awk -F, 'NR > 1 { print $5 }' "$1" | xargs; }
drawn_after() { for n in $1; do echo $((n + $2)) $((n + $2 + 1)) $((n + $2 + 2)) $((n + $2 + 3)); done | xargs; }
documents=$(for text in "A cat." "The sea."; do "$winnow" tokenizer encode --tokenizer tok.model --json <(printf %s "$text") | jq '.ids | length'; done)
is "content is the document and what was drawn" "$(drawn_after "$documents" 0)" "$(content_of named.csv)"
# The space that the tokenizer puts before a text belongs to no part of it, so it counts as outside {document}.
is "content without all that is outside" "$(drawn_after "$documents" -1)" "$(content_of outside.csv)"
succeeds "control tokens by text" "${counting[@]}" --control-text ' Ha:' --control-text ' the one.' --counts texts.csv
is "are the same" "$(cat texts.csv)" "$(cat named.csv)"
succeeds "without them" "${counting[@]}" --counts plain.csv
[ "$(cat plain.csv)" != "$(cat named.csv)" ] && pass "the counts differ" || fail "the counts differ" "$(cat plain.csv)"
json "analyze fits" '.rows == 8 and (.fits | length) == 3 and .best == (.fits | min_by(.aic) | .curve)' analyze fits outside.csv
json "analyze fits of a column" '.rows == 8' analyze fits outside.csv --y layer_1_head_0
json "analyze selection" '.sequences == 3 and (.layers | length) == 2 and .layers[0].F[0][0] == 0' \
  analyze selection whole --data data/val.bin --sequences 3
json "analyze selection of a run and itself" '.against.same_layer > 0.999 and .against.same_layer_difference == 0' \
  analyze selection whole --data data/val.bin --sequences 3 --against whole
mean_F() { run "$winnow" analyze selection whole --json "$@" && jq -c '[.layers[].mean_F * 1e4 | round]' out; }
is "its means do not depend on the cells" "$(mean_F --data data/val.bin --sequences 3)" \
  "$(mean_F --data data/val.bin --sequences 3 --cell 9)"
head -c 20 other.txt >short.txt
succeeds "a text shorter than the context" data prepare --tokenizer tok.model --val-fraction 0 --out short short.txt
inputs=$((($(stat -c %s short/train.bin) - 1024) / 2 - 1)) # 16-bit tokens after a header
is "its means are over the tokens that are there" "$(mean_F --data short/train.bin --context $inputs)" "$(mean_F --data short/train.bin)"
json "no sequence has a last row" '.layers[0].masked_last_row == null' analyze selection whole --data short/train.bin

# With a threshold, analyses always keep the same control tokens as an evaluation.
cp -r whole thresholded
jq '.attention.threshold = {enabled: true, tau: 0.6}' whole/config.json >thresholded/config.json
perplexity() { run "$winnow" "$@" --json && jq -r "${filter:-.perplexity} * 1e6 | round" out; }
marks=$("$winnow" tokenizer encode --tokenizer tok.model --json other.txt | jq -r '.ids[1:7] | unique | map(tostring) | join(",")')
kept=$(perplexity eval thresholded --text other.txt --control $marks)
[ "$kept" != "$(perplexity eval thresholded --text other.txt --control none)" ] && pass "control tokens matter" ||
  fail "control tokens matter" "$kept"
for what in attention meaningful; do
  is "analyze $what keeps control tokens" "$kept" \
    "$(perplexity analyze $what thresholded --text other.txt --control $marks)"
done
is "analyze survival keeps the tokenizer's" "$(perplexity eval thresholded --text other.txt --budgets 9 --policy window)" \
  "$(filter='.policies[0].perplexity' perplexity analyze survival thresholded --text other.txt --budgets 9 --policies window)"
refuses "a control token beyond the vocabulary" 1 'control 99999: .*outside the vocabulary' \
  analyze attention thresholded --text other.txt --control 99999

# Options take precedence over a budgets.json, which takes precedence over the defaults.
printf '{"tokens": [6, 6], "policy": "streaming", "sinks": 3}' >said.json
printf '{"tokens": [6, 6], "policy": "streaming"}' >unsaid.json
streaming=(eval whole --text other.txt --budgets)
one=$(perplexity "${streaming[@]}" 6 --policy streaming --sinks 1)
is "--sinks goes before those of a file" "$one" "$(perplexity "${streaming[@]}" said.json --sinks 1)"
is "--policy-options too" "$one" "$(perplexity "${streaming[@]}" said.json --policy-options sinks=1)"
is "--sinks where the file has none" "$one" "$(perplexity "${streaming[@]}" unsaid.json --sinks 1)"
is "in analyze survival too" "$one" \
  "$(filter='.policies[0].perplexity' perplexity analyze survival whole --text other.txt --budgets said.json --policies streaming --sinks 1)"
is "the file's where no option says them" "$(perplexity "${streaming[@]}" 6 --policy streaming --sinks 3)" \
  "$(perplexity "${streaming[@]}" said.json)"

json "eval under a threshold" '.loss > 0' eval whole --text other.txt --attention threshold.tau=0.5
succeeds "analyze spans as text" analyze spans spans --csv spans.csv --out spans.json
grep -q '^average span' out && pass "analyze spans prints the average" || fail "analyze spans prints the average" "$(cat out)"
is "analyze spans: a line a head in CSV" "5 layer,head,span,keys" "$(wc -l <spans.csv | tr -d ' ') $(head -n 1 spans.csv)"
is "analyze spans: JSON in a file" 2 "$(jq '.layers | length' spans.json)"
json "eval with a memory" '.memory_bytes > 0 and .span > 10' eval --model spans --max-batches 2
small=$(jq .memory_bytes out)
is "the spans of an evaluation and of the report" "$mean" "$(jq '.span * 1000 | round' out)"
json "eval with the whole memory" ".memory_bytes > $small" eval --model spans --max-batches 2 --whole-memory
succeeds "train with dynamic spans" train "${span[@]}" --set model.attention.span.dynamic=true --out dynamic
json "analyze dynamic spans" '.dynamic and .tokens > 0 and (.layers[0].heads[0].quantiles | length) == 5' analyze spans dynamic \
  --text other.txt --max-batches 2
json "analyze dynamic spans of a token file" '.tokens == 64' analyze spans dynamic --data data/val.bin --batch 2 --max-batches 1

# Budget search, and the comparison of policies.
pruning=(whole --search data/val.bin --report data/train.bin --search-rows 4 --report-rows 4)
json "prune search" '(.tokens | length) == 2 and .verified and .saving > 1 and .search_perplexity <= .target_perplexity' \
  prune search "${pruning[@]}" --tolerance 50% --out pruned
is "its errors" true "$(jq '.report_rows == 4 and .unit == "block" and .search_loss_stderr > 0 and .report_loss_low < .report_loss and
  (.report_change | type) == "number" and .report_saving >= 1 and .report_saving_low <= .report_saving_high and .report_saving_open <= 1' out)"
is "the losses of the report rows" true "$(jq '(.report_row_tokens | add) as $n | [.points[] | ((.report_row_loss | add) / $n - .report_loss) |
  fabs < 1e-9] | all' pruned/search.json)"
for file in search.json curve.csv curve.svg budgets.json; do
  [ -s "pruned/$file" ] && pass "the search leaves $file" || fail "the search leaves $file" "$(ls pruned)"
done
is "the search's budgets and budgets.json" "$(jq -c .tokens out)" "$(jq -c .tokens pruned/budgets.json)"
json "prune search without reuse" . prune search "${pruning[@]}" --tolerance 50% --plain --out plain
if cmp -s <(jq '[.points[] | del(.seconds)]' pruned/search.json) <(jq '[.points[] | del(.seconds)]' plain/search.json); then
  pass "with reuse and without: the same steps and losses"
else
  fail "with reuse and without: the same steps and losses" "$(jq -c '.points[]' pruned/search.json plain/search.json)"
fi
json "prune search for two steps" '.end == "steps" and .steps == 2' prune search "${pruning[@]}" --tolerance 50% --max-steps 2 --out part
refuses "prune search: nothing to resume" 1 'nothing: no search to resume' prune search "${pruning[@]}" --tolerance 50% --resume --out nothing
json "prune search resumed" . prune search "${pruning[@]}" --tolerance 50% --resume --out part
if cmp -s <(jq '[.points[] | del(.seconds)]' pruned/search.json) <(jq '[.points[] | del(.seconds)]' part/search.json); then
  pass "resumed: the same steps and losses"
else
  fail "resumed: the same steps and losses" "$(jq -c '.points[]' pruned/search.json part/search.json)"
fi
cp pruned/search.json before.json
refuses "prune search: past a stricter target" 1 'past this target' prune search "${pruning[@]}" --target 1.0001 --resume --out pruned
cmp -s before.json pruned/search.json && pass "and the search stays" || fail "and the search stays" "$(diff before.json pruned/search.json)"
run "$winnow" prune search "${pruning[@]}" --target 1.0001 --out unreached --quiet
grep -q 'below the perplexity without budgets' out && pass "a target that no budget meets is told" || fail "a target that no budget meets is told" "$(shown)"
json "prune search for a compression" '.saving == 2 and .end == "floor"' prune search "${pruning[@]}" --target 1e9 \
  --policy knorm --when prompt --read 16 --step 8 --out compressed
succeeds "text under what it found" generate whole --prompt "One two three four five six" --tokens 4 --budgets compressed/budgets.json
json "prune search, lazy and checked" '.differing_steps >= 0' prune search "${pruning[@]}" --target 1e9 --lazy --check --out lazy
json "prune search, a race that is checked" '.race == 0.5 and .rows_read > 0 and .rows_read_part > 0 and .decided_early >= 0
  and .differing_steps >= 0' prune search "${pruning[@]}" --target 1e9 --batch 1 --race 0.5 --check --out race
run "$winnow" prune search "${pruning[@]}" --target 1e9 --batch 1 --race 0.5 --out raced --quiet
grep -q '^race  .* steps decided by a part of the rows' out && pass "and told as text" || fail "and told as text" "$(shown)"
tuning=(whole --search data/val.bin --report data/val.bin --search-rows 1 --report-rows 1 --step 16 --target 1e9 --finetune-steps 1 --finetune-after 2)
json "prune search with fine-tuning" '.steps == 2 and .tuned_steps == 4 and .tuned == "tuning/tuned" and .verified' \
  prune search "${tuning[@]}" --out tuning
is "the tuned checkpoint's budgets" "$(jq -c .tokens tuning/budgets.json)" "$(jq -c .tokens tuning/tuned/budgets.json)"
head -1 tuning/curve.csv | grep -q ',tuned,untuned_search_perplexity' && pass "the curve before and after" || fail "the curve before and after" "$(head -1 tuning/curve.csv)"
json "prune search with fine-tuning, in part" '.steps == 1 and .tuned_steps == 1' prune search "${tuning[@]}" --max-steps 1 --out tuning2
json "prune search with fine-tuning, resumed" '.tuned_steps == 4' prune search "${tuning[@]}" --resume --out tuning2
cmp -s tuning/tuned/model.safetensors tuning2/tuned/model.safetensors && pass "resumed: the same parameters" || fail "resumed: the same parameters" "they differ"
json "eval of the tuned checkpoint" '.budgets.tokens == [16, 16]' eval tuning/tuned --budgets tuning/tuned --data data/val.bin
run "$winnow" prune search "${pruning[@]}" --target-checkpoint whole --out own --quiet
[ $code -eq 0 ] && grep -q '^budgets ' out && pass "prune search as text" || fail "prune search as text" "$(shown)"
json "prune compare" '(.results | length) == 1 + 3 * 2 + 2' prune compare --selective whole --selective-search lazy \
  --data data/val.bin --rows 4 --budgets 8,16 --policies selective,window,random --labels "my model" --out compared
is "prune compare: errors, differences and savings" true "$(jq '.margin == 0.01 and .unit == "block" and .rows == 4 and (.results[0] |
  .difference == 0 and .verdict == "equal" and .loss_stderr > 0) and (.results[1] | .change == .difference and .change_low <= .change) and
  (.savings | length) == 4 and (.savings[0] | .saving_low <= .saving_high)' compared/compare.json)"
is "prune compare: a name of one's own" "my model" "$(jq -r '.results[0].model' compared/compare.json)"
is "prune compare: a line a result in CSV" 10 "$(wc -l <compared/compare.csv | tr -d ' ')"
run "$winnow" prune compare --selective whole --selective-search pruned --data data/val.bin --rows 4 --budgets 12,16,20,24,28 --policies window --out columns --quiet
step=$(jq '.step / (.budgets.tokens | length)' pruned/search.json)
is "prune compare: a column has the searched point that is nearest" \
  "$(awk -F, -v step="$step" '$3 == 1 { at[$4] = $9 } END { for (w = 12; w <= 28; w += 4) { best = "-"; near = step; for (t in at) {
    d = t + 0 > w ? t - w : w - t; if (d <= near) { near = d; best = sprintf("%.3f", at[t]) } } printf "%s ", best } }' columns/compare.csv)" \
  "$(awk '/^$/ { exit } /, searched/ { for (i = NF - 4; i <= NF; i++) printf "%s ", $i }' out)"
grep -q '</svg>' compared/compare.svg && pass "prune compare draws" || fail "prune compare draws" "$(ls compared)"
