# An encoder-decoder, from its recipe to the spans that it fills in. Runs in end_to_end.sh's folder.
cat >fill.json <<END
{
  "model": {"context": 24, "layers": 1, "width": 32, "heads": 2, "position": "none", "tied": true, "qk_norm": false,
            "encoder": {"layers": 1, "context": 40},
            "attention": {"buckets": {"count": 8, "farthest": 32}, "selective": {}}},
  "data": {"kind": "span_corruption", "train": "data/train.bin", "val": "data/val.bin", "tokenizer": "tok.model",
           "sentinels": 8},
  "train": {"steps": $steps, "batch": $batch, "lr": 0.01, "warmup": 4, "eval_batches": 2, "save_every": 0}
}
END
succeeds "an encoder-decoder trains" train --config fill.json --out fill --quiet
fill=(generate --model fill --prompt "The cat <extra_id_0> the sea. A <extra_id_1> finds a ship.")
json "generate: spans of an encoder-decoder" \
  '(.spans | length) == 2 and (.filled | startswith("The cat")) and (.filled | contains("the sea. A")) and
   (.filled | endswith(" finds a ship.")) and (.filled | contains("extra_id") | not) and .kv_bytes > 0 and
   .prompt_ids[-1] == 305 and ([.prompt_ids[] | select(. > 299)] == [307, 306, 305]) and (.ids | length) == .tokens' \
  "${fill[@]}" --tokens 16 --seed 3
jq -r .text out >first
run "$winnow" "${fill[@]}" --tokens 16 --seed 3
is "its streamed text and JSON agree" "$(cat first)" "$(cat out)"
json "its tokens: the tokenizer's, and the marks of the prompt" '.ids | all(. < 300 or . >= 306)' \
  "${fill[@]}" --temperature 5 --top-p 1 --tokens 60
json "it may write past the end" '.tokens == 60 and .stopped == "length"' \
  "${fill[@]}" --temperature 5 --top-p 1 --tokens 60 --ignore-end
json "a mark within a word" '(.prompt_ids[:-1] | .[-2]) == 307 and (.filled | startswith("The c"))' \
  generate --model fill --prompt "The c<extra_id_0>s" --tokens 4
whole=$("$winnow" "${fill[@]}" --tokens 16 --temperature 0 --json --quiet | jq -c .ids)
json "budgets that hold everything change nothing" ".ids == $whole and .budget_tokens == 17" \
  "${fill[@]}" --tokens 16 --temperature 0 --budgets 17
for policy in selective h2o tova streaming window random; do
  json "budgets of the decoder with $policy" ".tokens > 0 and .policy == \"$policy\" and .budget_tokens == 3" \
    "${fill[@]}" --tokens 16 --temperature 0 --budgets 3 --policy $policy --ignore-end
done
printf '{"document": "The cat"}\n{"document": "A ship"}\n' >documents.jsonl
succeeds "a prompt for each line" generate --model fill --jsonl documents.jsonl --out filled.jsonl \
  --prompt "{document} <extra_id_0> the sea." --tokens 8
if jq -es 'length == 2 and all(.[]; (.spans | length) == 1 and (.prediction | type) == "string") and
           (.[1].filled | startswith("A ship"))' filled.jsonl >/dev/null; then
  pass "lines with predictions, spans and filled texts"
else
  fail "lines with predictions, spans and filled texts" "$(cat filled.jsonl)"
fi
refuses "a prompt that lacks nothing" 1 'no <extra_id_0>' generate --model fill --prompt "The cat"
refuses "marks out of order" 1 '<extra_id_1> where <extra_id_0>' generate --model fill --prompt "The <extra_id_1>"
refuses "more marks than sentinels" 1 '<extra_id_7> is one too many' generate --model fill \
  --prompt "$(for i in 0 1 2 3 4 5 6 7; do printf 'a <extra_id_%s> ' $i; done)"
refuses "a prompt longer than the encoder reads" 1 'the encoder of fill reads at most 40' generate --model fill \
  --prompt "$(head -c 1000 text.txt)<extra_id_0>"
refuses "an encoder-decoder holds no conversation" 1 'encoder-decoder' generate --model fill --chat --prompt x
refuses "nor does winnow chat" 1 'encoder-decoder' chat fill --template chatml
refuses "a recipe of a decoder" 1 'span_corruption' generate --model fill --config recipe.json --prompt "a <extra_id_0>"
refuses "a recipe for a decoder" 1 'encoder-decoder' generate --model whole --config fill.json --prompt a
mv fill/recipe.json kept.json
refuses "a checkpoint without its recipe" 1 'no recipe.json' generate --model fill --prompt "a <extra_id_0>"
json "its recipe by --config" '.spans | length == 1' generate --model fill --config kept.json --prompt "a <extra_id_0>" --tokens 4
mv kept.json fill/recipe.json
json "bench decode of an encoder-decoder" '.results[0].kv_bytes > 0 and .results[0].allocations == 0 and .cache == "float"' \
  bench decode --model fill --contexts 4 --repeats 2 --warmup 1
# adapt must start from the same function, which is checked on the encoder's inputs.
adapt=(adapt fill --config fill.json --set train.steps=1 --set train.eval_every=0)
refuses "adapt: an encoder-decoder with what has no neutral start" 1 'does not start as fill: .* logits differ' \
  "${adapt[@]}" --out narrow --set model.attention.window=2
json "adapt: an encoder-decoder that starts as it was" '.step == 1' \
  "${adapt[@]}" --out gated --set model.attention.exclusive.enabled=true
refuses "eval of a text by an encoder-decoder" 1 'has an encoder' eval fill --text line.txt
for what in attention meaningful "survival --budgets 8"; do
  refuses "analyze $what: a text for an encoder-decoder" 1 'line.txt: the model has an encoder, .*: --data$' analyze $what fill --text line.txt
done
refuses "prune search of an encoder-decoder" 1 'has an encoder' prune search fill --search data/val.bin --report data/val.bin --policy h2o --target 9 --out bad-search
refuses "prune compare of an encoder-decoder" 1 'has an encoder' prune compare --standard fill --data data/val.bin --rows 2 --budgets 8 --policies window --out bad-compare
refuses "its encoder does not select" 1 'no selective encoder' analyze selection fill --encoder --data data/val.bin
succeeds "a selective encoder trains" train --config fill.json --set model.encoder.selective=true --set train.steps=2 \
  --set train.warmup=1 --out select --quiet
json "what a selective encoder selects: all cells, without weights" \
  '.tokens == 40 and (.layers | length) == 1 and (.layers[0].F | length == 40 and all(length == 40)) and .layers[0].F[39][0] == 0 and
   .layers[0].F[1][1] >= 0 and (.layers[0].masked_cells[0][39] >= 0)' \
  analyze selection select --encoder --data data/val.bin --sequences 3
refuses "the decoder of such a model" 1 'an encoder cannot be shown' analyze selection select --data data/val.bin
