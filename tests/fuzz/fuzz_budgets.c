/* The input is a budgets.json, and after its first NUL changes to its keys as text. Budgets that load are written, and
 * the file must load to the same text; likewise after the changes. */
#include "fuzz/fuzz.h"

#include "winnow/kv.h"
#include "policies.h"

static void again(wn_context *ctx, const wn_budgets *b) {
  wn_budgets back;
  budgets_init(&back);
  size_t n, m;
  HOLDS(wn_budgets_save(ctx, b, fuzz_path("once.json")) == WN_OK);
  if (wn_budgets_load(ctx, fuzz_path("once.json"), &back) != WN_OK) {
    fprintf(stderr, "%s\n", wn_context_error(ctx));
    abort();
  }
  HOLDS(wn_budgets_save(ctx, &back, fuzz_path("twice.json")) == WN_OK);
  char *x = fuzz_get("once.json", &n), *y = fuzz_get("twice.json", &m);
  HOLDS(n == m && !memcmp(x, y, n));
  HOLDS(wn_budgets_total(b) == wn_budgets_total(&back));
  free(x);
  free(y);
  wn_budgets_clear(&back);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  wn_context *ctx = fuzz_context();
  const uint8_t *end = size ? memchr(data, 0, size) : NULL;
  const size_t json = end ? (size_t)(end - data) : size;
  wn_budgets b;
  budgets_init(&b);
  if (wn_budgets_load(ctx, fuzz_file(data, json), &b) != WN_OK) {
    fuzz_refused(ctx);
    wn_budgets_clear(&b);
    return 0;
  }
  again(ctx, &b);
  if (end) {
    char *text = calloc(1, size - json + 1);
    HOLDS(text);
    memcpy(text, end + 1, size - json - 1);
    if (wn_budgets_set(ctx, text, &b) != WN_OK) fuzz_refused(ctx);
    again(ctx, &b);
    free(text);
  }
  wn_budgets_clear(&b);
  return 0;
}
