# A sweep over recipe keys runs every combination once, in a folder of its own.
grid=(sweep --config recipe.json --set train.steps=6 --set train.save_every=3 --set train.eval_every=3 --set train.batch=4 --out swept)
run "$winnow" "${grid[@]}" --grid train.lr=0.01,0.003 --grid model.width=32,64 --dry-run
is "sweep --dry-run lists the runs" "swept/lr-0.01_width-32 swept/lr-0.01_width-64 swept/lr-0.003_width-32 swept/lr-0.003_width-64" "$(paste -sd' ' out)"
[ ! -e swept ] && pass "and writes nothing" || fail "and writes nothing" "$(ls swept)"
json "sweep trains every combination" '(.runs | length) == 2 and all(.runs[]; .step == 6 and .best_val_loss > 0) and
  (.runs | map(.best_val_loss)) == (.runs | map(.best_val_loss) | sort) and .report == "swept/report.html"' \
  "${grid[@]}" --grid train.lr=0.01 --grid model.width=32,64
is "each with its values" "32 64" "$(jq -r '.model.width' swept/lr-0.01_width-32/recipe.json swept/lr-0.01_width-64/recipe.json | paste -sd' ')"
# Unfinished runs are resumed, finished runs stay, and more values add runs.
touch -d '2001-01-01' swept/lr-0.01_width-32/model.safetensors
json "sweep with more values" '(.runs | length) == 4 and all(.runs[]; .step == 6)' \
  "${grid[@]}" --grid train.lr=0.01,0.003 --grid model.width=32,64
is "finished runs stay as they are" 978307200 "$(TZ=UTC stat -c %Y swept/lr-0.01_width-32/model.safetensors)"
is "the report has all of them" 4 "$(grep -o 'lr-0.0[0-9]*_width-[0-9]*, validation' swept/report.html | sort -u | wc -l)"
# After a kill the log can be ahead of the checkpoint. After an interrupt at the end the last evaluation can be missing.
cp -r swept behind
run "$winnow" train --config recipe.json --set train.steps=3 --set train.batch=4 --set train.lr=0.01 --set model.width=32 --out early --quiet
rm early/log.jsonl && cp early/* behind/lr-0.01_width-32
sed -i '$s/,"val_loss.*/}/' behind/lr-0.01_width-64/log.jsonl
json "a sweep of runs that only seem finished" '(.runs | length) == 4 and all(.runs[]; .step == 6 and .val_loss > 0)' \
  "${grid[@]/#swept/behind}" --grid train.lr=0.01,0.003 --grid model.width=32,64
is "goes on from the checkpoint" 6 "$(jq .step behind/lr-0.01_width-32/state.json)"
is "and makes up the evaluation" "$(jq .val_loss swept/lr-0.01_width-64/log.jsonl)" "$(jq .val_loss behind/lr-0.01_width-64/log.jsonl)"
refuses "a sweep with other settings in the same folder" 1 'sweep.json' "${grid[@]}" --set train.seed=4 --grid train.lr=0.01
cp -r swept damaged
printf '{' >damaged/sweep.json
refuses "a folder whose sweep.json is damaged" 1 'damaged/sweep.json' "${grid[@]/#swept/damaged}" --set train.seed=4 --grid train.lr=0.01
rm damaged/sweep.json
refuses "a folder with runs and without a sweep.json" 1 'damaged/lr-0.01_width-.*: a run is there and no damaged/sweep.json' \
  "${grid[@]/#swept/damaged}" --set train.seed=4 --grid train.lr=0.01 --grid model.width=32,64
is "layers by number" "swept/window_layers-10 swept/window_layers-01" \
  "$(run "$winnow" "${grid[@]}" --set model.attention.window=8 --grid model.attention.window_layers=10,01 --dry-run; paste -sd' ' out)"
refuses "a value that a key does not take" 1 'train.lr' "${grid[@]}" --grid train.lr=0.01,fast
refuses "a grid without values" 2 'KEY=VALUE' "${grid[@]}" --grid train.lr
refuses "a value given twice" 2 'twice' "${grid[@]}" --grid train.lr=1,1
refuses "a key given twice" 2 'twice' "${grid[@]}" --grid train.lr=1 --grid train.lr=2
succeeds "a sweep that evaluates nothing" sweep --config recipe.json --set train.steps=1 --set train.eval_every=0 --set train.batch=4 \
  --set data.val= --grid train.lr=0.01 --out unmeasured --quiet
is "has no losses to show" "lr-0.01 1 - -" "$(awk 'NR == 2 { print $1, $2, $3, $4 }' out)"
json "a folder whose name is not UTF-8" '.out == "m\\xe9" and .runs[0].run == "m\\xe9/lr-0.01"' sweep --config recipe.json --set train.steps=1 \
  --set train.batch=4 --grid train.lr=0.01 --out $'m\xe9' --quiet
json "a report into one" '.out == "m\\xe9.html"' report $'m\xe9/lr-0.01' --out $'m\xe9.html'
json "info of one" '.model == "m\\xe9/lr-0.01"' info $'m\xe9/lr-0.01'
refuses "a sweep of nothing" 2 '\-\-grid' "${grid[@]}"
is "values with commas" "swept/budgets-8~16 swept/budgets-16~16" "$(run "$winnow" "${grid[@]}" --grid 'train.prune.budgets=8,16;16,16' --dry-run; paste -sd' ' out)"
# The sweeps in docs/recipes.md.
[ -e recipes ] || ln -s "$root/recipes" recipes
count=0
while read -ra words; do
  count=$((count + 1))
  succeeds "docs/recipes.md: ${words[*]}" "${words[@]:1}" --dry-run
done < <(grep -E '^ *winnow sweep ' "$root/docs/recipes.md")
[ $count -ge 1 ] && pass "docs/recipes.md has sweeps" || fail "docs/recipes.md has sweeps" "$count"
