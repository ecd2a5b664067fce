/* Unicode normalisation forms with utf8proc's tables. Time is linear in the text, except n log n for runs of marks. */
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
wn_status wn_bytes_add(wn_context *ctx, struct wn_bytes *b, const char *more, size_t n); /* keeps a NUL at the end */
void wn_bytes_clear(struct wn_bytes *b);

/* U+2581, by which SentencePiece and Metaspace write a space. */
#define WN_SPACE_MARK "\xE2\x96\x81"
enum { WN_SPACE_MARK_BYTES = sizeof WN_SPACE_MARK - 1 };
bool wn_begins_with_mark(const char *text, size_t bytes);
/* Appends text with the mark for each space. */
wn_status wn_mark_spaces(wn_context *ctx, struct wn_bytes *b, const char *text, size_t bytes);

/* Appends text (UTF-8) in a normal form: composed (NFC, NFKC) or decomposed (NFD, NFKD), compatible (NFKC, NFKD) or
 * not. */
wn_status wn_unicode_normalize(const char *text, size_t bytes, bool composed, bool compatible, struct wn_bytes *out);
/* Does the text (UTF-8, not empty) begin with a character of a word (\\w: letters, marks, digits, connectors)? */
bool wn_unicode_is_word(const char *text, size_t bytes);
/* JSON's white space. */
static inline bool wn_json_is_space(char c) {
  return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}
/* White space as Python's str.isspace has it. point: of a character; a negative one is none. */
bool wn_unicode_is_space(int32_t point);
/* Appends text; each byte outside a valid sequence becomes U+FFFD. */
wn_status wn_utf8_replace_bad(const char *text, size_t bytes, struct wn_bytes *out);

#endif
