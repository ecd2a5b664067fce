/* The input is a GGUF file. In a file that opens, every string, number and weight is read, to the last byte. */
#include "fuzz/fuzz.h"

#include "winnow/gguf.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  wn_context *ctx = fuzz_context();
  wn_gguf *f = NULL;
  if (wn_gguf_open_memory(ctx, "input", data, size, &f) != WN_OK) {
    fuzz_refused(ctx);
    HOLDS(!f);
    return 0;
  }
  volatile double sum = 0; /* so that everything is read */
  (void)sum;
  size_t total = 0;
  for (int i = 0; i < wn_gguf_tensor_count(f); i++) {
    const wn_gguf_tensor *t = wn_gguf_tensor_at(f, i);
    HOLDS(wn_gguf_tensor_find(f, t->name) == t);
    total += t->bytes;
    HOLDS(total <= size);
    const int64_t columns = t->shape[t->ndim - 1];
    int64_t rows = 1;
    for (int d = 0; d < t->ndim - 1; d++) rows *= t->shape[d];
    float *row = malloc((size_t)columns * sizeof *row);
    HOLDS(row);
    for (int64_t r = 0; r < rows; r++) {
      HOLDS(wn_gguf_dequantize(ctx, t, r, 1, row) == WN_OK);
      sum += (double)row[columns - 1];
    }
    free(row);
  }
  for (int i = 0; i < wn_gguf_value_count(f); i++) {
    const wn_gguf_value *v = wn_gguf_value_at(f, i);
    HOLDS(wn_gguf_value_find(f, v->key) == v);
    for (uint64_t k = 0; k < v->count; k++) {
      int64_t n;
      double x;
      const char *text;
      size_t bytes;
      if (wn_gguf_value_int(v, k, &n)) sum += (double)n;
      if (wn_gguf_value_float(v, k, &x)) sum += x;
      if (wn_gguf_value_string(v, k, &text, &bytes))
        for (size_t c = 0; c < bytes; c++) sum += (double)text[c];
    }
  }
  wn_gguf_close(f);
  return 0;
}
