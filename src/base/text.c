/* A growing text in counted memory. */
#include "base/misuse.h"
#include "base/number.h"
#include "base/text.h"
#include "base/alloc.h"

#include <errno.h>
#include <stdarg.h>
#include <string.h>

void wn_text_add(struct wn_text *text, const char *format, ...) {
  if (text->failed) return;
  va_list args;
  va_start(args, format);
  int n = wn_print_list(NULL, 0, format, args);
  va_end(args);
  if (n < 0 || WN_GROW(NULL, "text", &text->data, text->bytes, (size_t)n + 1, &text->capacity) != WN_OK) {
    text->failed = true;
    return;
  }
  va_start(args, format);
  wn_print_list(text->data + text->bytes, (size_t)n + 1, format, args);
  va_end(args);
  text->bytes += (size_t)n;
}

bool wn_bytes_parse(const char *text, double *out) {
  WN_CHECK_OR(false, WN_POINTER(text), WN_POINTER(out));
  static const struct {
    const char *name;
    double bytes;
  } units[] = {{"", 1},     {"B", 1},        {"kB", 1e3},     {"MB", 1e6},
               {"GB", 1e9}, {"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30}};
  char *end;
  errno = 0;
  const double value = wn_number_read(text, &end);
  for (size_t i = 0; i < sizeof units / sizeof *units; i++)
    if (end != text && !errno && value > 0 && value < 1e18 && !strcmp(end, units[i].name)) {
      *out = value * units[i].bytes;
      return true;
    }
  return false;
}

bool wn_ends_with(const char *text, const char *end) {
  const size_t n = strlen(text), m = strlen(end);
  return n >= m && !strcmp(text + n - m, end);
}

bool wn_listed(const char *const *list, const char *word) {
  while (list && *list && strcmp(*list, word) != 0) list++;
  return list && *list;
}
