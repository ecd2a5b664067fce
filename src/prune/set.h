/* The rows that losses are measured on, in memory. */
#ifndef WN_PRUNE_SET_H
#define WN_PRUNE_SET_H

#include "base/arrays.h"
#include "winnow/prune.h"

struct wn_prune_set {
  int64_t rows, T;
  uint64_t counted;          /* positions with a target */
  int32_t *tokens, *targets; /* [rows,T]; targets of -1 do not count */
  char fingerprint[24];
  struct wn_arrays arrays;
};
/* what: "search set" or "report set", for messages. */
wn_status wn_prune_set_load(wn_context *ctx, const char *what, const wn_prune_data *data, int64_t T, int64_t vocab_size,
                            struct wn_prune_set *out);
void wn_prune_set_clear(struct wn_prune_set *set);

/* FNV-1a, 64 bits, as 16 hexadecimal digits. */
void wn_prune_fingerprint(const void *data, size_t bytes, char out[24]);

#endif
