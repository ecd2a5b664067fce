/* The tokens of a tokenizer as a tree. */
#include "text/token_tree.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "text/json_machine.h"
#include "text/normalize.h"
#include "text/tokenizer_kinds.h"
#include "text/utf8.h"

static int tree_compare(const void *x, const void *y) {
  const struct wn_tree_token *a = x, *b = y;
  const uint32_t n = a->bytes < b->bytes ? a->bytes : b->bytes;
  const int order = n ? memcmp(a->text, b->text, n) : 0;
  if (order) return order;
  if (a->bytes != b->bytes) return a->bytes < b->bytes ? -1 : 1;
  return (a->id > b->id) - (a->id < b->id);
}

static uint32_t tree_common(const struct wn_tree_token *a, const struct wn_tree_token *b) {
  uint32_t n = 0;
  while (n < a->bytes && n < b->bytes && a->text[n] == b->text[n]) n++;
  return n;
}

static bool tree_ends_inside(const struct wn_tree_token *t) {
  for (uint32_t n = 1; n <= 3 && n <= t->bytes; n++)
    if ((unsigned char)t->text[t->bytes - n] >= 0xC0) return wn_utf8_sequence(t->text + t->bytes - n, n) < 0;
  return false;
}

/* If not all continuation bytes of a character are tokens themselves, tokens that end inside a character are left out:
 * what they begin might never be completed. */
static uint32_t tree_leave_out(struct wn_tree_token *tokens, uint32_t count) {
  bool has[256] = {false}, all = true;
  uint32_t kept = 0;
  for (uint32_t i = 0; i < count; i++)
    if (tokens[i].bytes == 1) has[(unsigned char)tokens[i].text[0]] = true;
  for (int byte = 0x80; byte < 0xC0; byte++) all = all && has[byte];
  for (uint32_t i = 0; i < count; i++)
    if (all || !tree_ends_inside(&tokens[i])) tokens[kept++] = tokens[i];
  return kept;
}

/* --- nodes --- */

static struct wn_tree_node tree_child(const struct wn_tree_node *up, unsigned char byte, uint32_t first) {
  struct wn_tree_node n = {.first = first, .own = first, .byte = byte, .string = WN_STRING_NONE};
  n.characters = up->characters;
  n.simple = up->simple && byte != '\\' && byte != 0x7F;
  if (up->string == WN_STRING_NONE) return n;
  n.string = (uint8_t)wn_json_string_step((enum wn_json_string)up->string, byte);
  if (up->string == WN_STRING_PLAIN && n.string != WN_STRING_NONE) n.characters++;
  return n;
}

static void tree_build(struct wn_token_tree *t, const struct wn_tree_token *tokens) {
  uint32_t path[WN_TREE_TOKEN_BYTES + 1] = {0}, depth = 0;
  t->nodes[0] = (struct wn_tree_node){.string = WN_STRING_PLAIN, .simple = true};
  t->node_count = 1;
  for (uint32_t i = 0; i < t->token_count; i++) {
    const uint32_t common = i ? tree_common(&tokens[i - 1], &tokens[i]) : 0;
    for (; depth > common; depth--) {
      t->nodes[path[depth]].end = t->node_count;
      t->nodes[path[depth]].last = i;
    }
    while (depth < tokens[i].bytes) {
      const struct wn_tree_node *up = &t->nodes[path[depth]];
      const unsigned char byte = (unsigned char)tokens[i].text[depth++];
      if (byte == '"' && up->string == WN_STRING_PLAIN) t->quotes[t->quote_count++] = t->node_count;
      path[depth] = t->node_count;
      t->nodes[t->node_count++] = tree_child(up, byte, i);
    }
    struct wn_tree_node *node = &t->nodes[path[depth]];
    node->own = i + 1;
    t->order[i] = tokens[i].id;
    t->characters[tokens[i].id] = node->string == WN_STRING_NONE ? WN_TREE_NOT_PLAIN : node->characters;
    t->simple[tokens[i].id] = node->string != WN_STRING_NONE && node->simple;
    if (tokens[i].bytes == 1) t->bytes[node->byte] = true;
  }
  for (;; depth--) {
    t->nodes[path[depth]].end = t->node_count;
    t->nodes[path[depth]].last = t->token_count;
    if (depth == 0) break;
  }
}

static void tree_put_text(struct wn_token_tree *t, const struct wn_tree_token *tokens) {
  for (uint32_t i = 0; i < t->token_count; i++) t->at[tokens[i].id + 1] = tokens[i].bytes;
  for (int32_t id = 0; id < t->entries; id++) t->at[id + 1] += t->at[id];
  for (uint32_t i = 0; i < t->token_count; i++) memcpy(t->text + t->at[tokens[i].id], tokens[i].text, tokens[i].bytes);
}

void wn_token_tree_destroy(struct wn_token_tree *t) {
  if (!t) return;
  void *const parts[] = {t->nodes, t->order, t->at, t->text, t->characters, t->simple, t->quotes, t->ends};
  for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) wn_free(parts[i]);
  wn_free(t);
}

static wn_status tree_allocate(wn_context *ctx, struct wn_token_tree *t, size_t nodes, size_t quotes, size_t text) {
  const struct {
    void *where;
    size_t bytes;
  } parts[] = {{&t->nodes, nodes * sizeof *t->nodes},
               {&t->order, (t->token_count + 1) * sizeof *t->order},
               {&t->at, ((size_t)t->entries + 1) * sizeof *t->at},
               {&t->text, text + 1},
               {&t->characters, (size_t)t->entries},
               {&t->simple, (size_t)t->entries},
               {&t->quotes, (quotes + 1) * sizeof *t->quotes},
               {&t->ends, (t->end_count + 1) * sizeof *t->ends}};
  for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
    void *memory;
    WN_TRY(wn_alloc(ctx, "a tree of tokens", parts[i].bytes, &memory));
    memcpy(parts[i].where, &memory, sizeof memory);
  }
  return WN_OK;
}

wn_status wn_token_tree_create(wn_context *ctx, struct wn_tree_token *tokens, uint32_t count, int32_t entries,
                               const int32_t *ends, uint32_t end_count, struct wn_token_tree **out) {
  size_t nodes = 1, quotes = 0, text = 0;
  *out = NULL;
  count = tree_leave_out(tokens, count);
  if (count) qsort(tokens, count, sizeof *tokens, tree_compare);
  for (uint32_t i = 0; i < count; i++) {
    const uint32_t common = i ? tree_common(&tokens[i - 1], &tokens[i]) : 0;
    for (uint32_t k = common; k < tokens[i].bytes; k++) quotes += tokens[i].text[k] == '"';
    nodes += tokens[i].bytes - common;
    text += tokens[i].bytes;
  }
  if (nodes > UINT32_MAX / 2 || text > UINT32_MAX / 2)
    return wn_fail(ctx, WN_ERR_UNSUPPORTED, "the tokenizer is too large for a constraint");
  struct wn_token_tree *t;
  WN_TRY(WN_ALLOC(ctx, "a tree of tokens", 1, &t));
  t->entries = entries;
  t->token_count = count;
  t->end_count = end_count;
  wn_status status = tree_allocate(ctx, t, nodes, quotes, text);
  if (status != WN_OK) {
    wn_token_tree_destroy(t);
    return status;
  }
  memset(t->characters, WN_TREE_NOT_PLAIN, (size_t)entries);
  if (end_count) memcpy(t->ends, ends, end_count * sizeof *ends);
  tree_build(t, tokens);
  tree_put_text(t, tokens);
  *out = t;
  return WN_OK;
}

/* --- from a tokenizer --- */

/* The byte of a token like "<0x41>". */
static int tree_byte_of(const wn_tokenizer *tok, int32_t id) {
  const int32_t *ids = tok->bpe ? tok->bpe->byte_id : tok->byte_id;
  for (int byte = 0; byte < 256; byte++)
    if (ids[byte] == id) return byte;
  return -1;
}

/* The text of an ordinary token as the tokenizer stores it. *marked: U+2581 means a space; *byte: the byte, if the
 * token is a single byte, else -1. Control tokens and tokens that end a text have no text. */
static void tree_token_of(const wn_tokenizer *tok, int32_t id, const char **text, size_t *bytes, bool *marked,
                          int *byte) {
  *text = "";
  *bytes = 0;
  *byte = -1;
  *marked = tok->bpe ? !tok->bpe->byte_level : true;
  if (wn_tokenizer_is_end(tok, id) || id == tok->bos || id == tok->eos || id == tok->known_bos) return;
  if (tok->bpe) {
    const struct wn_token *t = &tok->bpe->vocab.tokens[id];
    if (t->kind == WN_TOKEN_BYTE) *byte = tree_byte_of(tok, id);
    if (t->kind == WN_TOKEN_ADDED) *marked = false;
    if (t->kind == WN_TOKEN_TEXT || t->kind == WN_TOKEN_ADDED)
      *text = wn_vocab_text(&tok->bpe->vocab, id), *bytes = t->bytes;
  } else if (tok->spm) {
    const enum wn_spm_type type = wn_spm_piece(tok->spm, id, text, bytes);
    if (type == WN_SPM_BYTE) *byte = tree_byte_of(tok, id);
    if (type != WN_SPM_TEXT) *bytes = 0;
  } else {
    *byte = id;
  }
}

/* Appends what a token adds to a text, anywhere but at the text's beginning. */
static wn_status tree_add_token(wn_context *ctx, const wn_tokenizer *tok, int32_t id, struct wn_bytes *out) {
  const char *text;
  size_t bytes;
  bool marked;
  int byte;
  tree_token_of(tok, id, &text, &bytes, &marked, &byte);
  if (byte >= 0) return wn_bytes_add(ctx, out, &(char){(char)(unsigned char)byte}, 1);
  for (size_t i = 0; i < bytes;) {
    const bool space = marked && bytes - i >= 3 && !memcmp(text + i, "\xE2\x96\x81", 3);
    WN_TRY(wn_bytes_add(ctx, out, space ? " " : text + i, 1));
    i += space ? 3 : 1;
  }
  return WN_OK;
}

/* Collects the texts of all tokens, and where each begins. */
static wn_status tree_collect(wn_context *ctx, const wn_tokenizer *tok, struct wn_bytes *text,
                              struct wn_tree_token *tokens, uint32_t *count) {
  *count = 0;
  for (int32_t id = 0; id < tok->vocab_size; id++) {
    const size_t before = text->count;
    WN_TRY(tree_add_token(ctx, tok, id, text));
    const size_t bytes = text->count - before;
    if (bytes > WN_TREE_TOKEN_BYTES) text->count = before;
    if (text->count > before) tokens[(*count)++] = (struct wn_tree_token){NULL, (uint32_t)bytes, id};
  }
  const char *at = text->data; /* the buffer no longer moves */
  for (uint32_t i = 0; i < *count; i++) {
    tokens[i].text = at;
    at += tokens[i].bytes;
  }
  return WN_OK;
}

static wn_status tree_of(wn_context *ctx, const wn_tokenizer *tok, struct wn_token_tree **out) {
  struct wn_bytes text = {0};
  uint32_t count = 0;
  struct wn_tree_token *tokens;
  WN_TRY(WN_ALLOC(ctx, "a tree of tokens", (size_t)tok->vocab_size + 1, &tokens));
  wn_status status = tree_collect(ctx, tok, &text, tokens, &count);
  if (status == WN_OK)
    status = wn_token_tree_create(ctx, tokens, count, tok->vocab_size, tok->ends, (uint32_t)tok->end_count, out);
  wn_bytes_clear(&text);
  wn_free(tokens);
  return status;
}

wn_status wn_tokenizer_tree(wn_context *ctx, const wn_tokenizer *tok, const struct wn_token_tree **out) {
  struct wn_tokenizer *own = (struct wn_tokenizer *)(uintptr_t)tok; /* the tree is only a cache */
  wn_status status = WN_OK;
  pthread_mutex_lock(&own->tree_lock);
  if (!own->tree) status = tree_of(ctx, tok, &own->tree);
  *out = own->tree;
  pthread_mutex_unlock(&own->tree_lock);
  return status;
}
