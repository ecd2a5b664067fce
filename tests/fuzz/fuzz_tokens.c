/* The first four bytes choose context, batch, vocabulary and packing. The rest is a token file, which is read whole and
 * batch by batch. */
#include "fuzz/fuzz.h"

#include "winnow/data.h"

static void read_whole(wn_context *ctx, const char *path) {
  wn_token_file *f = NULL;
  if (wn_token_file_open(ctx, path, &f) != WN_OK) {
    fuzz_refused(ctx);
    return;
  }
  uint64_t count = wn_token_file_count(f);
  HOLDS(count < (uint64_t)1 << 32);
  int32_t *tokens = malloc((size_t)count * sizeof *tokens + 1), one;
  HOLDS(tokens);
  if (wn_token_file_read(ctx, f, 0, count, tokens) == WN_OK)
    for (uint64_t i = 0; i < count; i++) HOLDS(tokens[i] >= 0);
  HOLDS(wn_token_file_read(ctx, f, count, 1, &one) == WN_ERR_ARGUMENT);
  HOLDS(wn_token_file_read(ctx, f, UINT64_MAX, 2, &one) == WN_ERR_ARGUMENT);
  HOLDS(wn_token_file_read(ctx, f, 1, UINT64_MAX, &one) == WN_ERR_ARGUMENT);
  HOLDS(wn_token_file_read(ctx, f, count, 0, &one) == WN_OK);
  free(tokens);
  wn_token_file_close(f);
}

static void read_batches(wn_context *ctx, const char *path, const char *split, const uint8_t options[4]) {
  int64_t T = 1 + options[0], B = 1 + options[1] % 7;
  int32_t vocab = options[2] ? 1 << (options[2] % 20) : 65536;
  wn_data_config config = {.kind = WN_DATA_TOKENS, .pack = options[3] & 1, .document_token = options[3] >> 1};
  snprintf(config.train, sizeof config.train, "%s", path);
  snprintf(config.val, sizeof config.val, "%s", path);
  wn_data_source *source = NULL;
  if (wn_data_source_create(ctx, &config, split, T, vocab, &source) != WN_OK) {
    fuzz_refused(ctx);
    return;
  }
  size_t n = (size_t)(B * T);
  int32_t *tokens = malloc(n * 4), *targets = malloc(n * 4), *starts = malloc(n * 4);
  HOLDS(tokens && targets && starts);
  uint64_t batches = wn_data_source_batches(source, B);
  HOLDS(batches > 0);
  static const uint64_t steps[] = {0, 1, 2, 3, UINT64_MAX / 16, UINT64_MAX};
  for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
    if (wn_data_source_batch(ctx, source, 7, steps[i], B, tokens, targets, starts) != WN_OK) {
      fuzz_refused(ctx);
      continue;
    }
    for (size_t k = 0; k < n; k++) {
      HOLDS(tokens[k] >= 0 && tokens[k] < vocab);
      HOLDS(targets[k] >= -1 && targets[k] < vocab);
      if (wn_data_source_packs(source)) HOLDS(starts[k] >= 0 && starts[k] <= (int32_t)(k % (size_t)T));
    }
  }
  free(tokens);
  free(targets);
  free(starts);
  wn_data_source_destroy(source);
}

/* Half of the time the header's count is set to what the file's length implies. */
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed) {
  size = LLVMFuzzerMutate(data, size, max_size);
  if (seed % 2 && size >= 4 + 1024) {
    uint32_t count = (uint32_t)(size - 4 - 1024) / (data[4] == 0x88 ? 2 : 4), none = 0;
    memcpy(data + 4 + 8, &count, 4);
    memcpy(data + 4 + 12, &none, 4);
  }
  return size;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  if (size < 4) return 0;
  wn_context *ctx = fuzz_context();
  const char *path = fuzz_file(data + 4, size - 4);
  read_whole(ctx, path);
  read_batches(ctx, path, "train", data);
  read_batches(ctx, path, "val", data);
  return 0;
}
