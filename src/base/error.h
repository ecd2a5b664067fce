/* Errors inside the library: functions return the status, and the context keeps the text. */
#ifndef WN_BASE_ERROR_H
#define WN_BASE_ERROR_H

#include <math.h>

#include "winnow/context.h"

/* Records one line of detail (newlines become spaces, long text is cut) and returns status. ctx may be NULL: then only
 * the status is returned. Call it only from the context's own thread. */
#if defined(__GNUC__)
__attribute__((format(printf, 3, 4)))
#endif
wn_status
wn_fail(wn_context *ctx, wn_status status, const char *format, ...);

/* Puts "prefix: " before the recorded detail and returns status unchanged. */
#if defined(__GNUC__)
__attribute__((format(printf, 3, 4)))
#endif
wn_status
wn_fail_prefix(wn_context *ctx, wn_status status, const char *format, ...);

/* A number as messages print it. The sign of a NaN means nothing, but printf would show it as "-nan": drop it. */
static inline double wn_told(double x) {
  return isnan(x) ? (double)NAN : x;
}

#define WN_TRY(expr)                                                                                                   \
  do {                                                                                                                 \
    wn_status wn_try_status_ = (expr);                                                                                 \
    if (wn_try_status_ != WN_OK) return wn_try_status_;                                                                \
  } while (0)

/* For functions with clean-up code: sets `status` and jumps to `label`. */
#define WN_TRY_GOTO(expr, label)                                                                                       \
  do {                                                                                                                 \
    status = (expr);                                                                                                   \
    if (status != WN_OK) goto label;                                                                                   \
  } while (0)

#if defined(__GNUC__)
__attribute__((format(printf, 3, 4)))
#endif
void wn_log(wn_context *ctx, wn_log_level level, const char *format, ...);

#endif
