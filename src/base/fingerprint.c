#include "base/fingerprint.h"

#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

void wn_fingerprint(const void *data, size_t bytes, char out[24]) {
  const uint8_t *p = data;
  uint64_t hash = UINT64_C(14695981039346656037);
  for (size_t i = 0; i < bytes; i++) hash = (hash ^ p[i]) * UINT64_C(1099511628211);
  memset(out, 0, 24); /* fingerprints of fingerprints take all of it */
  snprintf(out, 24, "%016" PRIx64, hash);
}
