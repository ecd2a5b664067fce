/* Unicode normalisation forms, through utf8proc's tables, in time linear in the text but for sorting runs of marks
 * (n log n), whatever the text. */
#ifndef WN_TEXT_NORMALIZE_H
#define WN_TEXT_NORMALIZE_H

#include <stdbool.h>
#include <stddef.h>
#include "winnow/context.h"

/* A growing buffer of bytes; {0} is an empty one. */
struct wn_bytes {
  char *data;
  size_t count, capacity;
};
wn_status wn_bytes_add(wn_context *ctx, struct wn_bytes *b, const char *more, size_t n); /* keeps a NUL after them */
void wn_bytes_clear(struct wn_bytes *b);

/* Appends text (UTF-8) in the form: composed (NFC) or not (NFD), compatible (NFKC, NFKD) or not. */
wn_status wn_unicode_normalize(const char *text, size_t bytes, bool composed, bool compatible, struct wn_bytes *out);
/* Appends text with each byte that is not part of a valid sequence as U+FFFD. */
wn_status wn_utf8_replace_bad(const char *text, size_t bytes, struct wn_bytes *out);

#endif
