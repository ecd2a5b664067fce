# Missing, empty, truncated, malformed and hostile input: one line of error, exit code 1, nothing lost. Uses files of
# end_to_end.sh: text.txt, tok.model, data/, recipe.json, whole/.

: >empty.txt
printf 'good \xff\xfe bad\n' >latin.txt
head -c 2000 text.txt >short.txt
mkdir -p folder
keep() { cksum tok.model data/* whole/model.safetensors whole/config.json whole/state.json; }
keep >kept

# Texts.
for file in missing.txt empty.txt latin.txt folder; do
  refuses "tokenizer train on $file" 1 "$file" tokenizer train --out tok.model --vocab 300 --quiet $file
  refuses "data prepare on $file" 1 "$file" data prepare --tokenizer tok.model --val-fraction 0 --out data --quiet $file
  refuses "eval on $file" 1 "$file" eval --model whole --text $file --quiet
done
refuses "a vocabulary larger than the text gives" 1 'of 60000 tokens on short.txt: the text gives a vocabulary of at most [0-9]+$' \
  tokenizer train --out tok.model --vocab 60000 --quiet short.txt
refuses "a vocabulary smaller than the text needs" 1 'characters, all bytes and special tokens are [23][0-9]+: ask for a larger vocabulary' \
  tokenizer train --out tok.model --vocab 258 --quiet short.txt
refuses "a coverage that SentencePiece refuses" 2 '\-\-coverage.*0\.98' tokenizer train --out tok.model --coverage 0.95 text.txt
refuses "a vocabulary out of range" 2 '\-\-vocab.*range' tokenizer train --out tok.model --vocab -5 text.txt
refuses "a prompt that is not UTF-8" 1 'UTF-8' generate --model whole --prompt $'a \xff b'
printf '{"text": "fine"}\n{"text": 3}\n' >type.jsonl
printf '{"text": "fine"}\n{"text": "cut\n' >cut.jsonl
printf '{"body": "fine"}\n' >field.jsonl
printf '{"text": "a fine document"}\n{"text": "another"}\n' | gzip >whole.jsonl.gz
head -c 30 whole.jsonl.gz >cut.jsonl.gz
refuses "JSON lines: a field that is no string" 1 'type\.jsonl.*2' data prepare --tokenizer bytes --out data --quiet type.jsonl
refuses "JSON lines: malformed" 1 'cut\.jsonl.*2' data prepare --tokenizer bytes --out data --quiet cut.jsonl
refuses "JSON lines: the field is missing" 1 'field\.jsonl.*text' data prepare --tokenizer bytes --out data --quiet field.jsonl
refuses "gzip: truncated" 1 'cut\.jsonl\.gz' data prepare --tokenizer bytes --out data --quiet cut.jsonl.gz

refuses "data prepare: one document for two splits" 1 'document-break blank or line' data prepare --tokenizer bytes \
  --out data --quiet text.txt
# An output that cannot be written is reported before the long work, not after it.
refuses "tokenizer train into no folder" 1 'no/such: No such' tokenizer train --out no/such/tok.model --vocab 300 text.txt
refuses "data prepare into a model's folder" 1 'whole holds a model' data prepare --tokenizer bytes --document-break line \
  --out whole text.txt
refuses "tokenizer train to standard output" 1 '^winnow: -: a file is written here, not standard output' \
  tokenizer train --out - --vocab 300 text.txt
refuses "tokenizer train onto a folder" 1 'folder: is a folder' tokenizer train --out folder --vocab 300 text.txt
for file in csv out svg; do
  refuses "analyze --$file into no folder" 1 'no/such: No such' analyze attention whole --text other.txt --$file no/such/x
done
refuses "analyze: shares that fall" 2 '"0.9,0.5": expected ascending' analyze meaningful whole --text other.txt --taus 0.9,0.5
refuses "prune compare below a file" 1 'text\.txt: a file of that name exists' prune compare --selective whole \
  --data data/val.bin --rows 1 --budgets 8 --out text.txt/x

(
  ulimit -f 64
  refuses "a file larger than the shell's limit" 1 'too large' convert whole too-large
)
[ -e too-large/model.safetensors ] && fail "and nothing half written" || pass "and nothing half written"

(
  ulimit -s 64
  refuses "a stack of 64 KiB" 1 '^winnow: the stack is limited to 64 KiB \(ulimit -s\), expected at least 1024$' convert whole too-small
)

# Tokenizer models.
head -c 200 tok.model >cut.model
head -c 4000 /dev/urandom >noise.model
for file in missing.model empty.txt cut.model noise.model folder; do
  refuses "tokenizer $file" 1 "$file" tokenizer encode --tokenizer $file text.txt
done
ids() { # NAME PATTERN TEXT
  printf '%s' "$3" >ids.bad
  refuses "ids: $1" 1 "ids\.bad.*$2" tokenizer decode --tokenizer tok.model ids.bad
}
ids "past the vocabulary" '100000' '3 100000'
ids "negative" '' '3 -7'
ids "no number" 'byte 2' '3 x 5'
ids "JSON that is cut off" ':1:13: ' '{"ids": [3, 5'
ids "an object in place of a list" 'not a list' '{"ids": {"3": 5}}'
ids "too large for an integer" '' '99999999999999999999'
ids "JSON without ids" '' '{"text": 3}'
ids "JSON cut off" '' '{"ids": [3, 4'

# Folders, pipes and devices are refused at once, by their kind, wherever a regular file is expected. A text may come
# from a pipe.
mkfifo fifo
for kind in "fifo a FIFO" "/dev/zero a device" "folder a folder"; do
  file=${kind%% *} what=${kind#* }
  refuses "a corpus that is $what" 1 "$file: it is $what" tokenizer train --out new.model --vocab 300 --quiet $file
  refuses "a token file that is $what" 1 "$file: it is $what" eval --model whole --data $file --quiet
  [ $file = folder ] && continue
  refuses "a model that is $what" 1 "$file: it is $what" eval --model $file --text text.txt --quiet
  refuses "a tokenizer that is $what" 1 "$file: it is $what" tokenizer encode --tokenizer $file text.txt
done
mkfifo folder/config.json
refuses "a configuration that is a FIFO" 1 'config.json: it is a FIFO' eval --model folder --text text.txt --quiet
rm folder/config.json
for file in /dev/zero folder; do
  refuses "a text that is $file" 1 "$file: it is a" eval --model whole --text $file --quiet
  refuses "a recipe that is $file" 1 "$file: it is a" train --config $file --out bad-run --quiet
  refuses "a corpus to prepare that is $file" 1 "$file: (it is a|no files in the folder)" data prepare --tokenizer bytes \
    --val-fraction 0 --out data --quiet $file
  refuses "tokenizer encode on $file" 1 "$file: it is a" tokenizer encode --tokenizer tok.model $file
done
refuses "a text that is a FIFO without a writer" 1 'fifo: it is a FIFO, and nothing opened it' tokenizer encode \
  --tokenizer tok.model fifo
"$winnow" tokenizer encode --tokenizer tok.model short.txt >expected
for through in pipe fifo; do
  if [ $through = fifo ]; then
    (sleep 0.2; cat short.txt >fifo) &
    "$winnow" tokenizer encode --tokenizer tok.model fifo >out 2>err
  else
    "$winnow" tokenizer encode --tokenizer tok.model <(cat short.txt) >out 2>err
  fi
  if cmp -s out expected; then pass "a text through a $through"; else fail "a text through a $through" "$(cat err)"; fi
done
rm fifo
for through in - gzip; do
  if [ $through = - ]; then cat short.txt; else gzip <short.txt; fi |
    "$winnow" data prepare --tokenizer bytes --val-fraction 0 --out piped --quiet - >out 2>err
  "$winnow" data prepare --tokenizer bytes --val-fraction 0 --out filed --quiet short.txt >out 2>>err
  if cmp -s piped/train.bin filed/train.bin; then pass "data prepare from a pipe ($through)"
  else fail "data prepare from a pipe ($through)" "$(cat err)"; fi
done
rm -r piped filed
# When standard streams are closed, an opened file must not become descriptor 2 and receive progress messages.
"$winnow" data prepare --tokenizer bytes --val-fraction 0 --out closed short.txt <&- >&- 2>&-
is "nothing is printed into files where standard streams are closed" "1 0" "$? $("$winnow" info --verify closed --json | jq .damaged)"
refuses "data prepare from an empty standard input" 1 'standard input: no text in it' data prepare --tokenizer bytes \
  --val-fraction 0 --out piped --quiet -
"$winnow" eval --model whole --text $'\033[2J\xff.txt' >out 2>err
is "a name that is no text in a message" 'winnow: cannot open \x1b[2J\xff.txt: No such file or directory' "$(cat err)"

# Bit rot: one bit of a file that winnow wrote is flipped.
flip() { # FILE BYTE: counted from the end
  python3 - "$1" "$2" <<'PY'
import sys
with open(sys.argv[1], "r+b") as f:
    f.seek(-int(sys.argv[2]), 2)
    byte = f.read(1)[0]
    f.seek(-1, 1)
    f.write(bytes([byte ^ 16]))
PY
}
cp -r whole rotten
cp data/val.bin rotten.bin
json "info --verify of a run" '.damaged == 0 and (.files | length) == 2 and all(.files[]; .state == "ok")' info --verify rotten
json "info --verify of token files" '.damaged == 0 and (.files | length) == 2' info --verify data
json "data prepare into a folder whose name is not UTF-8" '.out == "d\\xe9" and .documents == 1' data prepare --tokenizer bytes \
  --val-fraction 0 --out $'d\xe9' --quiet short.txt
json "info --verify of it" '.path == "d\\xe9" and .damaged == 0' info --verify $'d\xe9'
flip rotten/model.safetensors 5
flip rotten/optimizer.safetensors 77
flip rotten.bin 3
damaged='is damaged: its checksum is [0-9a-f]{16}, its [0-9]+ bytes have [0-9a-f]{16}'
refuses "eval of a decayed checkpoint" 1 "rotten/model.safetensors: tensor \".*\" $damaged" eval --model rotten --data data/val.bin --quiet
refuses "convert of a decayed checkpoint" 1 "rotten/model.safetensors: tensor" convert rotten converted
refuses "training on from a decayed checkpoint" 1 "rotten/model.safetensors: tensor" train --resume --out rotten --quiet
cp whole/model.safetensors rotten/
refuses "training on from a decayed optimizer" 1 "rotten/optimizer.safetensors: tensor \".*\" $damaged" train --resume \
  --set train.steps=1000 --out rotten --quiet
refuses "eval on a decayed token file" 1 'rotten.bin: the tokens are damaged' eval --model whole --data rotten.bin --quiet
"$winnow" info --verify rotten >out 2>err
is "info --verify ends with 1" "1" "$?"
grep -q '^rotten/optimizer.safetensors: damaged: tensor "' out && grep -q '^rotten/model.safetensors: ok (safetensors' out &&
  pass "info --verify says which file and tensor" || fail "info --verify says which file and tensor" "$(cat out err)"
ln -s nowhere rotten/gone.safetensors
run "$winnow" info --verify rotten --json
is "info --verify counts what cannot be read apart" "1 damaged, 1 unreadable, winnow: 1 of 3 files damaged, 1 unreadable" \
  "$(jq -r '"\(.damaged) damaged, \(.unreadable) unreadable"' out), $(cat err)"
refuses "info --verify of a file that is not there" 1 'cannot open nowhere.bin: No such file' info --verify nowhere.bin
refuses "info --verify of nothing" 2 'of which file' info --verify
refuses "info --all of nothing" 2 'of which model' info --all
refuses "info of two kinds" 2 'exclude each other' info --all --verify data
refuses "info --verify of a folder without such files" 1 'no safetensors' info --verify folder
rm -r rotten rotten.bin

# Recipes.
config() { # NAME CODE PATTERN TEXT
  printf '%s' "$4" >bad.json
  refuses "recipe: $1" "$2" "$3" train --config bad.json --out bad-run --quiet
}
refuses "recipe: missing" 1 'missing\.json' train --config missing.json --out bad-run
config empty 1 'bad\.json' ''
config "truncated" 1 'bad\.json:3:' $'{\n  "model": {\n    "layers": '
config "malformed, with line and column" 1 'bad\.json:2:[0-9]+' $'{\n  "model": {"layers": 2,, }\n}'
config "not an object" 1 'bad\.json' '[1, 2]'
config "not UTF-8" 1 'bad\.json' $'{"model": {"norm": "\xff"}}'
config "an unknown key" 1 'did you mean "?(model\.)?layers' '{"model": {"layer": 2}}'
config "an unknown section" 1 'did you mean "?train' '{"trian": {"steps": 2}}'
config "a wrong type" 1 'layers' '{"model": {"layers": "two"}}'
config "a fraction for an integer" 1 'layers' '{"model": {"layers": 2.5}}'
config "out of range" 1 'dropout' '{"model": {"dropout": 1.5}}'
config "a huge number" 1 'width' '{"model": {"width": 9223372036854775807}}'
config "an unknown choice" 1 'rmsnorm' '{"model": {"norm": "rmsnrom"}}'
config "a key twice" 1 'layers' '{"model": {"layers": 2, "layers": 3}}'
config "deep nesting" 1 'bad\.json' "$(printf '[%.0s' $(seq 5000))"
config "heads that do not divide the width" 1 'heads|head_size' '{"model": {"vocab_size": 300, "context": 8, "width": 33, "heads": 2}}'
config "a mistyped token file, before its vocabulary" 1 'cannot open typo/train.bin: No such file' '{"data": {"train": "typo/train.bin"}}'
set_refused() { # NAME PATTERN ASSIGNMENT
  refuses "set: $1" 1 "$2" train --config recipe.json --set "$3" --out bad-run --quiet
}
set_refused "an unknown key" 'did you mean "?train\.steps' train.stpes=3
set_refused "no value" 'train\.steps' train.steps
set_refused "a wrong type" 'train\.steps' train.steps=many
set_refused "out of range" 'train\.lr' train.lr=-1
set_refused "a token file that is missing" 'nowhere\.bin' data.train=nowhere.bin
set_refused "a tokenizer that is missing" 'nowhere\.model' data.tokenizer=nowhere.model
set_refused "a context longer than the model's" 'model.context' train.context=1048576
set_refused "a vocabulary smaller than the tokenizer's" 'vocab|token' model.vocab_size=100
[ -e bad-run/model.safetensors ] && fail "a refused run writes no checkpoint" || pass "a refused run writes no checkpoint"

# Token files.
: >empty.bin
printf 'abc' >odd.bin
head -c 900 data/train.bin >cut.bin
{ head -c 8 data/train.bin; printf '\xff\xff\xff\x7f'; tail -c +13 data/train.bin; } >long.bin
for file in empty.bin odd.bin cut.bin long.bin missing.bin folder; do
  refuses "token file $file" 1 "$file" eval --model whole --data $file --quiet
done
# An llm.c header without checksums, for a given number of tokens below 256.
header() { head -c 8 data/train.bin; printf "\\x$(printf %02x "$1")\\0\\0\\0"; head -c 1012 /dev/zero; }
{ header 20; tail -c +1025 data/train.bin | head -c 40; } >few20.bin
refuses "a corpus shorter than a block" 1 'few20\.bin.*20' train --config recipe.json --set data.train=few20.bin --out bad-run --quiet
{ header 100; for _ in $(seq 100); do printf '\xf0\xff'; done; } >ids.bin
refuses "token ids past the vocabulary" 1 'ids\.bin: token 0 is 65520' eval --model whole --data ids.bin --quiet

# Safetensors: as a checkpoint's weights, and as a case for op attention.
le64() { # a decimal number as 8 bytes, little-endian
  local hex
  hex=$(printf '%016x' "$1")
  local i
  for i in 14 12 10 8 6 4 2 0; do printf "\\x${hex:$i:2}"; done
}
tensors() { # FILE HEADER BYTES-OF-DATA
  { le64 ${#2}; printf '%s' "$2"; head -c "$3" /dev/zero; } >"$1"
}
f32() { printf '{"a":{"dtype":"F32","shape":%s,"data_offsets":%s}}' "$1" "$2"; }
bad=safetensors
mkdir -p $bad
: >$bad/empty
printf 'abcd' >$bad/four-bytes
head -c 100 whole/model.safetensors >$bad/cut-header
head -c $(($(stat -c %s whole/model.safetensors) - 7)) whole/model.safetensors >$bad/cut-data
{ le64 9223372036854775807; printf '{}'; } >$bad/length-2-63
{ printf '\xff\xff\xff\xff\xff\xff\xff\xff{}'; } >$bad/length-all-ones
{ le64 3; printf '{}'; } >$bad/length-past-the-end
{ le64 0; } >$bad/length-zero
tensors $bad/not-json 'hello' 0
tensors $bad/not-an-object '[]' 0
tensors $bad/nested "$(printf '[%.0s' $(seq 20000))" 0
tensors $bad/entry-no-object '{"a":3}' 0
tensors $bad/no-dtype '{"a":{"shape":[1],"data_offsets":[0,4]}}' 4
tensors $bad/no-offsets '{"a":{"dtype":"F32","shape":[1]}}' 4
tensors $bad/unknown-dtype '{"a":{"dtype":"F13","shape":[1],"data_offsets":[0,4]}}' 4
tensors $bad/past-the-end "$(f32 '[4]' '[0,16]')" 8
tensors $bad/far-past-the-end "$(f32 '[4]' '[4611686018427387904,4611686018427387920]')" 16
tensors $bad/backwards "$(f32 '[4]' '[16,0]')" 16
tensors $bad/negative-offset "$(f32 '[4]' '[-16,0]')" 16
tensors $bad/negative-shape "$(f32 '[-4]' '[0,16]')" 16
tensors $bad/two-negatives "$(f32 '[-2,-2]' '[0,16]')" 16
tensors $bad/fractional-shape "$(f32 '[4.0]' '[0,16]')" 16
tensors $bad/size-and-shape "$(f32 '[5]' '[0,16]')" 16
tensors $bad/product-overflows "$(f32 '[4294967296,4294967296]' '[0,0]')" 0
tensors $bad/bytes-overflow "$(f32 '[4611686018427387904]' '[0,0]')" 0
tensors $bad/many-dimensions "$(f32 '[1,1,1,1,1,1,1,1,1,1,1,1]' '[0,4]')" 4
tensors $bad/three-offsets "$(f32 '[4]' '[0,8,16]')" 16
tensors $bad/overlap '{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}}' 12
tensors $bad/hole '{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[1],"data_offsets":[8,12]}}' 12
tensors $bad/rest "$(f32 '[1]' '[0,4]')" 12
tensors $bad/twice '{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}' 4
tensors $bad/metadata-no-strings '{"__metadata__":{"case":3},"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}' 4
tensors $bad/other-tensors "$(f32 '[4]' '[0,16]')" 16
printf '{"__metadata__":{"case":"{\\"attention\\":{}}"}}' >case.header
{ le64 "$(stat -c %s case.header)"; cat case.header; } >no-shape.safetensors
refuses "op attention: a case without shapes" 1 'no-shape.safetensors: case: "B" is missing' op attention --case no-shape.safetensors \
  --out case-out.safetensors
cp -r whole hostile
for file in $bad/*; do
  cp $file hostile/model.safetensors
  refuses "checkpoint with safetensors: ${file##*/}" 1 'hostile/model\.safetensors' info hostile
  refuses "op attention: ${file##*/}" 1 "${file##*/}" op attention --case $file --out case-out.safetensors
done
[ -e case-out.safetensors ] && fail "a refused case writes nothing" || pass "a refused case writes nothing"
rm hostile/model.safetensors
refuses "checkpoint without weights" 1 'hostile/model\.safetensors' eval --model hostile
refuses "checkpoint that is missing" 1 'nowhere' generate --model nowhere --prompt x
refuses "a start that is missing" 1 "cannot open nowhere" train --init nowhere --out bad-run
refuses "model file that is missing" 1 "cannot open nowhere\.gguf: there is no such" info nowhere.gguf
refuses "checkpoint that is a file" 1 'text\.txt' info text.txt
cp -r whole shapes
sed -i 's/"layers": 2/"layers": 3/' shapes/config.json
refuses "config.json of more layers than the weights" 1 'shapes/' info shapes
sed -i 's/"layers": 3/"layers": 100000000/' shapes/config.json
refuses "config.json of absurd size" 1 'shapes/' info shapes
printf '{"layers": ' >shapes/config.json
refuses "config.json truncated" 1 'shapes/config\.json:1' info shapes

# Budget searches and comparisons.
search=(prune search whole --quiet --search data/val.bin --report data/train.bin)
refuses "prune search without a target" 2 'target' "${search[@]}" --out bad-search
refuses "prune search with two" 2 'target' "${search[@]}" --target 9 --tolerance 1% --out bad-search
refuses "prune search: a tolerance that is none" 2 'tolerance' "${search[@]}" --tolerance 1km --out bad-search
refuses "prune search: memory that is none" 2 '\-\-memory' "${search[@]}" --target 9 --memory much --out bad-search
refuses "prune search: too little memory" 1 'rows fit' "${search[@]}" --target 9 --memory 100kB --out bad-search
refuses "prune search: a step of the whole context" 1 'step' "${search[@]}" --target 9 --step 32 --out bad-search
refuses "prune search: no long documents" 1 'no document' "${search[@]}" --target 9 --long-only --document-token 2 --out bad-search
refuses "prune search: a document token of another vocabulary" 1 'outside the vocabulary' "${search[@]}" --target 9 --long-only --document-token 5000 --out bad-search
refuses "eval: no long documents" 1 'no document' eval whole --data data/val.bin --long-only --document-token 2
refuses "eval: a document token of another vocabulary" 1 'outside the vocabulary' eval whole --data data/val.bin --long-only --document-token 5000
refuses "train: a document token of another vocabulary" 1 'document token 5000 is outside the vocabulary' train --config recipe.json --set data.pack=true --set data.document_token=5000 --out bad-rows
refuses "eval: long documents of a text" 2 'long-only' eval whole --text line.txt --long-only
refuses "analyze: long documents of a text" 2 'long-only' analyze attention whole --text line.txt --long-only
refuses "eval: a document token alone" 2 'long-only' eval whole --data data/val.bin --document-token 1
refuses "train: documents in a stream" 1 'data\.rows' train --config recipe.json --set data.rows=document --set data.stream=true --out bad-rows
refuses "prune search: --check alone" 2 '\-\-lazy' "${search[@]}" --target 9 --check --out bad-search
refuses "prune search: --lazy and --race" 2 'exclude each other' "${search[@]}" --target 9 --lazy --race 0.1 --out bad-search
refuses "prune search: a race of 1" 2 '\-\-race' "${search[@]}" --target 9 --race 1 --out bad-search
refuses "prune search: an unknown policy" 2 'policy' "${search[@]}" --target 9 --policy best --out bad-search
refuses "prune search: a context and no compression" 1 'when' "${search[@]}" --target 9 --read 8 --out bad-search
refuses "prune search: a context as long as a row" 1 'expected 2 to' "${search[@]}" --target 9 --policy knorm --when prompt --read 32 --out bad-search
refuses "prune search: an allotment of its own" 1 'divides budgets by itself' "${search[@]}" --target 9 --policy pyramidkv --when prompt --step 4 --out bad-search
refuses "prune search: fine-tuning for a compression" 1 'no fine-tuning' "${search[@]}" --target 9 --policy knorm --when prompt --step 4 --finetune-after 2 --out bad-search
refuses "prune search: a token file that is missing" 1 'nowhere\.bin' prune search whole --quiet --search nowhere.bin --report data/train.bin --target 9 --out bad-search
refuses "prune search: a search is there" 1 'already' "${search[@]}" --target 9 --out pruned
refuses "prune search: another search to resume" 1 'another' "${search[@]}" --target 9 --step 4 --resume --out pruned
refuses "prune search: every without steps" 2 '\-\-finetune-steps' "${search[@]}" --target 9 --finetune-every 2 --out bad-search
refuses "prune search: a recipe for nothing" 2 'fine-tuning' "${search[@]}" --target 9 --set data.train=x --out bad-search
refuses "prune search: tuned budgets beside the checkpoint" 2 '\-\-save' "${search[@]}" --target 9 --finetune-after 2 --save --out bad-search
refuses "prune search: fine-tuning steps that are none" 2 'finetune-steps' "${search[@]}" --target 9 --finetune-steps -3 --out bad-search
refuses "prune search: another model's recipe" 1 "recipe's model" "${search[@]}" --target 9 --finetune-after 2 --set model.attention.window=4 --out bad-search
refuses "prune search: no data to fine-tune on" 1 'nowhere\.bin' "${search[@]}" --target 1e9 --step 16 --finetune-after 2 --set data.train=nowhere.bin --out untuned
refuses "prune search: fine-tuning that was not there" 1 'another' "${search[@]}" --target 9 --finetune-steps 2 --resume --out pruned
mkdir -p bare && cp whole/config.json whole/model.safetensors bare/
refuses "prune search: no recipe" 1 'recipe\.json' prune search bare --quiet --search data/val.bin --report data/train.bin --target 9 --finetune-after 2 --out bad-search
mkdir -p torn && head -c 200 pruned/search.json >torn/search.json
refuses "prune search: a torn state" 1 'torn/search\.json' "${search[@]}" --target 9 --resume --out torn
refuses "prune compare without models" 2 'standard' prune compare --data data/val.bin --out bad-compare
refuses "prune compare: budgets that are none" 2 'budgets' prune compare --selective whole --data data/val.bin --budgets 8,x --out bad-compare
refuses "prune compare: a budget of 0" 2 'budgets' prune compare --selective whole --data data/val.bin --budgets 0 --out bad-compare
refuses "prune compare: too few names" 2 'labels' prune compare --standard whole --selective whole --labels one --data data/val.bin --out bad-compare
refuses "prune compare: too many names" 2 'labels' prune compare --selective whole --labels one,two --data data/val.bin --out bad-compare
refuses "prune compare: a policy twice" 2 'twice' prune compare --selective whole --data data/val.bin --policies window,window --out bad-compare
refuses "prune compare: a search of nothing" 1 'nowhere' prune compare --selective whole --selective-search nowhere --data data/val.bin --out bad-compare

# A checkpoint and a tokenizer whose vocabularies differ.
run "$winnow" tokenizer train --out larger.model --vocab 320 --quiet text.txt
if [ -s larger.model ]; then
  for command in "eval --text other.txt" "generate --prompt x"; do
    refuses "another tokenizer's vocabulary: ${command%% *}" 1 '(320.*300|300.*320)' $command --model whole --tokenizer larger.model
  done
  cp -r whole swapped && cp larger.model swapped/tokenizer.model
  refuses "another tokenizer in the checkpoint" 1 '(320.*300|300.*320)' generate --model swapped --prompt x
else
  fail "a second tokenizer" "$(cat err)"
fi

# A full disk: a file system of fixed size, and a limit on file sizes.
small=$dir/small
mkdir -p "$small"
if [ "$(id -u)" -eq 0 ] && mount -t tmpfs -o size=200k winnow-test "$small" 2>/dev/null; then
  trap 'umount "$small"; rm -rf "$dir"' EXIT
  refuses "full disk: train" 1 'small/' train --config recipe.json --set model.width=128 --set train.steps=1 --set train.eval_every=0 --out "$small/run" --quiet
  rm -rf "${small:?}"/*
  refuses "full disk: data prepare" 1 'small/' data prepare --tokenizer bytes --val-fraction 0 --out "$small/data" --quiet \
    text.txt text.txt text.txt
  if [ -z "$(find "$small" -name '*.bin' -size +0 -not -path '*/.prepare/*')" ]; then pass "full disk: no half of a token file"; else fail "full disk: no half of a token file" "$(ls -lR "$small")"; fi
  rm -rf "${small:?}"/*
  umount "$small"
  trap 'rm -rf "$dir"' EXIT
  # Room for the existing checkpoint, but not for the next one beside it.
  need=$(du -sk whole | cut -f1)
  if mount -t tmpfs -o size=$((need + 40))k winnow-test "$small"; then
    trap 'umount "$small"; rm -rf "$dir"' EXIT
    cp -r whole "$small/run"
    refuses "full disk: resume" 1 'small/' train --resume --set train.steps=$((steps + 2)) --out "$small/run" --quiet
    run "$winnow" info "$small/run"
    if [ $code -eq 0 ] && cmp -s whole/model.safetensors "$small/run/model.safetensors"; then
      pass "full disk: the checkpoint before stays"
    else
      fail "full disk: the checkpoint before stays" "$(ls -l "$small/run")" "$(cat err)"
    fi
    umount "$small"
    trap 'rm -rf "$dir"' EXIT
  fi
else
  skip "full disk: a small file system" "mounting a tmpfs needs root"
fi
cp -r whole limited
before=$(cksum limited/model.safetensors)
timeout 60 bash -c 'trap "" XFSZ; ulimit -f 8; exec "$@"' - "$winnow" train --resume --set train.steps=$((steps + 2)) \
  --out limited --quiet >out 2>err </dev/null
code=$?
if [ $code -eq 1 ] && [ "$(wc -l <err)" -eq 1 ] && [ "$(cksum limited/model.safetensors)" = "$before" ]; then
  pass "file size limit: one line, and the checkpoint before stays"
else
  fail "file size limit: one line, and the checkpoint before stays" "exit code $code" "$(cat err)" "$(ls -l limited)"
fi

if keep | cmp -s - kept; then pass "nothing was lost"; else fail "nothing was lost" "$(keep | diff - kept)"; fi
left=$(find . -name '.*.winnow-*' | head)
is "no temporary file stays behind" "" "$left"

# Analysis.
refuses "analyze spans of a model without" 1 'whole: the model has no spans' analyze spans whole
refuses "analyze dynamic spans without a text" 1 'dynamic: .*--text or --data' analyze spans dynamic
refuses "analyze spans token by token of several sequences" 2 'one sequence at a time' analyze spans dynamic --tokens --batch 2 --text line.txt
refuses "analyze spans of nothing" 1 'missing' analyze spans missing
refuses "analyze spans: a text that is empty" 1 'empty\.txt' analyze spans dynamic --text empty.txt --quiet
refuses "analyze spans: a text that is missing" 1 'missing\.txt' analyze spans dynamic --text missing.txt --quiet
refuses "analyze spans: a token file that is missing" 1 'missing\.bin' analyze spans dynamic --data missing.bin --quiet
refuses "analyze spans: a CSV file in no folder" 1 'nowhere/x' analyze spans spans --csv nowhere/x
for leaf in meaningful sweep attention "survival --budgets 4"; do
  refuses "analyze $leaf without a text" 2 'text' analyze $leaf --model whole
  refuses "analyze $leaf: a text that is missing" 1 'missing\.txt' analyze $leaf --model whole --text missing.txt --quiet
done
refuses "analyze meaningful: shares that fall" 2 'ascending' analyze meaningful whole --text other.txt --taus 0.5,0.4
refuses "analyze meaningful: shares that are none" 2 'ascending' analyze meaningful whole --text other.txt --taus 0:2:0.5
refuses "analyze meaningful: control tokens that are no numbers" 2 'control' analyze meaningful whole --text other.txt --control 1,x
refuses "analyze meaningful: control tokens beyond the vocabulary" 1 'vocabulary' analyze meaningful whole --text other.txt --control 99999999 --quiet
refuses "analyze survival: a policy that is none" 2 'expected all' analyze survival whole --text other.txt --budgets 4 --policies h2o,none
refuses "analyze survival: an empty policy" 2 'expected all' analyze survival whole --text other.txt --budgets 4 --policies h2o,
refuses "analyze survival without budgets" 2 'budgets is required' analyze survival whole --text other.txt
refuses "eval: a protocol that needs a context's end" 1 'no place where a context ends' eval whole --text other.txt --budgets 4 --policy window --when prompt
refuses "generate: a share of a context that does not end" 1 '25%' generate whole --prompt a --budgets 25% --policy window
refuses "generate: a protocol without budgets" 2 'when needs --budgets' generate whole --prompt a --when prompt
refuses "generate: a method for a token at a time" 1 'scores a whole cache at once' generate whole --prompt a --budgets 4 --policy expected
refuses "analyze kept: ids that are none" 1 "expected a token's id" analyze kept whole --ids other.txt --policy window --budgets 4 --when prompt
printf '{"prompt": "no place", "content": "x", "answer": "y"}\n' >tasks.jsonl
refuses "analyze sweep: a task without content" 1 'tasks\.jsonl:1: .*content' analyze sweep whole --tasks tasks.jsonl --quiet
printf 'not json\n' >tasks.jsonl
refuses "analyze sweep: tasks that are not JSON" 1 'tasks\.jsonl:1: not JSON' analyze sweep whole --tasks tasks.jsonl --quiet
refuses "generate --jsonl without a place for the document" 2 'document' generate whole --jsonl tasks.jsonl --out pred.jsonl --prompt x
refuses "generate --jsonl without --out" 2 'go together' generate whole --jsonl tasks.jsonl --prompt '{document}'
refuses "generate --jsonl: a line that is not JSON" 1 'tasks\.jsonl:1' generate whole --jsonl tasks.jsonl --out pred.jsonl --prompt '{document}'
refuses "eval: an attention that needs parameters" 1 'other parameters' eval whole --text other.txt --attention sinks=2
export WINNOW_DEAD_KEYS=1
refuses "eval: a share of the sum above a half" 1 'WINNOW_DEAD_KEYS.*between 0' eval whole --text other.txt
unset WINNOW_DEAD_KEYS
refuses "eval: an attention that is none" 1 'unknown key' eval whole --text other.txt --attention thrshold.tau=0.5
refuses "analyze spans: text and data" 2 'exclude' analyze spans dynamic --text other.txt --data data/val.bin
refuses "analyze spans: two on standard output" 2 'standard output' analyze spans spans --json --csv -
for option in "--counts c.csv" "--control-text x" "--control-span 0:1"; do
  refuses "generate $option without a threshold" 1 'threshold' generate whole --prompt xx --tokens 1 $option
done
refuses "generate --control-outside without a document" 2 'jsonl' generate whole --prompt xx --control-outside
refuses "generate --control-span: no span" 2 'A:B' generate whole --prompt xx --control-span 3
refuses "generate --control-span: backwards" 2 'A:B' generate whole --prompt xx --control-span 3:2
refuses "generate --control-text: empty" 2 'empty' generate whole --prompt xx --control-text ''
refuses "generate --control-text: not in the prompt" 2 '"xy": --prompt does not have it' generate whole --prompt xx --control-text xy
refuses "generate --control-span: behind the prompt" 2 'ends before its character 2' generate whole --prompt xé --control-span 0:3
refuses "generate --counts: standard output" 2 'expected a file' generate whole --prompt xx --counts -
refuses "generate --out: standard output" 2 'expected a file' generate whole --jsonl l.jsonl --prompt '{document}' --out -
refuses "generate --counts-by alone" 2 'counts-by' generate whole --prompt xx --counts-by head
printf 'context,kept\n1,2\n2,many\n' >counts.csv
refuses "analyze fits: no number" 1 'counts\.csv:3' analyze fits counts.csv
printf 'context,kept\n1,\n2,20\n3,30\n4,40\n' >empty.csv
refuses "analyze fits: an empty cell" 1 'empty\.csv:2' analyze fits empty.csv
printf 'context,kept\n1,1e300\n2,-1e300\n3,1e300\n' >large.csv
refuses "analyze fits: numbers whose squares overflow" 1 'large\.csv: .*too large' analyze fits large.csv --json
printf 'context,kept\n1,1\n2,2\n3,2\n\0004,9\n' >nul.csv
refuses "analyze fits: a NUL byte, behind which nothing would be read" 1 'nul\.csv:5: a NUL byte' analyze fits nul.csv
printf 'context,kept\r\n1,1\r\n\r\n2,2\r\n3,2\r\n\r\n' >lines.csv
run "$winnow" analyze fits lines.csv --json
is "analyze fits: lines that end in CR LF, empty ones too" 3 "$(jq .rows out)"
printf '{"document": "a"}\n\0{"document": "b"}\n' >nul.jsonl
refuses "generate --jsonl: a NUL byte" 1 'nul\.jsonl:2: a NUL byte' generate whole --jsonl nul.jsonl --out pred.jsonl --prompt '{document}'
refuses "generate --jsonl: {document} twice" 2 'once' generate whole --jsonl docs.jsonl --out pred.jsonl --prompt '{document} {document}'
task() { printf '{"prompt": "%s", "content": "the sea", "answer": "a"}\n' "$1"; }
{ task 'of {content}'; printf '\0'; task 'of {content}'; } >asked.jsonl
refuses "analyze sweep: a NUL byte among tasks" 1 'asked\.jsonl:2: a NUL byte' analyze sweep whole --tasks asked.jsonl
{ task 'of {content}'; task 'of {content} and {content}'; } >asked.jsonl
refuses "analyze sweep: a task with its content twice" 1 'asked\.jsonl:2: .*once' analyze sweep whole --tasks asked.jsonl
refuses "analyze fits: no such column" 1 'counts\.csv:1.*seen' analyze fits counts.csv --y seen
refuses "analyze selection without data" 2 'data' analyze selection whole
refuses "analyze: one file for two results" 2 'csv and --out are one file' analyze attention whole --text other.txt --csv one --out one
refuses "analyze: one file for a plot too" 2 'svg and --csv are one file' analyze attention whole --text other.txt --csv one --svg ./one
refuses "analyze: one file for two plots" 2 'svg and --svg-fits are one file' analyze meaningful whole --text other.txt --svg one --svg-fits one
refuses "analyze --out to standard output" 2 '--out: expected a file' analyze attention whole --text other.txt --out -
refuses "analyze --svg to standard output" 2 '--svg: expected a file' analyze attention whole --text other.txt --svg -
[ -e one ] || [ -e ./- ] && fail "none of them is written" || pass "none of them is written"
# An output that fails does not take the other outputs with it.
run "$winnow" analyze meaningful whole --text other.txt --fit-from 9999 --svg-fits none.svg --csv needed.csv
is "a plot that cannot be drawn is a failure" 1 "$code"
grep -q 'tokens needed for a share' out && [ -s needed.csv ] && pass "its table and CSV are there" || fail "its table and CSV are there" "$(cat out err)"
run "$winnow" analyze attention whole --text other.txt --out /dev/full --csv seen.csv
is "a file that cannot be written is a failure" 1 "$code"
grep -q 'weight by distance' out && [ -s seen.csv ] && pass "the table and the CSV are there" || fail "the table and the CSV are there" "$(cat out err)"
"$winnow" train --quiet --config "$root/recipes/copy-selective.json" --set model.width=32 --set model.heads=2 --set train.steps=1 --set train.batch=1 \
  --set train.warmup=0 --set train.eval_every=0 --out copies
refuses "analyze selection against another vocabulary" 1 'against copies: a vocabulary' analyze selection whole --data data/val.bin --against copies
refuses "analyze task on a text" 2 "unknown option" analyze task whole --text other.txt
refuses "analyze selection in batches" 2 "unknown option" analyze selection whole --data data/val.bin --max-batches 1
refuses "report of long documents of a task" 1 'copies: long_only is for token files' report copies --sequences 1 --long-only --document-token 1 --out none.html
refuses "report of long documents without sequences" 2 "needs --sequences" report whole --long-only
refuses "analyze task of a run on a text" 1 'no synthetic task' analyze task whole
refuses "analyze spans --tokens without dynamic spans" 1 'dynamic' analyze spans whole --tokens --data data/val.bin
