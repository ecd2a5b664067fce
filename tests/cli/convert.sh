# Models of other programs are read, and winnow's are exported to their formats. Uses files of end_to_end.sh: dense/
# (standard attention, learned positions), whole/ (selective), data/.

golden=$here/../golden/hf
json "convert: a Hugging Face folder" '.format == "winnow" and .tensors == 15 and .tokenizer == "none"' \
  convert "$golden/llama" from-llama
json "convert: back to Hugging Face" '.architecture == "llama" and .tensors == 21' convert from-llama as-llama --to hf
json "convert: as GGUF" '.format == "gguf" and .architecture == "llama" and .bytes > 60000' convert from-llama as-llama.gguf
json "convert: 8 bits" '.bytes > 10000' convert "$golden/llama3.gguf" eight.gguf --type q8_0
for model in "$golden/llama" as-llama as-llama.gguf; do
  json "info of ${model##*/}" '.architecture == "llama" and .parameters == 17056 and .types.F32.tensors == 15' info "$model"
done
json "info of shards" '.architecture == "qwen3" and .config.qk_norm' info "$golden/qwen3"
json "info of 8 bits" '.format == "GGUF file" and .types.Q8_0.tensors == 10 and .config.rope_factors' info eight.gguf
json "convert: a trained model with its tokenizer" '.tokenizer == "written" and .architecture == "winnow"' \
  convert whole whole.gguf --to winnow-gguf
run "$winnow" eval --model whole --data data/val.bin --json
loss=$(jq .loss out)
json "the same model in a file" "(.loss - $loss | fabs) < 1e-5" eval --model whole.gguf --data data/val.bin
json "convert: back to a folder" '.tokenizer == "written"' convert whole.gguf whole-again --to winnow
cmp -s whole/model.safetensors whole-again/model.safetensors && pass "there and back, to the bit" ||
  fail "there and back, to the bit"
json "convert: a trained model in 8 bits" '.bytes > 10000' convert whole whole-q8.gguf --to winnow-gguf --type q8_0
json "8 bits cost little" "(.loss - $loss | fabs) < 0.05" eval --model whole-q8.gguf --data data/val.bin
packed=(generate --model whole-q8.gguf --prompt "The cat" --tokens 12 --temperature 0)
bytes=$("$winnow" "${packed[@]}" --cache float --json --quiet | jq .kv_bytes)
json "the cache of a file in 8 bits holds half floats" ".kv_bytes < $bytes and .cache == \"half\"" "${packed[@]}"
json "but not with what they do not go with" '.cache == "float"' "${packed[@]}" --attention threshold.tau=0.9
json "budgets in bytes are those of the cache in use" '.kv_bytes <= 8192 and .kv_bytes > 6500 and .cache == "half"' \
  "${packed[@]}" --budgets 8KiB
run "$winnow" eval --model whole-q8.gguf --data data/val.bin --json --weights file
packed_loss=$(jq .loss out)
json "weights in the processor's order: the same numbers" ".loss == $packed_loss" eval --model whole-q8.gguf --data data/val.bin
run "$winnow" eval --model whole-q8.gguf --data data/val.bin --json --backend ref
exact_loss=$(jq .loss out)
json "activations that are not rounded" "(.loss - $exact_loss | fabs) < 2e-6" \
  eval --model whole-q8.gguf --data data/val.bin --exact-rows 1
refuses "rows below 0" 2 '\-\-exact-rows.*range' eval --model whole-q8.gguf --data data/val.bin --exact-rows -1
json "a float model held in bfloat16" "(.loss - $loss | fabs) < 0.02 and .loss != $loss" \
  eval --model whole --data data/val.bin --weights bf16
held_loss=$(jq .loss out)
json "under its other name" ".loss == $held_loss" eval --model whole --data data/val.bin --weights bfloat16
refuses "weights of an unknown kind" 2 'auto' eval --model whole --data data/val.bin --weights int3
cp -r whole declared
echo '{"do_sample": false, "top_k": 7, "suppress_tokens": [5]}' >declared/generation_config.json
json "info: what a model declares" '.declares == {"do_sample": false, "top_k": 7, "suppress_tokens": [5]}' info declared
said=(--prompt "The cat" --tokens 8)
greedy=$("$winnow" generate --model whole "${said[@]}" --temperature 0 --logit-bias 5=-inf --json --quiet | jq -c .ids)
drawn=$("$winnow" generate --model whole "${said[@]}" --temperature 9 --top-k 7 --seed 3 --logit-bias 5=-inf --json --quiet | jq -c .ids)
json "generate: what the model declares is the default" ".ids == $greedy" generate --model declared "${said[@]}"
json "and options override it" ".ids == $drawn and .ids != $greedy" generate --model declared "${said[@]}" --temperature 9 --seed 3
refuses "convert: selective attention is not llama.cpp's" 1 'attention\.selective' convert whole no.gguf
refuses "convert: what is there stays" 1 'already holds a model' convert "$golden/llama" from-llama
refuses "convert: 8 bits need GGUF" 1 'Q8_0 needs GGUF' convert from-llama no --type q8_0
json "convert: a k type, rows of no whole blocks of 256" '.bytes > 10000' convert from-llama k.gguf --type q4_k_m
json "info of a k type" '.types.Q5_0.tensors > 0 and .types.Q8_0.tensors > 0' info k.gguf
refuses "convert: a type that cannot be written" 2 'q4_k_m' convert from-llama no.gguf --type q3_k
refuses "convert: no target" 2 'IN OUT' convert from-llama
