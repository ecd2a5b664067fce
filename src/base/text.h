/* A growing text in counted memory. */
#ifndef WN_BASE_TEXT_H
#define WN_BASE_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include "winnow/context.h"

struct wn_text {
  char *data;
  size_t bytes, capacity;
  bool failed;
}; /* data: wn_alloc'd, NUL-terminated, or NULL */

#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
void wn_text_add(struct wn_text *text, const char *format, ...); /* sets failed when memory runs out */

bool wn_ends_with(const char *text, const char *end);
/* Is the word in the list, which ends with NULL? NULL: an empty list. */
bool wn_listed(const char *const *list, const char *word);

#endif
