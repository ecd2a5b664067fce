# Sourced by run and sweep: checks that the summaries in $out are by one model ($model) and of one length ($tokens).
is="$(realpath "$model"), $tokens tokens at most"
if [ "$(cat "$out/of.txt" 2>/dev/null || echo "$is")" != "$is" ]; then
  echo "bench/summaries/$(basename "$0"): $out holds summaries by $(cat "$out/of.txt"): expected $is, or another folder" >&2
  exit 2
fi
echo "$is" >"$out/of.txt"
