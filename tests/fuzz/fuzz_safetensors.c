/* The whole input is a safetensors file. What opens is touched to its last byte. */
#include "fuzz/fuzz.h"

#include "winnow/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  wn_context *ctx = fuzz_context();
  wn_safetensors *f = NULL;
  if (wn_safetensors_open_memory(ctx, "input", data, size, &f) != WN_OK) {
    fuzz_refused(ctx);
    HOLDS(!f);
    return 0;
  }
  size_t total = 0;
  volatile unsigned sum = 0;
  for (int i = 0; i < wn_safetensors_count(f); i++) {
    const wn_safetensors_entry *e = wn_safetensors_at(f, i);
    size_t elements = 1;
    for (int d = 0; d < e->ndim; d++) elements *= (size_t)e->shape[d];
    HOLDS(elements * wn_dtype_size(e->dtype) == e->bytes);
    HOLDS(wn_safetensors_find(f, e->name) == e);
    const unsigned char *bytes = e->data;
    for (size_t k = 0; k < e->bytes; k++) sum += bytes[k];
    total += e->bytes;
  }
  HOLDS(total <= size);
  const char *value = wn_safetensors_metadata(f, "format");
  if (value) sum += (unsigned)strlen(value);
  wn_safetensors_close(f);
  return 0;
}
