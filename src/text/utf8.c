/* UTF-8 validity; see utf8.h. */
#include "text/utf8.h"

#include <stdint.h>
#include <string.h>

int wn_utf8_sequence(const char *text, size_t bytes) {
  const unsigned char *s = (const unsigned char *)text;
  unsigned char lead = s[0], low = 0x80, high = 0xBF;
  int length;
  if (lead < 0x80) return 1;
  if (lead < 0xC2) return 0; /* a continuation byte, or an overlong form of ASCII */
  if (lead < 0xE0) {
    length = 2;
  } else if (lead < 0xF0) {
    length = 3;
    if (lead == 0xE0) low = 0xA0;  /* overlong */
    if (lead == 0xED) high = 0x9F; /* surrogates */
  } else if (lead < 0xF5) {
    length = 4;
    if (lead == 0xF0) low = 0x90;
    if (lead == 0xF4) high = 0x8F; /* above U+10FFFF */
  } else {
    return 0;
  }
  for (int i = 1; i < length; i++) {
    if ((size_t)i >= bytes) return -1;
    if (s[i] < low || s[i] > high) return 0;
    low = 0x80;
    high = 0xBF;
  }
  return length;
}

bool wn_utf8_check(const char *text, size_t bytes, size_t *bad) {
  size_t i = 0;
  while (i < bytes) {
    uint64_t eight;
    if (bytes - i >= sizeof eight) {
      memcpy(&eight, text + i, sizeof eight);
      if (!(eight & 0x8080808080808080ull)) {
        i += sizeof eight;
        continue;
      }
    }
    int length = wn_utf8_sequence(text + i, bytes - i);
    if (length <= 0) {
      *bad = i;
      return false;
    }
    i += (size_t)length;
  }
  return true;
}

size_t wn_utf8_characters(const char *text, size_t bytes) {
  size_t n = 0;
  for (size_t i = 0; i < bytes; i++) n += ((unsigned char)text[i] & 0xC0) != 0x80;
  return n;
}
