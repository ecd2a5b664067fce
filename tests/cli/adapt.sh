# A pretrained model is adapted with mechanisms that it was not trained with. Uses files of end_to_end.sh: dense/
# (standard attention), whole/ (selective), data/, tok.model.

few=(--data data --set train.batch=4 --set train.eval_every=0)
on=(--set model.attention.selective.enabled=true --set model.attention.selective.mem.enabled=true)
tensors() { jq -r '.tensors[].name' out | grep -c "$1"; }

json "adapt: a strength that is learned" '.step == 6 and .loss > 0' adapt dense --out adapted "${few[@]}" "${on[@]}" \
  --set train.steps=6
run "$winnow" adapt dense --out quiet "${few[@]}" "${on[@]}" --set train.steps=1
grep -q 'has no effect' err && fail "adapt: mechanisms that stay off are not spoken of" "$(cat err)" ||
  pass "adapt: mechanisms that stay off are not spoken of"
rm -rf quiet
json "adapted: what it holds" '.mechanisms[0].name == "selective" and .tokenizer == "sentencepiece"' info adapted
is "adapted: a strength a layer" 2 "$(tensors select_strength)"
first_of() { head -n 1 "$1/log.jsonl" | jq .loss; }
rm -rf dense-on
json "standard training goes on from the same" '.step == 1' train --config recipe.json --init dense --out dense-on \
  --set model.attention.selective.enabled=false --set train.steps=1 --set train.batch=4 --set train.eval_every=0
is "the first loss is the old model's" "$(first_of dense-on)" "$(first_of adapted)"
json "adapted: selections evict" '.loss > 0' eval --model adapted --data data/val.bin --budgets 8

json "adapt: low-rank updates" '.step == 6' adapt --model dense --out lora --data data/train.bin --val data/val.bin \
  "${on[@]}" --set train.steps=6 --set train.batch=4 --set train.tune=lora --set train.lora.rank=2 --set train.lr=0.01
[ -s lora/adapter.safetensors ] && pass "the updates are saved" || fail "the updates are saved" "$(ls lora)"
json "low-rank updates are merged" '.loss > 0' eval --model lora --data data/val.bin
is "what is merged has no tensors of its own" 0 "$("$winnow" info lora --json >out; tensors lora)"

# LoRA updates saved in peft's form, for an architecture that transformers has: base model plus adapter equals the
# merged model.
for i in {1..700}; do printf '%b' "\\x$(printf %02x $((i * i % 47)))\\x00"; done >tiny.bin
llama=$root/tests/golden/hf/llama
json "adapt: an adapter for peft" '.step == 3' adapt "$llama" --out peft --data tiny.bin --set train.steps=3 \
  --set train.warmup=0 --set train.batch=2 --set train.tune=lora --set train.lora.rank=2 --set train.lr=0.02
loss_of() { "$winnow" eval --data tiny.bin --json "$@" | jq .loss; }
merged=$(loss_of --model peft) added=$(loss_of --model "$llama" --adapter peft) plain=$(loss_of --model "$llama")
awk -v a="$merged" -v b="$added" -v c="$plain" 'BEGIN { d = a - b; e = a - c; exit !(d * d < 1e-10 && e * e > 1e-4) }' &&
  pass "eval --adapter: the merged model's loss" || fail "eval --adapter: the merged model's loss" "$merged $added $plain"
refuses "an adapter that is none" 1 'adapter_config\.json' eval --model "$llama" --data tiny.bin --adapter data

# Interrupted and resumed: the same bits as an undisturbed run.
cat >adapt.json <<END
{"model": {"attention": {"selective": {"strength": "scheduled"}, "exclusive": {"layers": "01"}, "span": {}}},
 "train": {"steps": 6, "batch": 4, "eval_every": 0, "save_every": 3, "tune": "lora", "strength_steps": 4}}
END
json "adapt: a recipe" '.step == 6' adapt dense --config adapt.json --data data --out adapt-whole
rm -rf adapt-parts
(
  env --default-signal=INT "$winnow" adapt dense --config adapt.json --data data --out adapt-parts --quiet >signal.out 2>&1 &
  pid=$!
  for _ in $(seq 4000); do
    [ "$(grep -c . adapt-parts/log.jsonl 2>/dev/null)" -ge 1 ] 2>/dev/null && break
    sleep 0.005
  done
  kill -INT $pid 2>/dev/null
  wait $pid
)
json "adapt --resume" '.step == 6' adapt --resume --out adapt-parts
if cmp -s adapt-whole/model.safetensors adapt-parts/model.safetensors; then
  pass "resuming an adaptation gives the same bits"
else
  fail "resuming an adaptation gives the same bits" "$(ls -l adapt-whole adapt-parts; cat signal.out)"
fi
"$winnow" info adapt-whole --json >out
is "spans and a gate" "2 2" "$(tensors 'attn.span') $(tensors exclusive_gate)"

no() { # NAME PATTERN ARGUMENTS...
  local name=$1 pattern=$2
  shift 2
  rm -rf refused
  refuses "adapt: $name" 1 "$pattern" adapt --out refused --quiet "$@"
}
no "a strength of 1 at once" 'does not start as dense' dense "${few[@]}" "${on[@]}" --set model.attention.selective.strength=fixed
no "a window" 'does not start as dense' dense "${few[@]}" --set model.attention.window=4
no "another width" 'shape|model' dense "${few[@]}" --set model.ffn_width=32
no "a mechanism that is taken away" 'select_strength' adapted "${few[@]}" --set model.attention.selective.strength=fixed
no "tensors that are not there" '\*\.mlp\.\*' dense "${few[@]}" --set 'train.freeze=*.mlp.*'
no "nothing that learns" 'learn' dense "${few[@]}" --set train.tune=mechanisms
no "a rank of 0" 'lora\.rank' dense "${few[@]}" --set train.lora.rank=0
no "an unknown key" 'did you mean' dense "${few[@]}" --set train.tuen=lora
no "no data" 'data\.train' dense
no "a model that is not there" 'missing' missing "${few[@]}"
no "data that are not there" 'nothing\.bin' dense --data nothing.bin
printf '[1]' >list.json
no "a recipe that is no object" 'list\.json' dense "${few[@]}" --config list.json
refuses "adapt: a folder that holds a run" 1 'adapted' adapt dense --out adapted "${few[@]}" --quiet
refuses "adapt: no model" 2 'which checkpoint' adapt --out refused
refuses "adapt: a model and --resume" 2 'resume' adapt dense --resume --out adapted
