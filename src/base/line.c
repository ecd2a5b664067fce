/* Makes text of unknown origin safe to show as one line in a terminal, a log or JSON. Names in files are bytes that
 * strangers chose: a terminal would obey escape sequences in them, and a UTF-8 decoder would fail on half a
 * character. */
#include "winnow/context.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* The length of the UTF-8 sequence at the beginning of text; 0: invalid (RFC 3629: no surrogates, no overlong
 * forms). */
static size_t line_sequence(const unsigned char *text, uint32_t *point) {
  const unsigned char c = text[0];
  const size_t n = c < 0x80 ? 1 : c >= 0xC2 && c < 0xE0 ? 2 : c >= 0xE0 && c < 0xF0 ? 3 : c >= 0xF0 && c < 0xF5 ? 4 : 0;
  if (n < 2) return *point = c, n;
  uint32_t code = c & (0x7Fu >> n);
  for (size_t i = 1; i < n; i++) {
    if ((text[i] & 0xC0) != 0x80) return 0; /* also ends at the NUL */
    code = code << 6 | (text[i] & 0x3Fu);
  }
  *point = code;
  const bool overlong = (n == 3 && code < 0x800) || (n == 4 && code < 0x10000);
  return overlong || (code >= 0xD800 && code < 0xE000) || code > 0x10FFFF ? 0 : n;
}

/* Control characters: C0, DEL and C1; line and paragraph separators; those that change the text direction. */
static bool line_controls(uint32_t c) {
  return c < 0x20 || (c >= 0x7F && c < 0xA0) || c == 0x61C || c == 0x200E || c == 0x200F ||
         (c >= 0x2028 && c <= 0x202E) || (c >= 0x2066 && c <= 0x2069) || c == 0xFEFF;
}

size_t wn_line_escape(const char *text, char *out, size_t bytes) {
  static const char hex[] = "0123456789abcdef";
  const unsigned char *at = (const unsigned char *)(text ? text : "");
  size_t n = 0;
  if (!out || bytes == 0) return 0;
  while (*at) {
    uint32_t point = 0;
    size_t length = line_sequence(at, &point);
    if (length == 1 && strchr("\n\r\t", (int)point)) {
      if (n + 1 >= bytes) break;
      out[n++] = ' ';
    } else if (length > 0 && !line_controls(point)) {
      if (n + length >= bytes) break;
      memcpy(out + n, at, length);
      n += length;
    } else {
      if (length == 0) length = 1;
      if (n + 4 * length >= bytes) break;
      for (size_t i = 0; i < length; i++) {
        out[n++] = '\\';
        out[n++] = 'x';
        out[n++] = hex[at[i] >> 4];
        out[n++] = hex[at[i] & 15];
      }
    }
    at += length;
  }
  out[n] = 0;
  return n;
}
