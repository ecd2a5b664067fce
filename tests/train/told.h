/* A context whose last warnings are kept in `told`. */
#ifndef WN_TESTS_TRAIN_TOLD_H
#define WN_TESTS_TRAIN_TOLD_H

#include "tiny.h"

static char told[4096];

static void note(void *user, wn_log_level level, const char *line) {
  (void)user;
  if (level != WN_LOG_WARNING) return;
  const size_t n = strlen(told);
  snprintf(told + n, sizeof told - n, "%s\n", line);
}

static wn_context *told_context(void) {
  wn_context *ctx = NULL;
  wn_context_options options = {.size = sizeof options, .threads = 1, .log = note};
  if (wn_context_create(&options, &ctx) != WN_OK) fail_msg("no context");
  return ctx;
}

#endif
