/* The whole input is a SentencePiece model. What loads encodes some texts, decodes every id, and streams. */
#include "fuzz/fuzz.h"

#include "winnow/tokenizer.h"

static const char *const texts[] = {
    "",
    " ",
    "a",
    "the quick  brown fox\njumps\n\n over",
    "gr\xC3\xBC\xC3\x9F \xEF\xAC\x81 \xF0\x9F\x8C\xBE\xE2\x96\x81x\t",
    "<s></s><unk><0x41>aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\r\n"};

static void stream(wn_context *ctx, const wn_tokenizer *tok, const int32_t *ids, size_t count) {
  wn_text_stream *s = NULL;
  HOLDS(wn_text_stream_create(ctx, tok, &s) == WN_OK);
  for (size_t i = 0; i < count; i++) {
    const char *text;
    size_t bytes;
    HOLDS(wn_text_stream_push(ctx, s, ids[i], &text, &bytes) == WN_OK);
    HOLDS(strlen(text) <= bytes);
  }
  wn_text_stream_destroy(s);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  wn_context *ctx = fuzz_context();
  wn_tokenizer *tok = NULL;
  if (wn_tokenizer_load(ctx, fuzz_file(data, size), &tok) != WN_OK) {
    fuzz_refused(ctx);
    HOLDS(!tok);
    return 0;
  }
  int32_t vocab = wn_tokenizer_vocab_size(tok);
  HOLDS(vocab > 0 && wn_tokenizer_bos(tok) < vocab && wn_tokenizer_eos(tok) < vocab);
  for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
    int32_t *ids = NULL;
    size_t count = 0, bytes = 0;
    char *text = NULL;
    if (wn_tokenizer_encode(ctx, tok, texts[i], strlen(texts[i]), i & 1, i & 2, &ids, &count) != WN_OK) {
      fuzz_refused(ctx);
      continue;
    }
    for (size_t k = 0; k < count; k++) HOLDS(ids[k] >= 0 && ids[k] < vocab);
    HOLDS(wn_tokenizer_decode(ctx, tok, ids, count, &text, &bytes) == WN_OK);
    wn_text_free(text);
    stream(ctx, tok, ids, count);
    wn_tokens_free(ids);
  }
  int32_t bad[] = {vocab, -1};
  for (int i = 0; i < 2; i++) {
    char *text = NULL;
    size_t bytes = 0;
    HOLDS(wn_tokenizer_decode(ctx, tok, &bad[i], 1, &text, &bytes) == WN_ERR_ARGUMENT);
  }
  for (int32_t id = 0; id < vocab; id++) {
    char *text = NULL;
    size_t bytes = 0;
    HOLDS(wn_tokenizer_decode(ctx, tok, &id, 1, &text, &bytes) == WN_OK);
    wn_text_free(text);
  }
  wn_tokenizer_destroy(tok);
  return 0;
}
