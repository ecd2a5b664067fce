/* Vocabularies; see vocab.h. */
#include "text/vocab.h"

#include <string.h>
#include "base/alloc.h"
#include "base/error.h"
#include "base/limits.h"
#include "text/utf8.h"

#define ARENA_LIMIT ((size_t)1 << 30)

wn_status wn_vocab_create(wn_context *ctx, const char *name, int32_t size, struct wn_vocab *out) {
  *out = (struct wn_vocab){0};
  if (size < 1 || size > WN_LIMIT_VOCABULARY)
    return wn_fail(ctx, WN_ERR_FORMAT, "%s: %d tokens, expected 1 to %d", name, size, WN_LIMIT_VOCABULARY);
  WN_TRY(WN_ALLOC(ctx, "tokenizer", size, &out->tokens));
  out->size = size;
  return WN_OK;
}
void wn_vocab_clear(struct wn_vocab *v) {
  wn_free(v->tokens);
  wn_free(v->arena);
  wn_free(v->slots);
  *v = (struct wn_vocab){0};
}

wn_status wn_vocab_set(wn_context *ctx, const char *name, struct wn_vocab *v, int32_t id, const char *text,
                       size_t bytes, enum wn_token_kind kind) {
  if (bytes > WN_TOKEN_MAX_BYTES)
    return wn_fail(ctx, WN_ERR_FORMAT, "%s: token %d is %zu bytes long, expected at most %d", name, id, bytes,
                   WN_TOKEN_MAX_BYTES);
  if (v->used + bytes > ARENA_LIMIT) return wn_fail(ctx, WN_ERR_FORMAT, "%s: the tokens are too long", name);
  WN_TRY(WN_GROW(ctx, "tokenizer", &v->arena, v->used, bytes, &v->room));
  if (bytes) memcpy(v->arena + v->used, text, bytes);
  struct wn_token *t = &v->tokens[id];
  t->at = (uint32_t)v->used;
  t->bytes = (uint32_t)bytes;
  t->kind = (uint8_t)kind;
  v->used += bytes;
  return WN_OK;
}

uint64_t wn_hash_bytes(const char *data, size_t bytes) {
  uint64_t h = 0x9E3779B97F4A7C15u ^ (bytes * 0xFF51AFD7ED558CCDu);
  while (bytes >= 8) {
    uint64_t word;
    memcpy(&word, data, 8);
    h = (h ^ word) * 0xBF58476D1CE4E5B9u;
    h ^= h >> 29;
    data += 8;
    bytes -= 8;
  }
  uint64_t word = 0;
  memcpy(&word, data, bytes);
  h = (h ^ word) * 0x94D049BB133111EBu;
  return h ^ h >> 31;
}

wn_status wn_vocab_index(wn_context *ctx, const char *name, struct wn_vocab *v) {
  uint32_t room = 64;
  while (room < 2u * (uint32_t)v->size) room *= 2;
  WN_TRY(WN_ALLOC(ctx, "tokenizer", room, &v->slots));
  v->mask = room - 1;
  memset(v->slots, 0xFF, room * sizeof *v->slots);
  for (int32_t id = 0; id < v->size; id++) {
    const struct wn_token *t = &v->tokens[id];
    if (!t->model || t->bytes == 0) continue;
    uint32_t at = (uint32_t)wn_hash_bytes(wn_vocab_text(v, id), t->bytes) & v->mask;
    uint32_t steps = 0;
    for (; v->slots[at] >= 0; at = (at + 1) & v->mask) {
      const struct wn_token *other = &v->tokens[v->slots[at]];
      if (other->bytes == t->bytes && !memcmp(v->arena + other->at, v->arena + t->at, t->bytes))
        return wn_fail(ctx, WN_ERR_FORMAT, "%s: tokens %d and %d are the same text", name, v->slots[at], id);
      if (++steps > 4096) return wn_fail(ctx, WN_ERR_FORMAT, "%s: the tokens collide in the index", name);
    }
    v->slots[at] = id;
  }
  return WN_OK;
}

int32_t wn_vocab_find(const struct wn_vocab *v, const char *text, size_t bytes) {
  if (!v->slots || bytes == 0) return -1;
  uint32_t at = (uint32_t)wn_hash_bytes(text, bytes) & v->mask;
  for (; v->slots[at] >= 0; at = (at + 1) & v->mask) {
    const struct wn_token *t = &v->tokens[v->slots[at]];
    if (t->bytes == bytes && !memcmp(v->arena + t->at, text, bytes)) return v->slots[at];
  }
  return -1;
}

/* --- the byte alphabet --- */

/* Bytes that do not map to themselves, in order: 0x00 to 0x20, 0x7F to 0xA0, 0xAD. */
int32_t wn_byte_alphabet(unsigned byte) {
  if (byte <= 0x20) return 0x100 + (int32_t)byte;
  if (byte >= 0x7F && byte <= 0xA0) return 0x100 + 33 + (int32_t)(byte - 0x7F);
  return byte == 0xAD ? 0x100 + 67 : (int32_t)byte;
}
static int byte_of_alphabet(int32_t code_point) {
  if (code_point < 0 || code_point > 0x100 + 67) return -1;
  if (code_point < 0x100) return wn_byte_alphabet((unsigned)code_point) == code_point ? code_point : -1;
  int k = code_point - 0x100;
  return k < 33 ? k : k < 67 ? 0x7F + (k - 33) : 0xAD;
}

bool wn_alphabet_decode(const char *text, size_t bytes, char *out, size_t *out_bytes) {
  size_t n = 0;
  for (size_t i = 0; i < bytes;) {
    unsigned char lead = (unsigned char)text[i];
    int32_t point = lead;
    if (lead >= 0x80) { /* the whole alphabet is below U+0800 */
      if (wn_utf8_sequence(text + i, bytes - i) != 2) return false;
      point = (lead & 0x1F) << 6 | ((unsigned char)text[i + 1] & 0x3F);
      i++;
    }
    i++;
    int byte = byte_of_alphabet(point);
    if (byte < 0) return false;
    out[n++] = (char)(unsigned char)byte;
  }
  *out_bytes = n;
  return true;
}
