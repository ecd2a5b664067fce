# A server of end_to_end.sh's trained model, queried by curl.
if ! command -v curl >/dev/null; then
  skip "winnow serve" "curl is not there"
else
  serves() { # MODEL OPTIONS...: starts a server; sets server to its pid and url to its address
    rm -f serve.out
    "$winnow" serve "$@" --port 0 --json >serve.out 2>serve.err </dev/null &
    server=$!
    for _ in $(seq 100); do [ -s serve.out ] && break; sleep 0.1; done
    url=http://127.0.0.1:$(jq -r .port serve.out)
  }
  serves talker --budgets 8 --policy window
  post() { curl -s "$url$1" -d "$2" >out; }
  is "serve: alive" "ok" "$(curl -s "$url/health" | jq -r .status)"
  is "serve: the model's name is its folder" "talker" "$(curl -s "$url/v1/models" | jq -r '.data[0].id')"
  post /v1/completions '{"prompt": "the water", "max_tokens": 12, "temperature": 0}'
  jq -r '.choices[0].text' out >served
  is "serve: what is kept" "8" "$(jq '.usage.winnow.tokens_kept[0]' out)"
  run "$winnow" generate talker --prompt "the water" --tokens 12 --temperature 0 --budgets 8 --policy window --json
  is "serve answers what generate writes" "$(jq -r .text out | sed 's/\xEF\xBF\xBD*$//')" "$(sed 's/\xEF\xBF\xBD*$//' served)"
  post /v1/completions '{"prompt": "the water", "max_tokens": 4, "wrong": 1}'
  is "serve: an unknown field is named" "wrong" "$(jq -r .error.param out)"
  curl -sN "$url/v1/completions" -d '{"prompt": "the water", "max_tokens": 12, "temperature": 0, "stream": true}' |
    sed -n 's/^data: {/{/p' | jq -j '.choices[0].text' >streamed
  is "serve: a stream has the same text" "$(cat served)" "$(cat streamed)"
  kill -TERM $server
  wait $server
  is "serve: an interrupt ends it" "0" "$?"
  serves talker --name $'caf\xe9' # file names may be such bytes
  is "serve: a name that is not UTF-8" 'caf\xe9 caf\xe9' "$(jq -r .model serve.out) $(curl -s "$url/v1/models" | jq -r '.data[0].id')"
  post /v1/completions '{"prompt": "the water", "max_tokens": 1}'
  is "serve: an answer under such a name" 'caf\xe9' "$(jq -r .model out)"
  kill -TERM $server
  wait $server
  # SentencePiece drops the space at the start of a text, but only there: later tokens keep theirs.
  serves whole
  printf 'the the' >the.txt
  the=$("$winnow" tokenizer encode --tokenizer whole the.txt --json | jq '.ids[-1]') # the token of " the"
  # Control tokens go by their names, and have no text.
  joined='.choices[0] | (.logprobs.tokens | map(select(. != "<s>")) | add) == .text and (.logprobs.tokens | length) > 2'
  post /v1/completions '{"prompt": "the cat sees the sea", "echo": true, "max_tokens": 0, "logprobs": 2}'
  is "serve: a prompt's tokens are its text" "true" "$(jq "$joined" out)"
  post /v1/completions '{"prompt": "the cat", "max_tokens": 3, "logprobs": 2, "logit_bias": {"'"$the"'": 100}}'
  is "serve: an answer's tokens are its text" "true" "$(jq "$joined" out)"
  kill -TERM $server
  wait $server
  refuses "serve: a key that is not there" 1 'nokey' serve talker --port 0 --api-key-file nokey
  refuses "serve: an address that is none" 1 'not an IP address' serve talker --port 0 --host nowhere
  refuses "serve: memory that is none" 2 'not a number of bytes' serve talker --port 0 --cache-memory much
  refuses "serve: without a model" 2 'winnow serve' serve
fi
