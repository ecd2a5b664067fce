/* A growing text in counted memory. */
#include "base/text.h"
#include "base/alloc.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static bool reserve(struct wn_text *text, size_t more) {
  size_t need;
  if (!wn_add_size(text->bytes, more, &need) || !wn_add_size(need, 1, &need)) return false;
  if (need <= text->capacity) return true;
  size_t capacity = text->capacity ? text->capacity : 256;
  while (capacity < need)
    if (!wn_mul_size(capacity, 2, &capacity)) return false;
  void *p;
  if (wn_alloc(NULL, "text", capacity, &p) != WN_OK) return false;
  if (text->bytes) memcpy(p, text->data, text->bytes);
  wn_free(text->data);
  text->data = p;
  text->capacity = capacity;
  return true;
}

void wn_text_add(struct wn_text *text, const char *format, ...) {
  if (text->failed) return;
  va_list args;
  va_start(args, format);
  int n = vsnprintf(NULL, 0, format, args);
  va_end(args);
  if (n < 0 || !reserve(text, (size_t)n)) {
    text->failed = true;
    return;
  }
  va_start(args, format);
  vsnprintf(text->data + text->bytes, (size_t)n + 1, format, args);
  va_end(args);
  text->bytes += (size_t)n;
}
