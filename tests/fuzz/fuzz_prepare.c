/* The first byte chooses the format (text, JSON lines, gzip data, JSON lines compressed here) and how text is divided
 * into documents. The rest is the file. Prepared data must read back with the reported counts. */
#include "fuzz/fuzz.h"

#include <sys/stat.h>
#include <zlib.h>

#include "winnow/data.h"

static char folder[64];

static void remove_folder(void) {
  static const char *const names[] = {"train.bin", "val.bin",  "data.json",  "tokenizer.json",
                                      "in.txt",    "in.jsonl", "in.jsonl.gz"};
  char path[128];
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    snprintf(path, sizeof path, "%s/%s", folder, names[i]);
    unlink(path);
  }
  rmdir(folder);
}

/* In memory, where the system has a folder there: the target syncs its files. */
static void make_folder(void) {
  if (*folder) return;
  struct stat st;
  snprintf(folder, sizeof folder, "%s/winnow-fuzz-XXXXXX", stat("/dev/shm", &st) == 0 ? "/dev/shm" : "/tmp");
  HOLDS(mkdtemp(folder));
  atexit(remove_folder);
}

static size_t compress_gzip(const uint8_t *data, size_t size, uint8_t *out, size_t room) {
  z_stream z = {.next_in = (Bytef *)(uintptr_t)data, .avail_in = (uInt)size, .next_out = out, .avail_out = (uInt)room};
  HOLDS(deflateInit2(&z, 1, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY) == Z_OK);
  HOLDS(deflate(&z, Z_FINISH) == Z_STREAM_END);
  deflateEnd(&z);
  return (size_t)z.total_out;
}

static void check_split(wn_context *ctx, const char *name, uint64_t tokens) {
  char path[128];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  wn_token_file *f = NULL;
  HOLDS(wn_token_file_open(ctx, path, &f) == WN_OK);
  HOLDS(wn_token_file_count(f) == tokens);
  wn_token_file_close(f);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  if (size < 1) return 0;
  static const char *const inputs[] = {"in.txt", "in.jsonl", "in.jsonl.gz", "in.jsonl.gz"};
  static const char *const breaks[] = {"file", "blank", "line", "blank"};
  const int kind = data[0] & 3;
  make_folder();
  static uint8_t packed[1 << 16];
  const uint8_t *content = data + 1;
  size_t bytes = size - 1;
  if (kind == 3) {
    if (bytes > sizeof packed / 2) return 0;
    bytes = compress_gzip(content, bytes, packed, sizeof packed);
    content = packed;
  }
  char input[128];
  snprintf(input, sizeof input, "%s/%s", folder, inputs[kind]);
  const char *paths[] = {input}, *file = fuzz_file(content, bytes);
  unlink(input);
  HOLDS(symlink(file, input) == 0);

  wn_context *ctx = fuzz_context();
  wn_data_prepare_options options;
  wn_data_prepare_options_init(&options, sizeof options);
  options.inputs = paths;
  options.input_count = 1;
  options.tokenizer = "bytes";
  options.out_dir = folder;
  options.document_break = breaks[data[0] >> 2 & 3];
  options.layout = data[0] & 16 ? "nanogpt" : "llmc";
  options.val_fraction = data[0] & 32 ? 0.3 : 0;
  wn_data_prepare_result result;
  if (wn_data_prepare(ctx, &options, &result) != WN_OK) {
    fuzz_refused(ctx);
    return 0;
  }
  HOLDS(result.documents > 0);
  HOLDS(result.train_tokens == result.train_bytes && result.val_tokens == result.val_bytes); /* a byte is a token */
  check_split(ctx, "train.bin", result.train_tokens);
  if (result.val_tokens) check_split(ctx, "val.bin", result.val_tokens);
  return 0;
}
