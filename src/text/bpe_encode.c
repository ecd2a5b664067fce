/* Encodes words: merges the neighbouring pair with the lowest rank, of equals the leftmost, until none is left. A short
 * word costs n^2 comparisons of ranks; a long one O(n log n), with a heap. Words up to WN_CACHE_WORD bytes are cached.
 * Then what comes before words: added tokens and normalisation. */
#include "text/bpe_split.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include "base/alloc.h"
#include "base/error.h"
#include "text/utf8.h"

#define SHORT_WORD 48 /* in symbols */

struct wn_bpe_pool {
  pthread_mutex_t lock;
  struct wn_bpe_scratch *free;
};

/* --- words --- */

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

static wn_status bpe_encode_reserve(void **data, size_t element, size_t *room, size_t need) {
  if (need <= *room) return WN_OK;
  size_t bytes, more = need > SIZE_MAX / 2 ? need : need + need / 2;
  void *p;
  if (!wn_mul_size(more, element, &bytes)) return WN_ERR_MEMORY;
  WN_TRY(wn_alloc(NULL, "tokenizer", bytes, &p));
  if (*room) memcpy(p, *data, *room * element);
  wn_free(*data);
  *data = p;
  *room = more;
  return WN_OK;
}

static wn_status symbols_room(struct wn_bpe_scratch *s, size_t count) {
  void *p = s->symbols;
  wn_status status = bpe_encode_reserve(&p, sizeof *s->symbols, &s->symbol_room, count);
  s->symbols = p;
  return status;
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
  WN_TRY(symbols_room(s, bytes + 1));
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

static inline bool bpe_encode_before(const struct wn_candidate *a, const struct wn_candidate *b) {
  return a->rank != b->rank ? a->rank < b->rank : a->at < b->at;
}

static wn_status heap_push(struct wn_bpe_scratch *s, int32_t at) {
  const struct wn_symbol *left = &s->symbols[at];
  if (left->next < 0) return WN_OK;
  const struct wn_merge *m = find_merge(s->bpe, left->id, s->symbols[left->next].id);
  if (!m) return WN_OK;
  if (s->heap_count == s->heap_room) {
    void *p = s->heap;
    wn_status status = bpe_encode_reserve(&p, sizeof *s->heap, &s->heap_room, s->heap_count + 64);
    s->heap = p;
    WN_TRY(status);
  }
  struct wn_candidate c = {.rank = m->rank, .at = at, .left = left->id, .right = s->symbols[left->next].id};
  size_t i = s->heap_count++;
  while (i > 0 && bpe_encode_before(&c, &s->heap[(i - 1) / 2])) {
    s->heap[i] = s->heap[(i - 1) / 2];
    i = (i - 1) / 2;
  }
  s->heap[i] = c;
  return WN_OK;
}

static struct wn_candidate heap_pop(struct wn_bpe_scratch *s) {
  struct wn_candidate top = s->heap[0], last = s->heap[--s->heap_count];
  size_t i = 0, n = s->heap_count;
  for (;;) {
    size_t child = 2 * i + 1;
    if (child >= n) break;
    if (child + 1 < n && bpe_encode_before(&s->heap[child + 1], &s->heap[child])) child++;
    if (!bpe_encode_before(&s->heap[child], &last)) break;
    s->heap[i] = s->heap[child];
    i = child;
  }
  if (n) s->heap[i] = last;
  return top;
}

static wn_status merge_long(struct wn_bpe_scratch *s, size_t *count) {
  struct wn_symbol *symbols = s->symbols;
  const int32_t n = (int32_t)*count;
  s->heap_count = 0;
  for (int32_t i = 0; i < n; i++) {
    symbols[i].previous = i - 1;
    symbols[i].next = i + 1 < n ? i + 1 : -1;
  }
  for (int32_t i = 0; i < n; i++) WN_TRY(heap_push(s, i));
  while (s->heap_count > 0) {
    struct wn_candidate c = heap_pop(s);
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
    if (left->previous >= 0) WN_TRY(heap_push(s, left->previous));
    WN_TRY(heap_push(s, c.at));
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

/* --- texts --- */

static bool is_white(const char *text, size_t bytes, size_t *length) {
  unsigned char c = (unsigned char)text[0];
  *length = 1;
  if (c < 0x80) return c == ' ' || (c >= '\t' && c <= '\r');
  int n = wn_utf8_sequence(text, bytes);
  if (n < 2 || n > 3) return false;
  *length = (size_t)n;
  unsigned point = n == 2
                       ? (c & 0x1Fu) << 6 | ((unsigned char)text[1] & 0x3Fu)
                       : (c & 0x0Fu) << 12 | ((unsigned char)text[1] & 0x3Fu) << 6 | ((unsigned char)text[2] & 0x3Fu);
  return point == 0x85 || point == 0xA0 || point == 0x1680 || (point >= 0x2000 && point <= 0x200A) || point == 0x2028 ||
         point == 0x2029 || point == 0x202F || point == 0x205F || point == 0x3000;
}

/* Where the white space at the end of text[from..end) begins. */
static size_t white_before(const char *text, size_t from, size_t end) {
  while (end > from) {
    size_t at = end - 1, length;
    while (at > from && ((unsigned char)text[at] & 0xC0) == 0x80) at--;
    if (!is_white(text + at, end - at, &length)) break;
    end = at;
  }
  return end;
}
static size_t white_after(const char *text, size_t from, size_t bytes) {
  size_t length;
  while (from < bytes && is_white(text + from, bytes - from, &length)) from += length;
  return from;
}

static wn_status normalize(const struct wn_bpe *bpe, struct wn_bytes room[2], const char **text, size_t *bytes) {
  for (int i = 0; i < bpe->normalize_count; i++) {
    const struct wn_normalize_step *step = &bpe->normalize[i];
    struct wn_bytes *out = &room[i & 1];
    out->count = 0;
    if (step->kind == WN_NORMALIZE_PREPEND) {
      if (*bytes) WN_TRY(wn_bytes_add(NULL, out, step->to, strlen(step->to)));
      WN_TRY(wn_bytes_add(NULL, out, *text, *bytes));
    } else if (step->kind == WN_NORMALIZE_REPLACE) {
      const char *at = *text, *found;
      size_t left = *bytes, from = strlen(step->from), to = strlen(step->to);
      while ((found = memmem(at, left, step->from, from))) {
        WN_TRY(wn_bytes_add(NULL, out, at, (size_t)(found - at)));
        WN_TRY(wn_bytes_add(NULL, out, step->to, to));
        left -= (size_t)(found - at) + from;
        at = found + from;
      }
      WN_TRY(wn_bytes_add(NULL, out, at, left));
    } else {
      bool composed = step->kind == WN_NORMALIZE_NFC || step->kind == WN_NORMALIZE_NFKC;
      bool compatible = step->kind == WN_NORMALIZE_NFKC || step->kind == WN_NORMALIZE_NFKD;
      WN_TRY(wn_unicode_normalize(*text, *bytes, composed, compatible, out));
    }
    *text = out->data;
    *bytes = out->count;
  }
  return WN_OK;
}

wn_status wn_bpe_normalize(const void *bpe, const char *text, size_t bytes, struct wn_bytes *out) {
  struct wn_bytes room[2] = {{0}};
  wn_status status = normalize(bpe, room, &text, &bytes);
  if (status == WN_OK) status = wn_bytes_add(NULL, out, text, bytes);
  wn_bytes_clear(&room[0]);
  wn_bytes_clear(&room[1]);
  return status;
}

/* Maps position `at` of a text to `normal`, its normalised form. SIZE_MAX: there is no such position, because the
 * characters on both sides became one. */
static wn_status place_in_normal(struct wn_bpe_scratch *s, const char *text, size_t bytes, size_t at,
                                 const struct wn_finder_text *normal, size_t *place) {
  const char *before = text;
  *place = at == bytes ? normal->bytes : at;
  if (at == 0 || at == bytes || s->bpe->normalize_count == 0) return WN_OK;
  WN_TRY(normalize(s->bpe, s->before, &before, place));
  if (*place > normal->bytes || memcmp(before, normal->text, *place) != 0) *place = SIZE_MAX;
  return WN_OK;
}

/* Maps the spans for special tokens in in->text[from..end) to positions of `part`, its normalised form. Cost: one pass
 * over the text for each span. */
static wn_status map_spans(struct wn_bpe_scratch *s, const struct wn_finder_text *in, size_t from, size_t end,
                           struct wn_finder_text *part) {
  s->spans.count = 0;
  for (int i = 0; i < in->special_count; i++) {
    const size_t a = in->special[i].begin > from ? in->special[i].begin - from : 0;
    const size_t b = (in->special[i].end < end ? in->special[i].end : end) - from;
    struct wn_span span;
    if (in->special[i].end <= from || in->special[i].begin >= end) continue;
    WN_TRY(place_in_normal(s, in->text + from, end - from, a, part, &span.begin));
    WN_TRY(place_in_normal(s, in->text + from, end - from, b, part, &span.end));
    if (span.begin == SIZE_MAX || span.end == SIZE_MAX) continue;
    WN_TRY(wn_bytes_add(NULL, &s->spans, (const char *)&span, sizeof span));
  }
  part->special = (const void *)s->spans.data;
  part->special_count = (int)(s->spans.count / sizeof(struct wn_span));
  return WN_OK;
}

/* Is the match part of a longer word? A character of a word stands beside it. */
static bool in_word(const struct wn_finder_text *in, struct wn_span at) {
  size_t before = at.begin;
  while (before > 0 && ((unsigned char)in->text[--before] & 0xC0) == 0x80) continue;
  return (at.begin > 0 && wn_unicode_is_word(in->text + before, at.begin - before)) ||
         (at.end < in->bytes && wn_unicode_is_word(in->text + at.end, in->bytes - at.end));
}

/* Splits at the finder's tokens. In the first pass the text between them is normalised and goes to the second finder;
 * in the second pass it becomes words. As in Hugging Face tokenizers the search goes on behind a match and not behind
 * the white space that the token absorbed: a token of white space there is found too. */
static wn_status encode_between(struct wn_bpe_scratch *s, const struct wn_finder_text *in, bool second, bool at_start) {
  const struct wn_bpe *bpe = s->bpe;
  struct wn_finder_walk *walk = &s->walks[second];
  size_t done = 0, from = 0;
  wn_finder_begin(walk, second ? &bpe->normalized : &bpe->raw, in);
  for (;;) {
    struct wn_found next = {.at = {in->bytes, in->bytes}};
    bool found;
    WN_TRY(wn_finder_next(walk, from, &found, &next));
    const struct wn_token *token = found ? &bpe->vocab.tokens[next.id] : NULL;
    size_t start = found ? next.at.begin : in->bytes, end = next.at.end;
    from = end;
    if (found && token->single_word && in_word(in, next.at)) continue;
    if (found && token->lstrip && start > done) start = white_before(in->text, done, start);
    if (found && token->rstrip) end = white_after(in->text, end, in->bytes);
    if (start > done && second) WN_TRY(wn_bpe_split(s, 0, in->text + done, start - done, at_start && done == 0));
    if (start > done && !second) {
      struct wn_finder_text part = {.text = in->text + done, .bytes = start - done};
      WN_TRY(normalize(bpe, s->normal, &part.text, &part.bytes));
      if (bpe->normalized.special.longest) WN_TRY(map_spans(s, in, done, start, &part));
      WN_TRY(encode_between(s, &part, true, at_start && done == 0));
    }
    if (!found) return WN_OK;
    WN_TRY(wn_ids_add(NULL, s->ids, &next.id, 1));
    done = end;
  }
}

static void destroy_scratch(struct wn_bpe_scratch *s) {
  if (!s) return;
  for (int i = 0; i < WN_BPE_STEPS; i++) {
    wn_matcher_destroy(s->matchers[i]);
    wn_bytes_clear(&s->copies[i]);
  }
  for (int i = 0; i < 2; i++) {
    wn_bytes_clear(&s->normal[i]);
    wn_bytes_clear(&s->before[i]);
    wn_bytes_clear(&s->walks[i].matches);
  }
  wn_bytes_clear(&s->spans);
  wn_free(s->cache);
  wn_free(s->symbols);
  wn_free(s->heap);
  wn_free(s);
}

static wn_status take_scratch(const struct wn_bpe *bpe, struct wn_bpe_scratch **out) {
  pthread_mutex_lock(&bpe->pool->lock);
  struct wn_bpe_scratch *s = bpe->pool->free;
  if (s) bpe->pool->free = s->next;
  pthread_mutex_unlock(&bpe->pool->lock);
  *out = s;
  if (s) return WN_OK;
  void *p;
  WN_TRY(wn_alloc(NULL, "tokenizer", sizeof *s, &p));
  s = p;
  s->bpe = bpe;
  wn_status status = wn_alloc(NULL, "tokenizer", WN_CACHE_ENTRIES * sizeof *s->cache, &p);
  if (status != WN_OK) {
    destroy_scratch(s);
    return status;
  }
  s->cache = p;
  *out = s;
  return WN_OK;
}

#define KEEP_SYMBOLS ((size_t)1 << 16) /* a scratch larger than this is freed after the call */

static void give_scratch(const struct wn_bpe *bpe, struct wn_bpe_scratch *s) {
  if (s->symbol_room > KEEP_SYMBOLS || s->heap_room > KEEP_SYMBOLS) {
    wn_free(s->symbols);
    wn_free(s->heap);
    s->symbols = NULL;
    s->heap = NULL;
    s->symbol_room = s->heap_room = 0;
  }
  for (int i = 0; i < 2; i++) {
    if (s->normal[i].capacity > KEEP_SYMBOLS) wn_bytes_clear(&s->normal[i]);
    if (s->before[i].capacity > KEEP_SYMBOLS) wn_bytes_clear(&s->before[i]);
  }
  for (int i = 0; i < WN_BPE_STEPS; i++)
    if (s->copies[i].capacity > KEEP_SYMBOLS) wn_bytes_clear(&s->copies[i]);
  pthread_mutex_lock(&bpe->pool->lock);
  s->next = bpe->pool->free;
  bpe->pool->free = s;
  pthread_mutex_unlock(&bpe->pool->lock);
}

wn_status wn_bpe_encode(const struct wn_bpe *bpe, const char *text, size_t bytes, const struct wn_span *special,
                        int special_count, bool at_start, struct wn_ids *ids, struct wn_encode_detail *why) {
  struct wn_bpe_scratch *s;
  const struct wn_finder_text all = {.text = text, .bytes = bytes, .special = special, .special_count = special_count};
  if (why) why->text[0] = 0;
  WN_TRY(take_scratch(bpe, &s));
  s->ids = ids;
  s->error[0] = 0;
  wn_status status = encode_between(s, &all, false, at_start);
  if (status != WN_OK && why) snprintf(why->text, sizeof why->text, "%s", s->error);
  give_scratch(bpe, s);
  return status;
}

/* --- create, destroy --- */

wn_status wn_bpe_create(wn_context *ctx, struct wn_bpe **out) {
  void *p;
  *out = NULL;
  WN_TRY(wn_alloc(ctx, "tokenizer", sizeof(struct wn_bpe), &p));
  struct wn_bpe *bpe = p;
  bpe->unknown = -1;
  for (int i = 0; i < 256; i++) bpe->byte_id[i] = -1;
  wn_status status = wn_alloc(ctx, "tokenizer", sizeof *bpe->pool, &p);
  if (status != WN_OK) {
    wn_free(bpe);
    return status;
  }
  bpe->pool = p;
  pthread_mutex_init(&bpe->pool->lock, NULL);
  *out = bpe;
  return WN_OK;
}

void wn_bpe_destroy(struct wn_bpe *bpe) {
  if (!bpe) return;
  for (struct wn_bpe_scratch *s = bpe->pool->free, *next; s; s = next) {
    next = s->next;
    destroy_scratch(s);
  }
  pthread_mutex_destroy(&bpe->pool->lock);
  wn_free(bpe->pool);
  for (int i = 0; i < bpe->split_count; i++) wn_pattern_destroy(bpe->split[i].pattern);
  for (int i = 0; i < bpe->normalize_count; i++) {
    wn_free(bpe->normalize[i].from);
    wn_free(bpe->normalize[i].to);
  }
  wn_finder_clear(&bpe->raw);
  wn_finder_clear(&bpe->normalized);
  wn_vocab_clear(&bpe->vocab);
  wn_free(bpe->merges);
  wn_free(bpe);
}
