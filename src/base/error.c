/* Names of statuses, the context's error text, the log. */
#include "base/error.h"
#include "base/context.h"
#include "base/number.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

const char *wn_status_name(wn_status status) {
  switch (status) {
  case WN_OK:
    return "WN_OK";
  case WN_ERR_ARGUMENT:
    return "WN_ERR_ARGUMENT";
  case WN_ERR_MEMORY:
    return "WN_ERR_MEMORY";
  case WN_ERR_IO:
    return "WN_ERR_IO";
  case WN_ERR_FORMAT:
    return "WN_ERR_FORMAT";
  case WN_ERR_CONFIG:
    return "WN_ERR_CONFIG";
  case WN_ERR_SHAPE:
    return "WN_ERR_SHAPE";
  case WN_ERR_UNSUPPORTED:
    return "WN_ERR_UNSUPPORTED";
  case WN_ERR_DIVERGED:
    return "WN_ERR_DIVERGED";
  case WN_ERR_CANCELLED:
    return "WN_ERR_CANCELLED";
  }
  return "WN_ERR_UNKNOWN";
}

/* Drops an incomplete UTF-8 sequence at the end, where the text was cut. */
static void error_trim_utf8(char *s) {
  size_t n = strlen(s), start = n;
  while (start > 0 && n - start < 4 && ((unsigned char)s[start - 1] & 0xC0) == 0x80) start--;
  if (start == 0) return;
  unsigned char lead = (unsigned char)s[start - 1];
  size_t want = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : lead >= 0xC0 ? 2 : 1;
  if (want > 1 && n - (start - 1) < want) s[start - 1] = 0;
}

/* The arguments may point into ctx->error, so the text is formatted in a separate buffer. It may hold text from files,
 * which wn_line_escape escapes afterwards. vsnprintf fails only for an invalid format. */
static void error_format(char *out, size_t bytes, const char *format, va_list args) {
  char raw[1024];
  const int n = wn_print_list(raw, sizeof raw, format, args);
  if (n < 0) raw[0] = 0;
  if (n >= (int)sizeof raw) error_trim_utf8(raw);
  wn_line_escape(raw, out, bytes);
}

wn_status wn_fail(wn_context *ctx, wn_status status, const char *format, ...) {
  if (!ctx) return status;
  char line[sizeof ctx->error];
  va_list args;
  va_start(args, format);
  error_format(line, sizeof line, format, args);
  va_end(args);
  memcpy(ctx->error, line, sizeof line);
  return status;
}

wn_status wn_fail_prefix(wn_context *ctx, wn_status status, const char *format, ...) {
  if (!ctx) return status;
  char line[2 * sizeof ctx->error];
  va_list args;
  va_start(args, format);
  error_format(line, sizeof ctx->error / 2, format, args);
  va_end(args);
  const size_t used = strlen(line);
  snprintf(line + used, sizeof line - used, ": %s", ctx->error);
  wn_line_escape(line, ctx->error, sizeof ctx->error); /* already escaped: this only cuts at a character boundary */
  return status;
}

void wn_log(wn_context *ctx, wn_log_level level, const char *format, ...) {
  if (!ctx || !ctx->log) return;
  char line[1024];
  va_list args;
  va_start(args, format);
  error_format(line, sizeof line, format, args);
  va_end(args);
  ctx->log(ctx->log_user, level, line);
}
