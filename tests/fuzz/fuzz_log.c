/* The input is a run's log.jsonl. In a log that loads, steps increase and times do not decrease. */
#include "fuzz/fuzz.h"

#include <math.h>
#include "winnow/train.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  wn_context *ctx = fuzz_context();
  wn_train_log log;
  fuzz_put("log.jsonl", data, size);
  if (wn_train_log_load(ctx, fuzz_path(""), &log) != WN_OK) {
    fuzz_refused(ctx);
    return 0;
  }
  HOLDS(log.count >= 0 && (uint64_t)log.count <= size);
  for (int64_t i = 0; i < log.count; i++) {
    HOLDS(isfinite(log.step[i]) && isfinite(log.loss[i]));
    HOLDS(i == 0 || log.step[i] > log.step[i - 1]);
  }
  wn_train_log_clear(&log);
  return 0;
}
