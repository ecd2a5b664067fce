/* The input is a Jinja template, and after its first NUL messages, each ended by a NUL. The template is read and run on
 * the messages, with tools and with each switch; what it gives is text whose bytes have an origin, or a refusal of one
 * line that names a line of the template. The built-in templates encode the same messages; special tokens in messages
 * stay plain text. */
#include "fuzz/fuzz.h"

#include <jansson.h>
#include "text/template/template.h"
#include "winnow/chat.h"
#include "winnow/tokenizer.h"

static void runs(wn_context *ctx, const char *jinja, json_t *messages, bool prompt) {
  json_t *own = json_pack("{s:s, s:s}", "bos_token", "<s>", "eos_token", "</s>");
  json_t *given =
      json_pack("{s:O, s:b, s:b, s:[{s:s, s:{s:s, s:{s:{s:{s:s}}}}}], s:f, s:n}", "messages", messages,
                "add_generation_prompt", prompt, "enable_thinking", !prompt, "tools", "type", "function", "function",
                "name", "f", "parameters", "properties", "a", "type", "string", "x", 2.5, "none");
  const size_t n = json_array_size(messages);
  const struct wn_template_input input = {.own = own,
                                          .given = given,
                                          .marked = {json_object_get(json_array_get(messages, n - 1), "content")},
                                          .now = 1767355200};
  struct wn_template_text text;
  HOLDS(own && given);
  const bool readable = wn_template_check(ctx, jinja) == WN_OK;
  if (!readable) fuzz_refused(ctx);
  if (wn_template_render(ctx, jinja, &input, &text) != WN_OK) {
    fuzz_refused(ctx);
    HOLDS(strstr(wn_context_error(ctx), "the chat template, line "));
  } else {
    HOLDS(readable && text.data[text.bytes] == 0);
    for (size_t i = 0; i < text.bytes; i++) HOLDS(text.from[i] <= WN_ORIGIN_MARKED2);
  }
  wn_template_text_clear(&text);
  json_decref(own);
  json_decref(given);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static const char *const roles[] = {"system", "user", "assistant"};
  static wn_tokenizer *tok;
  wn_context *ctx = fuzz_context();
  if (!tok) HOLDS(wn_tokenizer_load(ctx, "bytes", &tok) == WN_OK);
  char *copy = calloc(1, size + 1);
  HOLDS(copy);
  if (size) memcpy(copy, data, size);
  wn_chat_message messages[8];
  json_t *list = json_array();
  int count = 0;
  for (size_t at = strlen(copy) + 1; at <= size && count < 8; at += strlen(copy + at) + 1) {
    messages[count] = (wn_chat_message){.text = copy + at, .role = (wn_chat_role)(copy[at] & 0x7f) % 3};
    json_array_append_new(list, json_pack("{s:s, s:o}", "role", roles[messages[count].role], "content",
                                          json_stringn_nocheck(copy + at, strlen(copy + at))));
    count++;
  }
  for (int prompt = 0; prompt < 2; prompt++) runs(ctx, copy, list, prompt);
  if (wn_chat_template_recognise(copy)) {
    char *system = NULL;
    HOLDS(wn_chat_default_system(ctx, wn_chat_template_find("own"), copy, &system) == WN_OK);
    wn_text_free(system);
  }
  for (int i = 0; i < wn_chat_template_count(); i++) {
    for (int opening = 0; opening < 2 && count > 0; opening++) {
      int32_t *ids = NULL;
      size_t n = 0;
      if (wn_chat_encode(ctx, tok, wn_chat_template_at(i), messages, count, opening, &ids, &n) != WN_OK) {
        fuzz_refused(ctx);
        continue;
      }
      for (size_t k = 0; k < n; k++) HOLDS(ids[k] >= 0 && ids[k] < wn_tokenizer_vocab_size(tok));
      wn_tokens_free(ids);
    }
  }
  json_decref(list);
  free(copy);
  return 0;
}
