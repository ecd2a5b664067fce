/* Patterns over the layers: with "1110", repeated, three layers of four are on. */
#include <string.h>

#include "attention/registry.h"
#include "base/error.h"

bool wn_layer_pattern_has(const char *pattern, int64_t layer) {
  size_t n = strlen(pattern);
  return n == 0 || layer < 0 || pattern[(size_t)layer % n] == '1';
}

wn_status wn_layer_pattern_check(wn_context *ctx, const char *where, const char *key, const char *pattern) {
  for (size_t i = 0; pattern[i]; i++)
    if (pattern[i] != '0' && pattern[i] != '1')
      return wn_fail(ctx, WN_ERR_CONFIG, "%s: %s is \"%s\"; expected a 1 (on) or 0 (off) for each layer, as \"1110\"",
                     where, key, pattern);
  return WN_OK;
}
