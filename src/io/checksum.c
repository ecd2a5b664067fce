/* XXH3, and the text that holds the checksums. The implementation is compiled in (XXH_INLINE_ALL). With SSE2, which
 * every x86-64 processor has, it is faster than memory. */
#include "io/checksum.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

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

bool wn_checksum_text_get(const char *text, size_t bytes, int count, uint64_t *sums) {
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

struct checksum_compare {
  const struct wn_checksum_part *parts;
  atomic_int damaged, first; /* how many; the first of them */
};
static void checksum_compare_part(void *args, int64_t i) {
  struct checksum_compare *c = args;
  if (wn_checksum(c->parts[i].data, c->parts[i].bytes) == c->parts[i].sum) return;
  int first = c->first;
  c->damaged++;
  while (i < first && !atomic_compare_exchange_weak(&c->first, &first, (int)i)) {
  }
}

wn_status wn_checksum_compare(wn_context *ctx, const char *file, const struct wn_checksum_part *parts, int count) {
  struct checksum_compare c = {.parts = parts, .first = count};
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
