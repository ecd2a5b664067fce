/* The first part of the input is a JSON schema. Each byte of the rest chooses one of the allowed tokens. A schema is
 * accepted, or refused in one line. Every chosen token must be allowed, and complete text must be JSON. */
#include "fuzz/fuzz.h"

#include <jansson.h>
#include "text/constraint.h"

enum { END = 256 };

static struct wn_token_tree *tree_of_bytes(wn_context *ctx) {
  static const char *const more[] = {"\":", "\",", "{\"", "\"}",      "[[",       "]]", "}}",
                                     "12",  "tr",  "\\u", "\xC3\xA9", "\xE2\x82", "id"};
  enum { MORE = sizeof more / sizeof *more };
  static char single[256];
  static const int32_t end = END;
  struct wn_tree_token tokens[256 + MORE];
  struct wn_token_tree *out;
  for (int i = 0; i < 256; i++) {
    single[i] = (char)i;
    tokens[i] = (struct wn_tree_token){&single[i], 1, i};
  }
  for (int i = 0; i < MORE; i++)
    tokens[256 + i] = (struct wn_tree_token){more[i], (uint32_t)strlen(more[i]), END + 1 + i};
  HOLDS(wn_token_tree_create(ctx, tokens, 256 + MORE, END + 1 + MORE, &end, 1, &out) == WN_OK);
  return out;
}

/* The token that this byte chooses. */
static int32_t choose(const uint8_t *allowed, int32_t entries, uint8_t byte) {
  uint32_t count = 0;
  for (int32_t id = 0; id < entries; id++) count += allowed[id];
  HOLDS(count > 0);
  uint32_t left = byte % count;
  for (int32_t id = 0; id < entries; id++)
    if (allowed[id] && left-- == 0) return id;
  return -1;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static struct wn_token_tree *tree;
  wn_context *ctx = fuzz_context();
  const uint8_t *schema;
  if (!tree) tree = tree_of_bytes(ctx);
  const size_t bytes = fuzz_part(&data, &size, &schema);
  json_t *json = json_loadb((const char *)schema, bytes, JSON_DECODE_ANY, NULL);
  wn_constraint *c = NULL;
  if (!json) return 0;
  if (wn_constraint_create_tree(ctx, tree, json, &c) != WN_OK) {
    fuzz_refused(ctx);
    HOLDS(!c);
    json_decref(json);
    return 0;
  }
  char text[4096];
  size_t length = 0;
  for (size_t i = 0; i < size; i++) {
    const uint8_t *allowed = wn_constraint_allowed(c);
    HOLDS(allowed);
    HOLDS((bool)allowed[END] == wn_constraint_is_complete(c));
    const int32_t id = choose(allowed, tree->entries, data[i]);
    const uint32_t n = tree->at[id + 1] - tree->at[id];
    HOLDS(wn_constraint_accept(ctx, c, id) == WN_OK);
    if (id == END || length + n > sizeof text) break;
    memcpy(text + length, tree->text + tree->at[id], n);
    length += n;
  }
  if (wn_constraint_is_complete(c) && length < sizeof text - 8) {
    json_t *value = json_loadb(text, length, JSON_DECODE_ANY, NULL);
    HOLDS(value);
    json_decref(value);
  }
  wn_constraint_destroy(c);
  json_decref(json);
  return 0;
}
