/* The input is a Jinja template, and after its first NUL messages, each ended by a NUL. A template that is recognised
 * must render a system message, as must all built-in templates. Conversations are encoded with every template; special
 * tokens in messages stay plain text. */
#include "fuzz/fuzz.h"

#include "winnow/chat.h"
#include "winnow/tokenizer.h"

static void system_message(wn_context *ctx, const wn_chat_template *t, const char *jinja) {
  char *system = NULL;
  HOLDS(wn_chat_default_system(ctx, t, jinja, &system) == WN_OK);
  HOLDS(!system || strlen(system) <= strlen(jinja));
  wn_text_free(system);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static wn_tokenizer *tok;
  wn_context *ctx = fuzz_context();
  if (!tok) HOLDS(wn_tokenizer_load(ctx, "bytes", &tok) == WN_OK);
  char *copy = calloc(1, size + 1);
  HOLDS(copy);
  if (size) memcpy(copy, data, size);
  wn_chat_message messages[8];
  int count = 0;
  for (size_t at = strlen(copy) + 1; at <= size && count < 8; at += strlen(copy + at) + 1) {
    messages[count] = (wn_chat_message){.text = copy + at};
    messages[count].role = (wn_chat_role)(copy[at] % 3 == 0 ? 0 : copy[at] % 3 == 1 ? 1 : 2);
    count++;
  }
  const wn_chat_template *known = wn_chat_template_recognise(copy);
  if (known) HOLDS(wn_chat_template_find(wn_chat_template_name(known)) == known);
  for (int i = 0; i < wn_chat_template_count(); i++) {
    const wn_chat_template *t = wn_chat_template_at(i);
    system_message(ctx, t, copy);
    for (int opening = 0; opening < 2 && count > 0; opening++) {
      int32_t *ids = NULL;
      size_t n = 0;
      if (wn_chat_encode(ctx, tok, t, messages, count, opening, &ids, &n) != WN_OK) {
        fuzz_refused(ctx);
        continue;
      }
      for (size_t k = 0; k < n; k++) HOLDS(ids[k] >= 0 && ids[k] < wn_tokenizer_vocab_size(tok));
      wn_tokens_free(ids);
    }
  }
  free(copy);
  return 0;
}
