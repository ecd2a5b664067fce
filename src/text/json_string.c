/* Positions inside a JSON string. */
#include <string.h>

#include "text/json_machine.h"

static bool string_is_hex(unsigned char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

static enum wn_json_string string_begin(unsigned char c) {
  if (c < 0x20 || c == '"') return WN_STRING_NONE;
  if (c == '\\') return WN_STRING_ESCAPE;
  if (c < 0x80) return WN_STRING_PLAIN;
  if (c < 0xC2 || c > 0xF4) return WN_STRING_NONE;
  if (c < 0xE0) return WN_STRING_TAIL1;
  if (c < 0xF0) return c == 0xE0 ? WN_STRING_E0 : c == 0xED ? WN_STRING_ED : WN_STRING_TAIL2;
  return c == 0xF0 ? WN_STRING_F0 : c == 0xF4 ? WN_STRING_F4 : WN_STRING_TAIL3;
}

/* The second and later bytes of a character. */
static enum wn_json_string string_tail(enum wn_json_string s, unsigned char c) {
  static const struct {
    unsigned char low, high;
    enum wn_json_string next;
  } tails[] = {[WN_STRING_TAIL1] = {0x80, 0xBF, WN_STRING_PLAIN}, [WN_STRING_TAIL2] = {0x80, 0xBF, WN_STRING_TAIL1},
               [WN_STRING_TAIL3] = {0x80, 0xBF, WN_STRING_TAIL2}, [WN_STRING_E0] = {0xA0, 0xBF, WN_STRING_TAIL1},
               [WN_STRING_ED] = {0x80, 0x9F, WN_STRING_TAIL1},    [WN_STRING_F0] = {0x90, 0xBF, WN_STRING_TAIL2},
               [WN_STRING_F4] = {0x80, 0x8F, WN_STRING_TAIL2}};
  return c >= tails[s].low && c <= tails[s].high ? tails[s].next : WN_STRING_NONE;
}

/* The hexadecimal digits of an escape. The first ones may make it half of a surrogate pair; four zeros are not
 * allowed. */
static enum wn_json_string string_hex(enum wn_json_string s, unsigned char c) {
  const unsigned char lower = c | 0x20;
  if (!string_is_hex(c)) return WN_STRING_NONE;
  switch (s) {
  case WN_STRING_HEX4:
    return c == '0' ? WN_STRING_ZERO3 : lower == 'd' ? WN_STRING_D3 : WN_STRING_HEX3;
  case WN_STRING_ZERO3:
    return c == '0' ? WN_STRING_ZERO2 : WN_STRING_HEX2;
  case WN_STRING_ZERO2:
    return c == '0' ? WN_STRING_ZERO1 : WN_STRING_HEX1;
  case WN_STRING_ZERO1:
    return c == '0' ? WN_STRING_NONE : WN_STRING_PLAIN;
  case WN_STRING_D3: /* d800 to dbff begin a pair, dc00 to dfff would end one */
    return c >= '0' && c <= '7'                                   ? WN_STRING_HEX2
           : c == '8' || c == '9' || lower == 'a' || lower == 'b' ? WN_STRING_HIGH2
                                                                  : WN_STRING_NONE;
  case WN_STRING_HEX3:
    return WN_STRING_HEX2;
  case WN_STRING_HEX2:
    return WN_STRING_HEX1;
  case WN_STRING_HIGH2:
    return WN_STRING_HIGH1;
  case WN_STRING_HIGH1:
    return WN_STRING_PAIR;
  case WN_STRING_PAIR4:
    return lower == 'd' ? WN_STRING_PAIR3 : WN_STRING_NONE;
  case WN_STRING_PAIR3:
    return lower >= 'c' && lower <= 'f' ? WN_STRING_PAIR2 : WN_STRING_NONE;
  case WN_STRING_PAIR2:
    return WN_STRING_PAIR1;
  default: /* WN_STRING_HEX1, WN_STRING_PAIR1 */
    return WN_STRING_PLAIN;
  }
}

enum wn_json_string wn_json_string_step(enum wn_json_string s, unsigned char c) {
  switch (s) {
  case WN_STRING_PLAIN:
    return string_begin(c);
  case WN_STRING_NONE:
    return WN_STRING_NONE;
  case WN_STRING_TAIL1:
  case WN_STRING_TAIL2:
  case WN_STRING_TAIL3:
  case WN_STRING_E0:
  case WN_STRING_ED:
  case WN_STRING_F0:
  case WN_STRING_F4:
    return string_tail(s, c);
  case WN_STRING_ESCAPE:
    return c == 'u' ? WN_STRING_HEX4 : c && strchr("\"\\/bfnrt", c) ? WN_STRING_PLAIN : WN_STRING_NONE;
  case WN_STRING_PAIR:
    return c == '\\' ? WN_STRING_PAIR_U : WN_STRING_NONE;
  case WN_STRING_PAIR_U:
    return c == 'u' ? WN_STRING_PAIR4 : WN_STRING_NONE;
  default:
    return string_hex(s, c);
  }
}
