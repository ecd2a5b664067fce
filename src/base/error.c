/* Status names, the context's error line, the log. */
#include "base/error.h"
#include "base/context.h"

#include <stdarg.h>
#include <stdbool.h>
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

/* Text from files ends up in these lines: one line, no control characters, so that a terminal can show it. */
static void error_one_line(char *s) {
  for (bool second = false; *s; s++) {
    unsigned char c = (unsigned char)*s;
    if (second) { /* of a C1 control character */
      *s = '?';
      second = false;
      continue;
    }
    second = c == 0xC2 && ((unsigned char)s[1] & 0xE0) == 0x80;
    if (c == '\n' || c == '\r' || c == '\t')
      *s = ' ';
    else if (c < 32 || c == 127 || second) /* C0, DEL, C1 */
      *s = '?';
  }
}

/* A line cut in the middle of a UTF-8 sequence loses the incomplete sequence. */
static void error_trim_utf8(char *s) {
  size_t n = strlen(s), start = n;
  while (start > 0 && n - start < 4 && ((unsigned char)s[start - 1] & 0xC0) == 0x80) start--;
  if (start == 0) return;
  unsigned char lead = (unsigned char)s[start - 1];
  size_t want = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : lead >= 0xC0 ? 2 : 1;
  if (want > 1 && n - (start - 1) < want) s[start - 1] = 0;
}

wn_status wn_fail(wn_context *ctx, wn_status status, const char *format, ...) {
  if (!ctx) return status;
  char line[sizeof ctx->error]; /* arguments may point into ctx->error */
  va_list args;
  va_start(args, format);
  int n = vsnprintf(line, sizeof line, format, args);
  va_end(args);
  if (n < 0) line[0] = 0;
  if (n >= (int)sizeof line) error_trim_utf8(line);
  error_one_line(line);
  memcpy(ctx->error, line, sizeof line);
  return status;
}

wn_status wn_fail_prefix(wn_context *ctx, wn_status status, const char *format, ...) {
  if (!ctx) return status;
  char line[2 * sizeof ctx->error];
  va_list args;
  va_start(args, format);
  int n = vsnprintf(line, sizeof ctx->error, format, args);
  va_end(args);
  if (n < 0) line[0] = 0;
  error_one_line(line);
  size_t used = strlen(line);
  if (used > sizeof ctx->error / 2) {
    line[sizeof ctx->error / 2] = 0;
    error_trim_utf8(line);
    used = strlen(line);
  }
  snprintf(line + used, sizeof line - used, ": %s", ctx->error);
  size_t keep = strlen(line);
  if (keep >= sizeof ctx->error) {
    line[sizeof ctx->error - 1] = 0;
    error_trim_utf8(line);
    keep = strlen(line);
  }
  memcpy(ctx->error, line, keep + 1);
  return status;
}

void wn_log(wn_context *ctx, wn_log_level level, const char *format, ...) {
  if (!ctx || !ctx->log) return;
  char line[1024];
  va_list args;
  va_start(args, format);
  int n = vsnprintf(line, sizeof line, format, args);
  va_end(args);
  if (n < 0) return;
  if (n >= (int)sizeof line) error_trim_utf8(line);
  error_one_line(line);
  ctx->log(ctx->log_user, level, line);
}
