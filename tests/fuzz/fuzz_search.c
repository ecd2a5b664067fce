/* The input is a search.json or the JSON of a comparison, as winnow prune writes them. What loads is written, and the
 * file must load to the same text. Every point must give budgets. */
#include "fuzz/fuzz.h"

#include "prune/curve.h"
#include "winnow/prune.h"
#include "winnow/report.h"

static void curve(wn_context *ctx, const char *path) {
  wn_prune_curve c = {0}, back = {0};
  if (wn_prune_curve_load(ctx, path, &c) != WN_OK) {
    fuzz_refused(ctx);
    wn_prune_curve_clear(&c);
    return;
  }
  size_t n, m;
  HOLDS(wn_prune_curve_save(ctx, &c, fuzz_path("once.json")) == WN_OK);
  if (wn_prune_curve_load(ctx, fuzz_path("once.json"), &back) != WN_OK) {
    fprintf(stderr, "%s\n", wn_context_error(ctx));
    abort();
  }
  HOLDS(wn_prune_curve_save(ctx, &back, fuzz_path("twice.json")) == WN_OK);
  char *a = fuzz_get("once.json", &n), *b = fuzz_get("twice.json", &m);
  HOLDS(n == m && !memcmp(a, b, n));
  free(a);
  free(b);
  for (int64_t i = 0; i < c.count; i++) {
    wn_budgets budgets = {0};
    HOLDS(wn_prune_curve_budgets(ctx, &c, i, &budgets) == WN_OK);
    HOLDS(budgets.layers == c.layers);
    for (int64_t l = 0; l < budgets.layers; l++) HOLDS(budgets.tokens[l] >= 1);
    wn_budgets_clear(&budgets);
  }
  wn_prune_curve_clear(&back);
  wn_prune_curve_clear(&c);
}

static void comparison(wn_context *ctx, const char *path) {
  wn_prune_comparison c;
  if (wn_prune_comparison_load(ctx, path, &c) != WN_OK) {
    fuzz_refused(ctx);
    return;
  }
  for (int64_t i = 0; i < c.count; i++) {
    const wn_prune_row *row = &c.results[i];
    HOLDS(c.names[row->subject] && row->tokens && c.layers[row->subject] >= 1);
  }
  wn_prune_comparison_loaded_clear(&c);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  wn_context *ctx = fuzz_context();
  const char *path = fuzz_file(data, size);
  curve(ctx, path);
  comparison(ctx, path);
  return 0;
}
