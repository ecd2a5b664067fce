/* Vocabularies; see vocab.h. */
#include "text/vocab.h"

#include <stdlib.h>
#include <string.h>
#include "base/alloc.h"
#include "base/error.h"
#include "base/limits.h"
#include "text/normalize.h"
#include "text/utf8.h"

#define ARENA_LIMIT ((size_t)1 << 30)

wn_status wn_vocab_create(wn_context *ctx, const char *name, int32_t size, struct wn_vocab *out) {
  *out = (struct wn_vocab){0};
  if (size < 1 || size > WN_LIMIT_VOCABULARY)
    return wn_fail(ctx, WN_ERR_FORMAT, "%s: %d tokens, expected 1 to %d", name, size, WN_LIMIT_VOCABULARY);
  void *p;
  WN_TRY(wn_alloc(ctx, "tokenizer", (size_t)size * sizeof *out->tokens, &p));
  out->tokens = p;
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
  if (v->used + bytes > v->room) {
    size_t room = v->room ? 2 * v->room : (size_t)v->size * 8 + 64;
    while (room < v->used + bytes) room *= 2;
    void *p;
    WN_TRY(wn_alloc(ctx, "tokenizer", room, &p));
    if (v->used) memcpy(p, v->arena, v->used);
    wn_free(v->arena);
    v->arena = p;
    v->room = room;
  }
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
  void *p;
  WN_TRY(wn_alloc(ctx, "tokenizer", room * sizeof *v->slots, &p));
  v->slots = p;
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

/* --- finder --- */

static int compare_texts(const void *a, const void *b, void *user) {
  const struct wn_finder_entry *x = a, *y = b;
  const char *texts = user;
  int order = memcmp(texts + x->at, texts + y->at, x->bytes < y->bytes ? x->bytes : y->bytes);
  if (!order) order = (x->bytes > y->bytes) - (x->bytes < y->bytes);
  return order ? order : (x->id > y->id) - (x->id < y->id);
}

static bool is_sought(const struct wn_token *t, bool normalized) {
  return (t->kind == WN_TOKEN_SPECIAL || t->kind == WN_TOKEN_ADDED) && t->bytes > 0 && t->normalized == normalized;
}

static wn_status finder_fill(const struct wn_vocab *v, bool normalized, wn_finder_rewrite_fn rewrite, const void *user,
                             struct wn_bytes *texts, struct wn_finder *out) {
  for (int32_t id = 0; id < v->size; id++) {
    const struct wn_token *t = &v->tokens[id];
    const size_t at = texts->count;
    if (!is_sought(t, normalized)) continue;
    if (rewrite)
      WN_TRY(rewrite(user, wn_vocab_text(v, id), t->bytes, texts));
    else
      WN_TRY(wn_bytes_add(NULL, texts, wn_vocab_text(v, id), t->bytes));
    if (texts->count == at) continue; /* rewriting left nothing of it, and an empty text is never found */
    out->order[out->count++] = (struct wn_finder_entry){at, texts->count - at, id};
    out->begins[(unsigned char)texts->data[at]] = true;
    out->special |= t->kind == WN_TOKEN_SPECIAL;
  }
  return WN_OK;
}

wn_status wn_finder_create(wn_context *ctx, const struct wn_vocab *v, bool normalized, wn_finder_rewrite_fn rewrite,
                           const void *user, struct wn_finder *out) {
  size_t count = 0;
  void *p;
  *out = (struct wn_finder){0};
  for (int32_t id = 0; id < v->size; id++) count += is_sought(&v->tokens[id], normalized);
  if (count == 0) return WN_OK;
  WN_TRY(wn_alloc(ctx, "tokenizer", count * sizeof *out->order, &p));
  out->order = p;
  struct wn_bytes texts = {0};
  const wn_status status = finder_fill(v, normalized, rewrite, user, &texts, out);
  out->texts = texts.data;
  if (status != WN_OK) return wn_fail(ctx, status, "out of memory: a tokenizer");
  if (out->count) qsort_r(out->order, (size_t)out->count, sizeof *out->order, compare_texts, out->texts);
  return WN_OK;
}
void wn_finder_clear(struct wn_finder *f) {
  wn_free(f->order);
  wn_free(f->texts);
  *f = (struct wn_finder){0};
}

/* order[lo, hi) holds texts that agree in their first `depth` bytes. Finds the first of them whose next byte is at
 * least `byte`; texts that end there come first. */
static int bound(const struct wn_finder *f, int lo, int hi, size_t depth, int byte) {
  while (lo < hi) {
    int middle = lo + (hi - lo) / 2;
    const struct wn_finder_entry *e = &f->order[middle];
    int here = e->bytes > depth ? (unsigned char)f->texts[e->at + depth] : -1;
    if (here < byte)
      lo = middle + 1;
    else
      hi = middle;
  }
  return lo;
}

static bool inside(size_t start, size_t end, const struct wn_span *spans, int count) {
  for (int i = 0; i < count; i++)
    if (start >= spans[i].begin && end <= spans[i].end) return true;
  return false;
}

bool wn_finder_next(const struct wn_finder *f, const struct wn_vocab *v, const struct wn_finder_text *in, size_t from,
                    struct wn_found *out) {
  if (f->count == 0) return false;
  for (size_t i = from; i < in->bytes; i++) {
    if (!f->begins[(unsigned char)in->text[i]]) continue;
    int lo = 0, hi = f->count;
    bool found = false;
    for (size_t depth = 0; i + depth < in->bytes && lo < hi; depth++) {
      int byte = (unsigned char)in->text[i + depth];
      lo = bound(f, lo, hi, depth, byte);
      hi = bound(f, lo, hi, depth, byte + 1);
      if (lo == hi) break;
      const struct wn_finder_entry *e = &f->order[lo];
      if (e->bytes != depth + 1) continue;
      if (v->tokens[e->id].kind == WN_TOKEN_SPECIAL && !inside(i, i + depth + 1, in->special, in->special_count))
        continue;
      found = true;
      *out = (struct wn_found){.at = {i, i + depth + 1}, .id = e->id};
    }
    if (found) return true;
  }
  return false;
}

/* --- the byte alphabet --- */

/* Bytes that do not map to themselves, in order: 0x00 to 0x20, 0x7F to 0xA0, 0xAD. */
int32_t wn_byte_alphabet(unsigned byte) {
  if (byte <= 0x20) return 0x100 + (int32_t)byte;
  if (byte >= 0x7F && byte <= 0xA0) return 0x100 + 33 + (int32_t)(byte - 0x7F);
  return byte == 0xAD ? 0x100 + 67 : (int32_t)byte;
}
int wn_byte_of_alphabet(int32_t code_point) {
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
    int byte = wn_byte_of_alphabet(point);
    if (byte < 0) return false;
    out[n++] = (char)(unsigned char)byte;
  }
  *out_bytes = n;
  return true;
}
