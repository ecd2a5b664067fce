/* The input is a safetensors file. If it opens, it is read to its last byte. */
#include "fuzz/fuzz.h"

#include "winnow/safetensors.h"

/* Mostly mutates only the header, and corrects its length. */
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed) {
  if (size < 10 || seed % 4 == 0) return LLVMFuzzerMutate(data, size, max_size);
  uint64_t header;
  memcpy(&header, data, 8);
  if (header > size - 8) header = size - 8;
  size_t tail = size - 8 - (size_t)header;
  uint8_t *kept = malloc(tail + 1);
  HOLDS(kept);
  memcpy(kept, data + 8 + header, tail);
  header = LLVMFuzzerMutate(data + 8, (size_t)header, max_size - 8 - tail);
  memcpy(data, &header, 8);
  memcpy(data + 8 + header, kept, tail);
  free(kept);
  return 8 + (size_t)header + tail;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  wn_context *ctx = fuzz_context();
  wn_safetensors *f = NULL;
  if (wn_safetensors_open_memory(ctx, "input", data, size, &f) != WN_OK) {
    fuzz_refused(ctx);
    HOLDS(!f);
    return 0;
  }
  size_t total = 0;
  volatile unsigned sum = 0; /* so that everything is read */
  (void)sum;
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
