/* Encodes words: merges the neighbouring pair with the lowest rank, of equals the leftmost, until none is left. A short
 * word costs n^2 comparisons of ranks; a long one O(n log n), with a heap. Words up to WN_CACHE_WORD bytes are cached.
 */
#include "text/bpe_split.h"

#include <stdio.h>
#include <string.h>
#include "base/error.h"
#include "text/utf8.h"

#define SHORT_WORD 48 /* in symbols */

static inline uint64_t pair_hash(uint64_t pair) {
  pair *= 0x9E3779B97F4A7C15u;
  return pair ^ pair >> 32;
}

static inline const struct wn_merge *find_merge(const struct wn_bpe *bpe, int32_t left, int32_t right) {
  if (!bpe->merges) return NULL;
  uint64_t pair = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
  for (uint32_t at = (uint32_t)pair_hash(pair) & bpe->merge_mask;; at = (at + 1) & bpe->merge_mask) {
    const struct wn_merge *m = &bpe->merges[at];
    if (m->pair == pair) return m;
    if (m->pair == UINT64_MAX) return NULL;
  }
}

/* The first symbols of a word: bytes, or characters, where one without a token becomes bytes or the unknown token. */
static wn_status first_symbols(struct wn_bpe_scratch *s, const char *word, size_t bytes, size_t *out) {
  const struct wn_bpe *bpe = s->bpe;
  size_t n = 0;
  bool unknown = false; /* an unknown token is pending */
  if (bytes >= INT32_MAX / 2) {
    snprintf(s->error, sizeof s->error, "a word of %zu bytes is too long", bytes);
    return WN_ERR_UNSUPPORTED;
  }
  WN_TRY(WN_GROW(NULL, "tokenizer", &s->symbols, 0, bytes + 1, &s->symbol_room));
  for (size_t i = 0; i < bytes;) {
    int length = 1;
    int32_t id;
    if (bpe->byte_level) {
      id = bpe->byte_id[(unsigned char)word[i]];
    } else {
      length = wn_utf8_sequence(word + i, bytes - i);
      if (length < 1) length = 1;
      id = wn_vocab_find(&bpe->vocab, word + i, (size_t)length);
    }
    if (id >= 0) {
      if (unknown) s->symbols[n++].id = bpe->unknown;
      unknown = false;
      s->symbols[n++].id = id;
      i += (size_t)length;
      continue;
    }
    bool fallback = bpe->byte_fallback && !bpe->byte_level;
    for (int k = 0; k < length && fallback; k++) fallback = bpe->byte_id[(unsigned char)word[i + (size_t)k]] >= 0;
    for (int k = 0; k < length && fallback; k++) s->symbols[n++].id = bpe->byte_id[(unsigned char)word[i + (size_t)k]];
    i += (size_t)length;
    if (fallback || bpe->unknown < 0) continue;
    if (unknown && !bpe->fuse_unknown) s->symbols[n++].id = bpe->unknown;
    unknown = true;
  }
  if (unknown) s->symbols[n++].id = bpe->unknown;
  *out = n;
  return WN_OK;
}

/* Keeps the ranks of all pairs in an array and takes the lowest again and again. */
static size_t merge_short(const struct wn_bpe *bpe, struct wn_symbol *symbols, size_t n) {
  uint32_t rank[SHORT_WORD];
  int32_t becomes[SHORT_WORD], ids[SHORT_WORD];
  for (size_t i = 0; i < n; i++) ids[i] = symbols[i].id;
  for (size_t i = 0; i + 1 < n; i++) {
    const struct wn_merge *m = find_merge(bpe, ids[i], ids[i + 1]);
    rank[i] = m ? m->rank : UINT32_MAX;
    becomes[i] = m ? m->id : -1;
  }
  while (n > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < n; i++)
      if (rank[i] < rank[best]) best = i;
    if (rank[best] == UINT32_MAX) break;
    ids[best] = becomes[best];
    n--;
    for (size_t i = best + 1; i < n; i++) {
      ids[i] = ids[i + 1];
      rank[i - 1] = rank[i];
      becomes[i - 1] = becomes[i];
    }
    for (size_t i = best > 0 ? best - 1 : 0; i <= best && i + 1 < n; i++) {
      const struct wn_merge *m = find_merge(bpe, ids[i], ids[i + 1]);
      rank[i] = m ? m->rank : UINT32_MAX;
      becomes[i] = m ? m->id : -1;
    }
  }
  for (size_t i = 0; i < n; i++) symbols[i].id = ids[i];
  return n;
}

static wn_status queue_pair(struct wn_bpe_scratch *s, int32_t at) {
  const struct wn_symbol *left = &s->symbols[at];
  if (left->next < 0) return WN_OK;
  const struct wn_symbol *right = &s->symbols[left->next];
  const struct wn_merge *m = find_merge(s->bpe, left->id, right->id);
  if (!m) return WN_OK;
  return wn_heap_push(&s->heap, (struct wn_candidate){.rank = m->rank, .at = at, .left = left->id, .right = right->id});
}

static wn_status merge_long(struct wn_bpe_scratch *s, size_t *count) {
  struct wn_symbol *symbols = s->symbols;
  const int32_t n = (int32_t)*count;
  s->heap.count = 0;
  for (int32_t i = 0; i < n; i++) {
    symbols[i].previous = i - 1;
    symbols[i].next = i + 1 < n ? i + 1 : -1;
  }
  for (int32_t i = 0; i < n; i++) WN_TRY(queue_pair(s, i));
  while (s->heap.count > 0) {
    struct wn_candidate c = wn_heap_pop(&s->heap);
    struct wn_symbol *left = &symbols[c.at];
    /* stale: one of the two was merged in the meantime */
    if (left->id != c.left || left->next < 0 || symbols[left->next].id != c.right) continue;
    const struct wn_merge *m = find_merge(s->bpe, c.left, c.right);
    if (!m) continue;
    struct wn_symbol *right = &symbols[left->next];
    left->id = m->id;
    right->id = -1;
    left->next = right->next;
    if (left->next >= 0) symbols[left->next].previous = c.at;
    if (left->previous >= 0) WN_TRY(queue_pair(s, left->previous));
    WN_TRY(queue_pair(s, c.at));
  }
  size_t kept = 0; /* never ahead of the reading position */
  for (int32_t i = 0, next; i >= 0; i = next) {
    next = symbols[i].next;
    symbols[kept++].id = symbols[i].id;
  }
  *count = kept;
  return WN_OK;
}

wn_status wn_bpe_encode_word(struct wn_bpe_scratch *s, const char *word, size_t bytes) {
  const struct wn_bpe *bpe = s->bpe;
  struct wn_cached_word *cached = NULL;
  if (bytes <= WN_CACHE_WORD) {
    cached = &s->cache[wn_hash_bytes(word, bytes) & (WN_CACHE_ENTRIES - 1)];
    if (cached->bytes == bytes && !memcmp(cached->word, word, bytes)) {
      struct wn_ids *ids = s->ids;
      if (ids->capacity - ids->count < WN_CACHE_IDS) return wn_ids_add(NULL, ids, cached->ids, cached->count);
      for (int i = 0; i < cached->count; i++) ids->data[ids->count + (size_t)i] = cached->ids[i];
      ids->count += cached->count;
      return WN_OK;
    }
  }
  const size_t first = s->ids->count;
  size_t n;
  int32_t whole = bpe->ignore_merges ? wn_vocab_find(&bpe->vocab, word, bytes) : -1;
  if (whole >= 0) {
    WN_TRY(wn_ids_add(NULL, s->ids, &whole, 1));
  } else {
    WN_TRY(first_symbols(s, word, bytes, &n));
    if (n > SHORT_WORD)
      WN_TRY(merge_long(s, &n));
    else
      n = merge_short(bpe, s->symbols, n);
    for (size_t i = 0; i < n; i++) WN_TRY(wn_ids_add(NULL, s->ids, &s->symbols[i].id, 1));
  }
  n = s->ids->count - first;
  if (cached && n <= WN_CACHE_IDS) {
    cached->bytes = (uint8_t)bytes;
    cached->count = (uint8_t)n;
    memcpy(cached->word, word, bytes);
    memcpy(cached->ids, s->ids->data + first, n * sizeof(int32_t));
  }
  return WN_OK;
}
