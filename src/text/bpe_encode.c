/* Byte-pair encoding of texts: what comes before words (bpe_word.c), added tokens and normalisation. */
#include "text/bpe_split.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include "base/error.h"
#include "text/utf8.h"

struct wn_bpe_pool {
  pthread_mutex_t lock;
  struct wn_bpe_scratch *free;
};

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
  wn_free(s->heap.all);
  wn_free(s);
}

static wn_status take_scratch(const struct wn_bpe *bpe, struct wn_bpe_scratch **out) {
  pthread_mutex_lock(&bpe->pool->lock);
  struct wn_bpe_scratch *s = bpe->pool->free;
  if (s) bpe->pool->free = s->next;
  pthread_mutex_unlock(&bpe->pool->lock);
  *out = s;
  if (s) return WN_OK;
  WN_TRY(WN_ALLOC(NULL, "tokenizer", 1, &s));
  s->bpe = bpe;
  wn_status status = WN_ALLOC(NULL, "tokenizer", WN_CACHE_ENTRIES, &s->cache);
  if (status != WN_OK) {
    destroy_scratch(s);
    return status;
  }
  *out = s;
  return WN_OK;
}

#define KEEP_SYMBOLS ((size_t)1 << 16) /* a scratch larger than this is freed after the call */

static void give_scratch(const struct wn_bpe *bpe, struct wn_bpe_scratch *s) {
  if (s->symbol_room > KEEP_SYMBOLS || s->heap.room > KEEP_SYMBOLS) {
    wn_free(s->symbols);
    wn_free(s->heap.all);
    s->symbols = NULL;
    s->symbol_room = 0;
    s->heap = (struct wn_heap){0};
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
  *out = NULL;
  struct wn_bpe *bpe;
  WN_TRY(WN_ALLOC(ctx, "tokenizer", 1, &bpe));
  bpe->unknown = -1;
  for (int i = 0; i < 256; i++) bpe->byte_id[i] = -1;
  wn_status status = WN_ALLOC(ctx, "tokenizer", 1, &bpe->pool);
  if (status != WN_OK) {
    wn_free(bpe);
    return status;
  }
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
