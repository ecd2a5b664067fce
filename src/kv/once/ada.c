/* AdaKV: Feng et al. 2024, "Ada-KV: Optimizing KV Cache Eviction by Adaptive Budget Allocation for Efficient LLM
 * Inference", arXiv 2407.11550, algorithm 1. The tokens that a layer keeps are the best of all its heads together, so
 * that heads whose attention is spread keep more; each head keeps at least `safe` of its even share. Scores of
 * different heads must therefore be comparable: weights are, norms of keys are not. The safeguard is kvpress's, a
 * floor. In the authors' code a head keeps 1 - safe of what it would without a safeguard and safe of the even share,
 * and the window's tokens are not shared out. Cost: a sort of all scores. */
#include <stdlib.h>

#include "kv/once/score.h"

struct ada_entry {
  double score;
  int64_t index; /* row * n + token */
};

/* Lowest scores first; of equal ones the later row and the newer token. */
static int ada_compare(const void *a, const void *b) {
  const struct ada_entry *x = a, *y = b;
  if (x->score != y->score) return x->score < y->score ? -1 : 1;
  return x->index > y->index ? -1 : x->index < y->index;
}

int64_t wn_once_ada_safe(const struct wn_once_options *options, int64_t kept) {
  const int64_t safe = (int64_t)((double)kept * options->ada.safe);
  return safe < 1 && kept > 0 && options->ada.safe > 0 ? 1 : safe;
}

wn_status wn_once_ada(wn_context *ctx, const double *scores, int64_t rows, int64_t n, int64_t total, int64_t safe,
                      int64_t *kept) {
  void *memory;
  if (safe > total / rows) safe = total / rows;
  WN_TRY(wn_alloc(ctx, "AdaKV", (size_t)(rows * n) * sizeof(struct ada_entry), &memory));
  struct ada_entry *entries = memory;
  for (int64_t i = 0; i < rows * n; i++) entries[i] = (struct ada_entry){scores[i], i};
  qsort(entries, (size_t)(rows * n), sizeof *entries, ada_compare);
  for (int64_t r = 0; r < rows; r++) kept[r] = 0;
  /* a row's first `safe` entries are its own; what is left after all rows have theirs goes to the best of the others */
  int64_t left = total - rows * safe;
  for (int64_t i = 0; i < rows * n; i++) {
    const int64_t r = entries[i].index / n;
    if (kept[r] < safe)
      kept[r]++;
    else if (left > 0)
      kept[r]++, left--;
  }
  wn_free(memory);
  return WN_OK;
}
