/* What the readers of a schema's keywords share: places in messages, and the keywords that say nothing of values. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/number.h"
#include "base/text.h"
#include "text/schema_read.h"

static void schema_path(const struct wn_schema_place *at, char *out, size_t bytes) {
  size_t used;
  if (at->up) {
    schema_path(at->up, out, bytes);
    used = strlen(out);
    if (at->key && bytes - used > 1) {
      out[used++] = '/';
      wn_line_escape(at->key, out + used, bytes - used); /* keeps characters whole */
    } else if (!at->key) {
      snprintf(out + used, bytes - used, "/%zu", at->index);
    }
  } else {
    snprintf(out, bytes, "%s", at->key);
  }
}

wn_status wn_schema_refuse(struct wn_schema_builder *b, wn_status status, const struct wn_schema_place *at,
                           const char *format, ...) {
  char path[200], line[200];
  va_list args;
  va_start(args, format);
  wn_print_list(line, sizeof line, format, args);
  va_end(args);
  schema_path(at, path, sizeof path);
  return wn_fail(b->ctx, status, "schema %s: %s", path, line);
}

bool wn_schema_is_annotation(const char *keyword) {
  static const char *const names[] = {"$schema",  "$id",         "$defs",   "definitions", "$comment",
                                      "title",    "description", "default", "examples",    "deprecated",
                                      "readOnly", "writeOnly",   NULL};
  return wn_listed(names, keyword);
}
