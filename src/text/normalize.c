/* Unicode normalisation (UAX #15): decompose, sort runs of combining marks by class, compose. utf8proc's own
 * decomposition moves each mark step by step, which is quadratic for a long run of marks; here runs are sorted. */
#include "text/normalize.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>
#include "base/alloc.h"
#include "base/error.h"
#include "text/utf8.h"

wn_status wn_bytes_add(wn_context *ctx, struct wn_bytes *b, const char *more, size_t n) {
  if (n == SIZE_MAX) return wn_fail(ctx, WN_ERR_MEMORY, "out of memory: text");
  WN_TRY(WN_GROW(ctx, "text", &b->data, b->count, n + 1, &b->capacity));
  if (n) memcpy(b->data + b->count, more, n);
  b->count += n;
  b->data[b->count] = 0;
  return WN_OK;
}
void wn_bytes_clear(struct wn_bytes *b) {
  wn_free(b->data);
  *b = (struct wn_bytes){0};
}

bool wn_begins_with_mark(const char *text, size_t bytes) {
  return bytes >= WN_SPACE_MARK_BYTES && !memcmp(text, WN_SPACE_MARK, WN_SPACE_MARK_BYTES);
}

wn_status wn_mark_spaces(wn_context *ctx, struct wn_bytes *b, const char *text, size_t bytes) {
  for (const char *space; (space = memchr(text, ' ', bytes)); text = space + 1) {
    const size_t n = (size_t)(space - text);
    WN_TRY(wn_bytes_add(ctx, b, text, n));
    WN_TRY(wn_bytes_add(ctx, b, WN_SPACE_MARK, WN_SPACE_MARK_BYTES));
    bytes -= n + 1;
  }
  return wn_bytes_add(ctx, b, text, bytes);
}

wn_status wn_utf8_replace_bad(const char *text, size_t bytes, struct wn_bytes *out) {
  while (bytes > 0) {
    size_t good = bytes;
    if (wn_utf8_check(text, bytes, &good)) good = bytes;
    if (good) WN_TRY(wn_bytes_add(NULL, out, text, good));
    if (good == bytes) break;
    WN_TRY(wn_bytes_add(NULL, out, "\xEF\xBF\xBD", 3));
    text += good + 1;
    bytes -= good + 1;
  }
  return WN_OK;
}

bool wn_unicode_is_space(int32_t point) {
  const utf8proc_category_t category = point > 127 ? utf8proc_category(point) : UTF8PROC_CATEGORY_CN;
  return (point >= 9 && point <= 13) || (point >= 28 && point <= 32) || point == 0x85 ||
         (category >= UTF8PROC_CATEGORY_ZS && category <= UTF8PROC_CATEGORY_ZP);
}

bool wn_unicode_is_word(const char *text, size_t bytes) {
  utf8proc_int32_t point;
  if (utf8proc_iterate((const utf8proc_uint8_t *)text, (utf8proc_ssize_t)bytes, &point) < 1) return false;
  switch (utf8proc_category(point)) {
  case UTF8PROC_CATEGORY_LU:
  case UTF8PROC_CATEGORY_LL:
  case UTF8PROC_CATEGORY_LT:
  case UTF8PROC_CATEGORY_LM:
  case UTF8PROC_CATEGORY_LO:
  case UTF8PROC_CATEGORY_MN:
  case UTF8PROC_CATEGORY_MC:
  case UTF8PROC_CATEGORY_ME:
  case UTF8PROC_CATEGORY_ND:
  case UTF8PROC_CATEGORY_NL:
  case UTF8PROC_CATEGORY_PC:
    return true;
  default: /* joiners, and letters in circles and squares */
    return point == 0x200C || point == 0x200D || (point >= 0x24B6 && point <= 0x24E9) ||
           (point >= 0x1F130 && point <= 0x1F149) || (point >= 0x1F150 && point <= 0x1F169) ||
           (point >= 0x1F170 && point <= 0x1F189);
  }
}

struct mark {
  int32_t point;
  int combining;
  uint32_t place;
};
static int compare_marks(const void *a, const void *b) {
  const struct mark *x = a, *y = b;
  if (x->combining != y->combining) return x->combining < y->combining ? -1 : 1;
  return (x->place > y->place) - (x->place < y->place);
}

static int combining_class(int32_t point) {
  return utf8proc_get_property(point)->combining_class;
}

/* Sorts each run of characters of class > 0; stable. */
static wn_status sort_marks(int32_t *points, size_t count) {
  struct mark *marks = NULL;
  size_t room = 0;
  for (size_t i = 0; i < count;) {
    if (points[i] < 0x300 || combining_class(points[i]) == 0) {
      i++;
      continue;
    }
    size_t end = i + 1;
    while (end < count && combining_class(points[end]) > 0) end++;
    size_t n = end - i;
    if (n > room) {
      wn_free(marks);
      marks = NULL;
      room = 2 * n;
      wn_status status = WN_ALLOC(NULL, "marks", room, &marks);
      if (status != WN_OK) return status;
    }
    if (n > 1) {
      for (size_t k = 0; k < n; k++)
        marks[k] = (struct mark){points[i + k], combining_class(points[i + k]), (uint32_t)k};
      qsort(marks, n, sizeof *marks, compare_marks);
      for (size_t k = 0; k < n; k++) points[i + k] = marks[k].point;
    }
    i = end;
  }
  wn_free(marks);
  return WN_OK;
}

static bool is_ascii(const char *text, size_t bytes) {
  for (size_t i = 0; i < bytes; i++)
    if (text[i] & 0x80) return false;
  return true;
}

wn_status wn_unicode_normalize(const char *text, size_t bytes, bool composed, bool compatible, struct wn_bytes *out) {
  if (is_ascii(text, bytes)) return wn_bytes_add(NULL, out, text, bytes);
  const utf8proc_option_t options =
      (utf8proc_option_t)(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | (compatible ? UTF8PROC_COMPAT : 0));
  size_t count = 0;
  int32_t *points = NULL;
  wn_status status = WN_OK;
  /* First pass: the length. Second: the characters. */
  for (int pass = 0; pass < 2 && status == WN_OK; pass++) {
    count = 0;
    for (size_t i = 0; i < bytes;) {
      utf8proc_int32_t point, parts[32];
      i += (size_t)utf8proc_iterate((const utf8proc_uint8_t *)text + i, (utf8proc_ssize_t)(bytes - i), &point);
      int boundary = 0;
      utf8proc_ssize_t n = utf8proc_decompose_char(point, parts, 32, options, &boundary);
      if (n < 0 || n > 32) n = 1, parts[0] = point;
      if (pass)
        for (utf8proc_ssize_t k = 0; k < n; k++) points[count + (size_t)k] = parts[k];
      count += (size_t)n;
    }
    if (pass == 0) status = WN_ALLOC(NULL, "text", count + 1, &points); /* utf8proc writes a terminator */
  }
  if (status == WN_OK) status = sort_marks(points, count);
  if (status == WN_OK && composed) {
    utf8proc_ssize_t left = utf8proc_normalize_utf32(points, (utf8proc_ssize_t)count,
                                                     (utf8proc_option_t)(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
    status = left < 0 ? WN_ERR_FORMAT : WN_OK;
    count = left < 0 ? 0 : (size_t)left;
  }
  for (size_t i = 0; i < count && status == WN_OK; i++) {
    utf8proc_uint8_t encoded[4];
    utf8proc_ssize_t n = utf8proc_encode_char(points[i], encoded);
    status = wn_bytes_add(NULL, out, (const char *)encoded, n > 0 ? (size_t)n : 0);
  }
  wn_free(points);
  return status;
}
