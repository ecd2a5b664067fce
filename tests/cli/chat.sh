# Foreign tokenizers, and conversations.
golden=$root/tests/golden/bpe
printf 'the water came 12 times<|im_end|>' >said.txt
json "encode by a tokenizer.json" '.count > 5 and ([.ids[] | select(. < 3)] | length) == 0' \
  tokenizer encode --tokenizer "$golden/smollm.json" said.txt
jq -c .ids out >ids
json "encode by a GGUF file" '.count > 5' tokenizer encode --tokenizer "$golden/smollm.gguf" said.txt
is "both give the same tokens" "$(cat ids)" "$(jq -c .ids out)"
json "encode with special tokens read" '.ids[-1] == 2' tokenizer encode --special --tokenizer "$golden/smollm.gguf" said.txt
cp out ids.json
run "$winnow" tokenizer decode --tokenizer "$golden/smollm.gguf" ids.json
is "decode leaves special tokens out" "the water came 12 times" "$(cat out)"
head -c 3000 "$golden/smollm.gguf" >cut.gguf
refuses "a GGUF file that was cut" 1 'cut.gguf' tokenizer encode --tokenizer cut.gguf said.txt
head -c 3000 "$golden/smollm.json" >cut.json
refuses "a tokenizer.json that was cut" 1 'cut.json' tokenizer encode --tokenizer cut.json said.txt
succeeds "data by a GGUF file's tokenizer" data prepare --tokenizer "$golden/llama3.gguf" --document-break line --val-fraction 0.2 \
  --seed 3 --out bpe-data text.txt --quiet
succeeds "a model over it" train --config recipe.json --set data.tokenizer=bpe-data --set data.train=bpe-data/train.bin \
  --set data.val=bpe-data/val.bin --set model.position=rope --set train.steps=3 --out talker --quiet
json "info of it" '.tokenizer == "bpe"' info talker
json "generate by it" '.tokens >= 0 and .prompt_ids[0] == 1' generate --model talker --prompt "the" --tokens 4

say() { # MESSAGES ARGUMENTS...: a chat through a pipe; sets out, err, code
  printf "$1" >messages
  shift
  timeout -k 5 120 "$winnow" chat talker --temperature 0 "$@" >out 2>err <messages
  code=$?
}
say 'hello\\\nthere\n\nand you?\n' --template chatml --tokens 5 --context 300 --json
if [ $code -eq 0 ] && jq -e '(.turns | length) == 2 and .turns[0].user == "hello\nthere" and .template == "chatml" and
    (.turns | map(.tokens) | add) == .tokens and .prompt_tokens > 20' out >/dev/null; then
  pass "chat: two messages from a pipe"
else
  fail "chat: two messages from a pipe" "$(cat out err)"
fi
jq -r '.turns[0].answer' out >first
say 'hello\\\nthere\n/reset\nhello\\\nthere\n' --template chatml --tokens 5 --context 300 --json
is "chat: /reset forgets what was said" "$(cat first)" "$(jq -r '.turns[1].answer' out)"
# With the cache a turn gives the same answer as a whole conversation that is read again (budgets of the context).
say 'hi\nbye\n' --template chatml --tokens 4 --context 300 --json --budgets 300 --policy window
whole=$(jq -c '[.turns[].answer]' out)
say 'hi\nbye\n' --template chatml --tokens 4 --context 300 --json
is "chat: budgets of the context change nothing" "$(jq -c '[.turns[].answer]' out)" "$whole"
stop=$(jq -r '.[0][0:1]' <<<"$whole")
say 'hi\n' --template chatml --tokens 4 --context 300 --json --stop "$stop"
is "chat --stop ends an answer" "stop:" "$(jq -r '.turns[0] | .stopped + ":" + .answer' out)"
# What a stop string cuts off is not part of the conversation, even if it spans several tokens: the saved tokens are
# those of the saved text.
for from in 1 2; do
  say 'hi\n/save stopped.json\nbye\n' --template chatml --tokens 8 --context 300 --json --stop "$(jq -r ".[0][$from:$from+2]" <<<"$whole")"
  jq -c '{ids: .messages[1].ids}' stopped.json >ids.json
  "$winnow" tokenizer decode --tokenizer talker ids.json >decoded
  is "chat --stop at $from: the tokens of the answer" "$(jq -r '.turns[0].answer' out)" "$(cat decoded)"
  jq -c '.turns[1].answer' out >second
  say '/load stopped.json\nbye\n' --template chatml --tokens 8 --context 300 --json
  is "chat --stop at $from: the next turn is that of the saved conversation" "$(cat second)" "$(jq -c '.turns[0].answer' out)"
done
say 'hi\n' --template chatml --tokens 4 --context 8
if [ $code -eq 1 ] && grep -q -- '--context' err; then pass "chat: a message that is too long"; else fail "chat: a message that is too long" "$(cat err)"; fi
say 'hi\n' --template chatml --tokens 3 --context 300
if [ $code -eq 0 ] && grep -q 'tok/s' err; then pass "chat: speed at the end"; else fail "chat: speed at the end" "$(cat err)"; fi
refuses "chat without a template" 1 '\-\-template' chat talker
refuses "chat with an unknown template" 2 '\-\-template' chat talker --template alpaca
run "$winnow" generate talker --prompt "the cat sees" --tokens 0 --temperature 0 --save-state state
json "generate --load-state" '(.prompt_ids | length) > 0 and .tokens == 3' generate talker --load-state state --prompt " the" --tokens 3
printf x >>state
refuses "generate --load-state: a damaged file" 1 'state' generate talker --load-state state --prompt " the" --tokens 3
refuses "generate --load-state: another file" 1 'no state of a session' generate talker --load-state talker/model.safetensors --prompt " the"
refuses "generate --save-state with --jsonl" 2 'without --jsonl' generate talker --save-state x --jsonl l --out o --prompt '{document}'
refuses "a template without --chat" 2 '\-\-chat' generate talker --template chatml --prompt x
json "generate --chat" '(.prompt_ids | length) > 10' generate talker --chat --template llama3 --system "Be brief." --prompt hi --tokens 2
say 'hello\n' --template chatml --tokens 1 --context 5000
grep -q 'context is 5000, talker was made for' err && pass "chat: a context beyond the model's is told" || fail "chat: a context beyond the model's is told" "$(cat err)"
# Answers constrained to JSON, by a model that has never seen any.
cat >answer.json <<'END'
{"type": "object", "properties": {"kind": {"enum": ["a", "b\n"]}, "n": {"type": "integer", "minimum": 10, "maximum": 99}},
 "required": ["kind", "n"], "additionalProperties": false}
END
json "generate --json-schema" '.stopped == "end" and (.text | fromjson | (.kind | IN("a", "b\n")) and .n >= 10 and .n <= 99)' \
  generate talker --prompt the --tokens 200 --temperature 1 --json-schema answer.json
json "generate --json-object" '.text | test("^[ \t\r\n]*[{]")' \
  generate talker --prompt the --tokens 30 --temperature 1 --json-object
say 'hi\nyou\n' --template chatml --tokens 100 --context 300 --json --json-schema answer.json
is "chat --json-schema" "true true" "$(jq -r '[.turns[].answer | fromjson | .n > 9] | join(" ")' out)"
echo '{"properties": {"a": {"not": {}}}}' >not.json
refuses "a schema that is not served" 1 'not.json: schema #/properties/a: "not" is not served' \
  generate talker --prompt the --json-schema not.json
refuses "a schema that is not there" 1 'absent.json' generate talker --prompt the --json-schema absent.json
refuses "two kinds of JSON" 2 'exclude each other' chat talker --json-object --json-schema answer.json
refuses "JSON that does not end" 2 '\-\-ignore-end' generate talker --prompt the --json-object --ignore-end
say 'hello\n/regen\n/save saved.json\n/reset\n/load saved.json\n/system Be brief.\nyes?\n' --template chatml --tokens 5 --context 300 --json
is "chat: /regen, /save, /load and /system" "0 3 1" "$code $(jq '.turns | length' out) $(jq '[.messages[] | select(.role == "user")] | length' saved.json)"
say '/load saved.json\n/set budgets 6 policy=window\nand?\n' --template chatml --tokens 5 --context 300 --show-context
if [ $code -eq 0 ] && grep -q '~~hello' out && grep -qE 'kept [0-9]+ of [0-9]+, forgot [1-9]' err; then
  pass "chat --show-context strikes through what is gone"
else
  fail "chat --show-context strikes through what is gone" "$(cat out err)"
fi
say 'hi\n' --template chatml --tokens 5 --context 300 --show-context --json --budgets 6 --policy window
is "chat --show-context as JSON" "6 true" "$(jq -r '[.context[] | select(.layers == 2)] | length' out) $(jq -r '.turns[0] | .kept + .forgotten == ('"$(jq '.context | length' out)"')' out)"
say 'one\ntwo\nthree\nfour\n' --template chatml --tokens 60 --context 120
if [ $code -eq 0 ] && grep -q 'are forgotten' err; then pass "chat: the oldest turns go"; else fail "chat: the oldest turns go" "$(cat err)"; fi
for bad in '[]' '{"winnow": "chat"}' '{"winnow": "chat", "messages": [{"role": "assistant", "content": "x"}]}' \
  '{"winnow": "chat", "messages": [{"role": "user"}]}' '{"winnow": "chat", "messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y", "ids": [1e9, -1, 99999999, "a"]}]}'; do
  echo "$bad" >bad.json
  say '/load bad.json\nhi\n' --template chatml --tokens 2 --context 300
  case $bad in
    *ids*) [ $code -eq 0 ] && ! grep -q bad.json: err ;;
    *) [ $code -eq 0 ] && grep -q '^winnow: bad.json: ' err ;;
  esac && pass "chat /load of ${bad:0:60}" || fail "chat /load of ${bad:0:60}" "$(cat err)"
done
say '/save text.txt\n' --template chatml --context 300
if grep -q 'text.txt is there' err && ! grep -q '"winnow"' text.txt; then pass "chat /save writes over no other file"; else fail "chat /save writes over no other file" "$(cat err)"; fi
{
  printf '{"winnow":"chat","messages":[{"role":"user","content":"'
  head -c 5000000 /dev/zero | tr '\0' x
  printf '"}]}'
} >long.json
say '/save long.json\n' --template chatml --context 300
is "chat /save writes over a long conversation" "0 []" "$code $(jq -c .messages long.json | cut -c1-80)"
# On a terminal.
if command -v python3 >/dev/null; then
  long=20000
  [ $brief -eq 1 ] && long=3000
  timeout -k 5 240 python3 "$here/chat_terminal.py" "$winnow" talker $long || failed=1
else
  skip "chat on a terminal" "no python3"
fi
# A draft model: the same text; another vocabulary is refused.
drawn() { "$winnow" generate --model talker --prompt "the water came" --tokens 20 --temperature 0.7 --seed 4 --json --quiet "$@" >out 2>err; }
drawn && jq -c .ids out >alone
drawn --draft-model talker
is "generate --draft-model draws the same text" "$(cat alone) true" "$(jq -c .ids out) $(jq '.drafted > 0' out)"
refuses "a draft model with another vocabulary" 1 'whole has a vocabulary of .* expected the same' generate --model talker --draft-model whole --prompt the
# What is left of turns, and what is pinned, under a window of 60 tokens.
long='the water came from the hill the water came from the hill the water'
say "the first one\\n$long\\n$long\\n$long\\n" --template chatml --tokens 4 --context 600 --json --budgets 60 --policy window
is "chat: the oldest turns leave" "0 false" "$(jq -r '.held[0] | "\(.kept) \(.pinned)"' out)"
say "the first one\\n/pin\\n$long\\n$long\\n$long\\n/turns\\n" --template chatml --tokens 4 --context 600 --json --budgets 60 --policy window
is "chat: a pinned turn stays" "true true" "$(jq -r '.held[0] | "\(.kept == .tokens and .tokens > 3) \(.pinned)"' out)"
is "chat: /turns tells it" 1 "$(grep -c 'tokens kept, pinned  the first one' err)"
say "/system be brief\\n$long\\n$long\\n" --template chatml --tokens 4 --context 600 --json --budgets 60 --policy window --pin system
is "chat --pin system" true "$(jq -r '.held[0].kept > 3 and .held[0].kept < .held[0].tokens' out)"
say "/system $long\\nhi\\n" --template chatml --tokens 4 --context 600 --json --budgets 8 --policy window --pin system
if [ $code -eq 1 ] && grep -q 'pinned.* the budget of layer 0 is 8 tokens' err; then pass "chat: a budget smaller than what is pinned"; else fail "chat: a budget smaller than what is pinned" "$(cat err)"; fi
