/* XXH3, and the text that holds the checksums. The implementation is compiled in (XXH_INLINE_ALL). With SSE2, which
 * every x86-64 processor has, it is faster than memory. */
#include "io/checksum.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/parallel.h"

_Static_assert(sizeof(XXH3_state_t) <= sizeof(struct wn_checksum_stream), "the stream holds XXH3's state");
_Static_assert(_Alignof(XXH3_state_t) <= _Alignof(struct wn_checksum_stream), "aligned as XXH3 needs it");

enum { START = 4, SUM = 17, DIGITS = 16 }; /* "xxh3", and " 0123456789abcdef" for each sum */

uint64_t wn_checksum(const void *data, size_t bytes) {
  return XXH3_64bits(bytes ? data : "", bytes);
}

void wn_checksum_begin(struct wn_checksum_stream *s) {
  XXH3_64bits_reset((XXH3_state_t *)(void *)s->state);
}
void wn_checksum_add(struct wn_checksum_stream *s, const void *data, size_t bytes) {
  if (bytes) XXH3_64bits_update((XXH3_state_t *)(void *)s->state, data, bytes);
}
uint64_t wn_checksum_end(const struct wn_checksum_stream *s) {
  return XXH3_64bits_digest((const XXH3_state_t *)(const void *)s->state);
}

size_t wn_checksum_text_bytes(int count) {
  return START + SUM * (size_t)count;
}

void wn_checksum_text_put(char *text, int i, uint64_t sum) {
  char digits[SUM + 1];
  snprintf(digits, sizeof digits, " %016" PRIx64, sum);
  memcpy(text + START + SUM * (size_t)i, digits, SUM);
}

void wn_checksum_text_blank(char *text, int count) {
  memcpy(text, "xxh3", START);
  for (int i = 0; i < count; i++) wn_checksum_text_put(text, i, 0);
  text[wn_checksum_text_bytes(count)] = 0;
}

static bool checksum_read(const char *text, uint64_t *out) {
  uint64_t sum = 0;
  if (text[0] != ' ') return false;
  for (int i = 1; i < SUM; i++) {
    const char c = text[i];
    const int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
    if (digit < 0) return false;
    sum = sum << 4 | (uint64_t)digit;
  }
  *out = sum;
  return true;
}

/* Reads all of them; false unless the text is exactly of that form. */
static bool checksum_text_get(const char *text, size_t bytes, int count, uint64_t *sums /* [count] */) {
  if (bytes != wn_checksum_text_bytes(count) || memcmp(text, "xxh3", START) != 0) return false;
  for (int i = 0; i < count; i++)
    if (!checksum_read(text + START + SUM * (size_t)i, &sums[i])) return false;
  return true;
}

bool wn_checksum_text_is(const char *text, size_t bytes) {
  uint64_t sum;
  return bytes >= START + SUM && memcmp(text, "xxh3", START) == 0 && checksum_read(text + START, &sum);
}

uint64_t wn_checksum_header(const void *header, size_t bytes, size_t at) {
  const char *all = header;
  const size_t sum = at + START + 1, after = sum + DIGITS;
  struct wn_checksum_stream s;
  wn_checksum_begin(&s);
  wn_checksum_add(&s, all, sum);
  wn_checksum_add(&s, "0000000000000000", DIGITS);
  wn_checksum_add(&s, all + after, bytes - after);
  return wn_checksum_end(&s);
}

static int checksum_compare_places(const void *a, const void *b) {
  const struct wn_checksum_part *x = a, *y = b;
  if (x->data != y->data) return x->data < y->data ? -1 : 1;
  return x->bytes < y->bytes ? -1 : x->bytes > y->bytes;
}

void wn_checksum_sort(struct wn_checksum_part *parts, int count) {
  if (count > 0) qsort(parts, (size_t)count, sizeof *parts, checksum_compare_places);
}

wn_status wn_checksum_damaged(wn_context *ctx, const char *file, const char *what) {
  return wn_fail(ctx, WN_ERR_FORMAT, "%s: the header is damaged: %s", file, what);
}

struct checksum_work {
  const struct wn_checksum_part *parts;
  atomic_int damaged, first; /* how many; the first of them */
};
static void checksum_compare_part(void *args, int64_t i) {
  struct checksum_work *c = args;
  if (wn_checksum(c->parts[i].data, c->parts[i].bytes) == c->parts[i].sum) return;
  int first = c->first;
  c->damaged++;
  while (i < first && !atomic_compare_exchange_weak(&c->first, &first, (int)i)) {
  }
}

static wn_status checksum_compare(wn_context *ctx, const char *file, const struct wn_checksum_part *parts, int count) {
  struct checksum_work c = {.parts = parts, .first = count};
  wn_parallel_tasks(ctx ? wn_context_threads(ctx) : 1, count, checksum_compare_part, &c);
  if (c.damaged == 0) return WN_OK;
  const struct wn_checksum_part *first = &parts[c.first];
  char others[48] = "";
  if (c.damaged > 1) snprintf(others, sizeof others, "; %d more tensors are", c.damaged - 1);
  return wn_fail(ctx, WN_ERR_FORMAT,
                 "%s: tensor \"%.200s\" is damaged: its checksum is %016" PRIx64 ", its %zu bytes have %016" PRIx64
                 "%s",
                 file, first->name, first->sum, first->bytes, wn_checksum(first->data, first->bytes), others);
}

/* If another program kept the metadata but wrote other tensors, that looks like decay. The header of a hostile file may
 * have the text in one place and end after another one that only begins like it. */
wn_status wn_checksum_check(wn_context *ctx, const struct wn_checksums *c, struct wn_checksum_part *parts) {
  uint64_t *sums;
  WN_TRY(WN_ALLOC(ctx, "checksums", (size_t)c->count + 1, &sums));
  const char *wrong = NULL;
  if (!checksum_text_get(c->text, c->text_bytes, 1 + c->count, sums))
    wrong = "\"" WN_CHECKSUM_KEY "\" is not one checksum for each tensor";
  else if (c->at == 0 || c->at > c->header_bytes || c->header_bytes - c->at < c->text_bytes ||
           sums[0] != wn_checksum_header(c->header, c->header_bytes, c->at))
    wrong = "its checksum is that of another one (or a program copied the checksums)";
  for (int i = 0; parts && !wrong && i < c->count; i++) parts[i].sum = sums[1 + i];
  wn_free(sums);
  if (wrong) return wn_checksum_damaged(ctx, c->file, wrong);
  return parts ? checksum_compare(ctx, c->file, parts, c->count) : WN_OK;
}
