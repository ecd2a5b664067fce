/* The input is a tokenizer.json, or a GGUF file if it starts with GGUF's magic. A tokenizer that loads must encode some
 * texts, with and without special tokens, decode every id, and load again after it is saved. */
#include "fuzz/fuzz.h"

#include <stdlib.h>
#include "winnow/chat.h"
#include "winnow/tokenizer.h"

static const char *const texts[] = {
    "",
    " ",
    "a",
    "the quick  brown fox\r\n jumps\n\n over 1234's <|im_end|>",
    "gr\xC3\xBC\xC3\x9F \xEF\xAC\x81 \xF0\x9F\x8C\xBE\xE2\x96\x81x\t e\xCC\x81",
    "bad \xFF\xC3 \xE2\x82 \xED\xA0\x80",
    "<s></s><unk><0x41>aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\r\n"};

static char folder[] = "/tmp/wn_fuzz_bpe_XXXXXX";
static void remove_folder(void) {
  static const char *const names[] = {"tokenizer.json", "tokenizer.model", "tokenizer_config.json", "input.json"};
  char path[64];
  for (int i = 0; i < 4; i++) {
    snprintf(path, sizeof path, "%s/%s", folder, names[i]);
    unlink(path);
  }
  rmdir(folder);
}

static void use(wn_context *ctx, const wn_tokenizer *tok) {
  int32_t vocab = wn_tokenizer_vocab_size(tok);
  HOLDS(vocab > 0 && wn_tokenizer_bos(tok) < vocab && wn_tokenizer_eos(tok) < vocab);
  for (size_t i = 0; i < 2 * sizeof texts / sizeof *texts; i++) {
    int32_t *ids = NULL;
    size_t count = 0, bytes = 0;
    char *text = NULL;
    const wn_text_part part = {texts[i / 2], strlen(texts[i / 2]), i & 1};
    if (wn_tokenizer_encode_parts(ctx, tok, &part, 1, false, false, &ids, &count) != WN_OK) {
      fuzz_refused(ctx);
      continue;
    }
    for (size_t k = 0; k < count; k++) HOLDS(ids[k] >= 0 && ids[k] < vocab);
    HOLDS(wn_tokenizer_decode(ctx, tok, ids, count, &text, &bytes) == WN_OK);
    wn_text_free(text);
    wn_tokens_free(ids);
  }
  for (int32_t id = 0; id < vocab && id < 2000; id++) {
    char *text = NULL;
    size_t bytes = 0;
    HOLDS(wn_tokenizer_decode(ctx, tok, &id, 1, &text, &bytes) == WN_OK);
    wn_text_free(text);
  }
  const char *jinja = wn_tokenizer_chat_template(tok);
  const wn_chat_template *t = jinja ? wn_chat_template_recognise(jinja) : NULL;
  char *system = NULL;
  if (t) HOLDS(wn_chat_default_system(ctx, t, jinja, &system) == WN_OK);
  wn_text_free(system);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  wn_context *ctx = fuzz_context();
  static bool made;
  char path[64];
  if (!made) {
    HOLDS(mkdtemp(folder));
    atexit(remove_folder);
    made = true;
  }
  const char *input = fuzz_file(data, size);
  if (size < 4 || memcmp(data, "GGUF", 4)) { /* by its name, tokenizer.json */
    snprintf(path, sizeof path, "%s/input.json", folder);
    FILE *f = fopen(path, "wb");
    HOLDS(f && fwrite(data, 1, size, f) == size && fclose(f) == 0);
    input = path;
  }
  wn_tokenizer *tok = NULL, *again = NULL;
  if (wn_tokenizer_load(ctx, input, &tok) != WN_OK) {
    fuzz_refused(ctx);
    HOLDS(!tok);
    return 0;
  }
  use(ctx, tok);
  /* A tokenizer that cannot be saved or loaded again must say why: JSON cannot hold every token's text, for example. */
  if (wn_tokenizer_save(ctx, tok, folder) != WN_OK || wn_tokenizer_load(ctx, folder, &again) != WN_OK)
    fuzz_refused(ctx);
  wn_tokenizer_destroy(again);
  wn_tokenizer_destroy(tok);
  return 0;
}
