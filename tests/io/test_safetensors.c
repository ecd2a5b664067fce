/* Safetensors: round trips and malformed files. Hostile buffers have exactly the file's length, so that the sanitizers
 * see a read past the end. */
#include "support.h"

#include <sys/resource.h>
#include <signal.h>

#include "base/rng.h"
#include "winnow/safetensors.h"

static wn_context *ctx;
static char folder[512], path[600];

/* length | header | data, malloc'd. length_bytes < 0: the header's true length. */
static unsigned char *build(const char *header, long long length_bytes, size_t data_bytes, size_t *bytes) {
  size_t n = strlen(header);
  uint64_t length = length_bytes < 0 ? n : (uint64_t)length_bytes;
  *bytes = 8 + n + data_bytes;
  unsigned char *file = test_malloc(*bytes);
  memcpy(file, &length, 8);
  memcpy(file + 8, header, n);
  for (size_t i = 0; i < data_bytes; i++) file[8 + n + i] = (unsigned char)i;
  return file;
}

static wn_status open_built(const char *header, long long length, size_t data_bytes, wn_safetensors **out) {
  size_t bytes;
  unsigned char *file = build(header, length, data_bytes, &bytes);
  wn_safetensors *f = NULL;
  wn_status status = wn_safetensors_open_memory(ctx, "evil", file, bytes, &f);
  if (out)
    *out = f;
  else
    wn_safetensors_close(f);
  if (status != WN_OK) assert_null(f);
  test_free(file);
  return status;
}

#define T(dtype, shape, offsets) "{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"

static void honest_headers_open(void **state) {
  (void)state;
  assert_ok(ctx, open_built("{}", -1, 0, NULL));
  assert_ok(ctx, open_built("{}      ", -1, 0, NULL));
  assert_ok(ctx, open_built("{\"__metadata__\":{}}", -1, 0, NULL));
  assert_ok(ctx, open_built("{\"a\":" T("F32", "[2]", "[0,8]") "}", -1, 8, NULL));
  assert_ok(ctx, open_built("{\"a\":" T("F64", "[]", "[0,8]") "}", -1, 8, NULL));
  assert_ok(ctx, open_built("{\"a\":" T("BOOL", "[0]", "[0,0]") "}", -1, 0, NULL));
  assert_ok(ctx, open_built("{\"e\":" T("U8", "[0]", "[3,3]") ",\"b\":" T("U8", "[2]", "[3,5]") ",\"a\":" T(
                                "I8", "[3]", "[0,3]") ",\"f\":" T("U8", "[0]", "[5,5]") "}",
                            -1, 5, NULL));
}

static void lying_headers_are_refused(void **state) {
  (void)state;
  static const struct {
    const char *header;
    long long length;
    size_t data;
    const char *part;
  } rows[] = {
      {"", -1, 0, "evil: not a safetensors file: its header has 0 bytes"},
      {"{", -1, 0, "its header has 1 bytes"},
      {"{}", 3, 0, "its header should have 3 bytes, only 2 follow"},
      {"{}", INT64_MAX, 0, "its header should have 9223372036854775807 bytes"},
      {" {}", -1, 0, "does not begin with '{'"},
      {"[]", -1, 0, "does not begin with '{'"},
      {"{]", -1, 0, "evil: header: byte 1: '\"' is expected"},
      {"{}{}", -1, 0, "evil: header: byte 2: nothing is expected after the object"},
      {"{\"a\":}", -1, 0, "evil: header from byte 1:1:"},
      {"{\"a\" 1}", -1, 0, "byte 5: ':' is expected"},
      {"{\"a\":1,}", -1, 0, "byte 7: '\"' is expected"},
      {"{\"a\":1", -1, 0, "byte 6: ',' is expected"},
      {"{\"a", -1, 0, "byte 3: ':' is expected"},
      {"{,}", -1, 0, "byte 1: '\"' is expected"},
      {"{\"a\":1]", -1, 0, "byte 6: ',' is expected"},
      {"{\"a\":1}", -1, 0, "tensor \"a\": expected an object"},
      {"{\"a\":{}}", -1, 0, "tensor \"a\": \"dtype\" is missing"},
      {"{\"a\":{\"dtype\":3,\"shape\":[],\"data_offsets\":[0,4]}}", -1, 4, "\"dtype\" is missing or not a string"},
      {"{\"a\":" T("F8_E4M3", "[1]", "[0,1]") "}", -1, 1, "dtype \"F8_E4M3\" is not known"},
      {"{\"a\":" T("f32", "[1]", "[0,4]") "}", -1, 4, "dtype \"f32\" is not known"},
      {"{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", -1, 4, "\"shape\" is missing"},
      {"{\"a\":" T("F32", "3", "[0,4]") "}", -1, 4, "\"shape\" is missing or not a list"},
      {"{\"a\":" T("F32", "[1,1,1,1,1,1,1,1,1]", "[0,4]") "}", -1, 4, "9 dimensions; at most 8"},
      {"{\"a\":" T("F32", "[-1]", "[0,4]") "}", -1, 4, "\"shape\" holds something else"},
      {"{\"a\":" T("F32", "[1.0]", "[0,4]") "}", -1, 4, "\"shape\" holds something else"},
      {"{\"a\":" T("F32", "[null]", "[0,4]") "}", -1, 4, "\"shape\" holds something else"},
      {"{\"a\":" T("F32", "[99999999999999999999]", "[0,4]") "}", -1, 4, "too big integer"},
      {"{\"a\":" T("F32", "[4611686018427387904]", "[0,0]") "}", -1, 0, "larger than this machine can address"},
      {"{\"a\":" T("F32", "[9223372036854775807]", "[0,0]") "}", -1, 0, "larger than this machine can address"},
      {"{\"a\":" T("U8", "[9223372036854775807,2]", "[0,4]") "}", -1, 4, "larger than this machine can address"},
      {"{\"a\":" T("U8", "[4294967296,4294967296]", "[0,0]") "}", -1, 0, "larger than this machine can address"},
      {"{\"a\":" T("U8", "[4294967297,4294967295,4294967297]", "[0,0]") "}", -1, 0, "larger than this machine"},
      {"{\"a\":" T("F32", "[0,4294967296,4294967296]", "[0,0]") "}", -1, 0, "larger than this machine"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", -1, 4, "\"data_offsets\" is missing"},
      {"{\"a\":" T("F32", "[1]", "{}") "}", -1, 4, "\"data_offsets\" is missing or not a list"},
      {"{\"a\":" T("F32", "[1]", "[0]") "}", -1, 4, "\"data_offsets\" is missing or not a list of two"},
      {"{\"a\":" T("F32", "[1]", "[0,4,8]") "}", -1, 4, "not a list of two"},
      {"{\"a\":" T("F32", "[1]", "[0.0,4]") "}", -1, 4, "not a list of two"},
      {"{\"a\":" T("F32", "[1]", "[0,8]") "}", -1, 4, "data_offsets [0, 8] are not inside the file's 4 bytes"},
      {"{\"a\":" T("F32", "[1]", "[4,0]") "}", -1, 4, "data_offsets [4, 0]"},
      {"{\"a\":" T("F32", "[1]", "[-4,0]") "}", -1, 4, "data_offsets [-4, 0]"},
      {"{\"a\":" T("F32", "[1]", "[9223372036854775804,9223372036854775807]") "}", -1, 4, "are not inside"},
      {"{\"a\":" T("F32", "[1]", "[0,2]") "}", -1, 2, "span 2 bytes, its dtype and shape need 4"},
      {"{\"a\":" T("F32", "[0]", "[0,4]") "}", -1, 4, "span 4 bytes, its dtype and shape need 0"},
      {"{\"a\":" T("U8", "[4]", "[0,4]") ",\"b\":" T("U8", "[4]", "[2,6]") "}", -1, 6, "inside another tensor"},
      {"{\"a\":" T("U8", "[4]", "[0,4]") ",\"b\":" T("U8", "[4]", "[0,4]") "}", -1, 4, "inside another tensor"},
      {"{\"a\":" T("U8", "[4]", "[0,4]") ",\"b\":" T("U8", "[0]", "[2,2]") "}", -1, 4, "inside another tensor"},
      {"{\"a\":" T("U8", "[2]", "[0,2]") ",\"b\":" T("U8", "[2]", "[3,5]") "}", -1, 5, "after a hole"},
      {"{\"a\":" T("U8", "[2]", "[1,3]") "}", -1, 3, "after a hole"},
      {"{\"a\":" T("U8", "[2]", "[0,2]") "}", -1, 3, "end at byte 2 of the data, the file has 3"},
      {"{}", -1, 1, "no tensor in the header, 1 bytes of data"},
      {"{\"a\":" T("U8", "[1]", "[0,1]") ",\"a\":" T("U8", "[1]", "[1,2]") "}", -1, 2, "tensor \"a\" is there twice"},
      {"{\"\\u0061\":" T("U8", "[1]", "[0,1]") ",\"a\":" T("U8", "[1]", "[1,2]") "}", -1, 2, "\"a\" is there twice"},
      {"{\"__metadata__\":{},\"__metadata__\":{}}", -1, 0, "\"__metadata__\" is there twice"},
      {"{\"a\":{\"dtype\":\"U8\",\"dtype\":\"U8\"}}", -1, 0, "duplicate object key"},
      {"{\"\xff\":" T("U8", "[1]", "[0,1]") "}", -1, 1, "unable to decode byte 0xff"},
      {"{\"a\\u0000b\":" T("U8", "[1]", "[0,1]") "}", -1, 1, "u0000"},
      {"{\"__metadata__\":3}", -1, 0, "\"__metadata__\" is not an object"},
      {"{\"__metadata__\":{\"k\":3}}", -1, 0, "the value of \"k\" is not a string"},
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    assert_refused(ctx, open_built(rows[i].header, rows[i].length, rows[i].data, NULL), WN_ERR_FORMAT, rows[i].part);
    assert_non_null(strstr(wn_context_error(ctx), "evil: "));
  }
}

static void deep_headers_are_refused(void **state) {
  (void)state;
  enum { N = 1 << 20 };
  char *header = test_malloc(N + 1);
  for (int i = 0; i < N / 6; i++) memcpy(header + 5 * i, "{\"a\":", 5);
  memset(header + N / 6 * 5, '}', N / 6);
  header[N / 6 * 6] = 0;
  assert_refused(ctx, open_built(header, -1, 0, NULL), WN_ERR_FORMAT, "a tensor's entry has at most 4096");
  test_free(header);
}

/* Reads every byte of every tensor, as a caller would. */
static unsigned touch(const wn_safetensors *f) {
  unsigned sum = 0;
  for (int i = 0; i < wn_safetensors_count(f); i++) {
    const wn_safetensors_entry *e = wn_safetensors_at(f, i);
    const unsigned char *data = e->data;
    for (size_t k = 0; k < e->bytes; k++) sum += data[k];
    assert_ptr_equal(wn_safetensors_find(f, e->name), e);
  }
  return sum;
}

static const char honest[] = "{\"__metadata__\":{\"k\":\"v\"},\"first\":" T("F32", "[2,3]", "[0,24]") ",\"second\":" T(
    "I64", "[1]", "[24,32]") ",\"third\":" T("U8", "[5]", "[32,37]") "}";

static void truncated_files_are_refused(void **state) {
  (void)state;
  size_t bytes;
  unsigned char *file = build(honest, -1, 37, &bytes);
  for (size_t n = 0; n < bytes; n++) {
    unsigned char *cut = test_malloc(n + 1);
    memcpy(cut, file, n);
    unsigned char *exact = n ? memmove(cut + 1, cut, n) : cut + 1; /* ends where the block ends */
    wn_safetensors *f = NULL;
    assert_refused(ctx, wn_safetensors_open_memory(ctx, "evil", exact, n, &f), WN_ERR_FORMAT, "evil: ");
    test_free(cut);
  }
  test_free(file);
}

static void changed_bytes_never_reach_outside(void **state) {
  (void)state;
  size_t bytes;
  unsigned char *file = build(honest, -1, 37, &bytes);
  int opened = 0;
  for (uint64_t i = 0; i < 20000; i++) {
    unsigned char *copy = test_malloc(bytes);
    memcpy(copy, file, bytes);
    for (uint64_t change = 0; change <= i % 3; change++) {
      uint64_t where = wn_random_below(1, WN_STREAM_TEST, i, 2 * change, bytes - 37);
      static const char likely[] = "0123456789-[]{},:\"eE. \\u";
      uint64_t r = wn_random_below(1, WN_STREAM_TEST, i, 2 * change + 1, 512);
      copy[where] = r < 256 ? (unsigned char)r : (unsigned char)likely[r % (sizeof likely - 1)];
    }
    wn_safetensors *f = NULL;
    if (wn_safetensors_open_memory(ctx, "evil", copy, bytes, &f) == WN_OK) {
      touch(f);
      opened++;
    }
    wn_safetensors_close(f);
    test_free(copy);
  }
  assert_true(opened > 0); /* a changed name is still valid */
  test_free(file);
}

static void written_files_read_back(void **state) {
  (void)state;
  float f32[6] = {1, -2, 3.5f, 0, 1e-30f, 6};
  double f64[2] = {0.1, -1e300};
  int64_t i64[1] = {INT64_MIN};
  unsigned char u8[5] = {0, 1, 2, 254, 255};
  uint16_t bf16[3] = {0x3f80, 0, 0xffff};
  const wn_safetensors_entry entries[] = {
      {"odd", WN_U8, 1, {5}, u8, sizeof u8},       {"layers.0.w \"\\\xC3\xA9", WN_F32, 2, {2, 3}, f32, sizeof f32},
      {"none", WN_F32, 3, {4, 0, 2}, NULL, 0},     {"half", WN_BF16, 1, {3}, bf16, sizeof bf16},
      {"scalar", WN_I64, 0, {0}, i64, sizeof i64}, {"double", WN_F64, 8, {1, 1, 1, 1, 1, 1, 1, 2}, f64, sizeof f64},
  };
  const int count = (int)(sizeof entries / sizeof *entries);
  const char *metadata[] = {"format", "pt", "case", "{\"B\": 2}\n", NULL};
  assert_ok(ctx, wn_safetensors_write(ctx, path, entries, count, metadata));
  wn_safetensors *f = NULL;
  assert_ok(ctx, wn_safetensors_open(ctx, path, &f));
  assert_int_equal(wn_safetensors_count(f), count);
  for (int i = 0; i < count; i++) {
    const wn_safetensors_entry *want = &entries[i], *have = wn_safetensors_at(f, i);
    assert_string_equal(have->name, want->name);
    assert_int_equal(have->dtype, want->dtype);
    assert_int_equal(have->ndim, want->ndim);
    for (int d = 0; d < want->ndim; d++) assert_true(have->shape[d] == want->shape[d]);
    assert_int_equal(have->bytes, want->bytes);
    if (want->bytes) assert_memory_equal(have->data, want->data, want->bytes);
    assert_int_equal((uintptr_t)have->data % wn_dtype_size(have->dtype), 0);
    assert_ptr_equal(wn_safetensors_find(f, want->name), have);
  }
  assert_string_equal(wn_safetensors_metadata(f, "format"), "pt");
  assert_string_equal(wn_safetensors_metadata(f, "case"), "{\"B\": 2}\n");
  assert_null(wn_safetensors_metadata(f, "none"));
  assert_null(wn_safetensors_find(f, "none such"));
  assert_null(wn_safetensors_find(f, "__metadata__"));
  assert_null(wn_safetensors_at(f, -1));
  assert_null(wn_safetensors_at(f, count));
  wn_safetensors_close(f);

  FILE *raw = fopen(path, "rb"); /* what other readers rely on: spaces pad the header to 8 bytes */
  uint64_t header = 0;
  assert_int_equal(fread(&header, 8, 1, raw), 1);
  assert_int_equal(fgetc(raw), '{');
  fclose(raw);
  assert_int_equal(header % 8, 0);

  assert_ok(ctx, wn_safetensors_write(ctx, path, NULL, 0, NULL));
  assert_ok(ctx, wn_safetensors_open(ctx, path, &f));
  assert_int_equal(wn_safetensors_count(f), 0);
  assert_null(wn_safetensors_metadata(f, "format"));
  wn_safetensors_close(f);
  wn_safetensors_close(NULL);
}

static void many_tensors_are_found(void **state) {
  (void)state;
  enum { N = 3000 };
  static char names[N][24];
  static wn_safetensors_entry entries[N];
  static int32_t values[N];
  for (int i = 0; i < N; i++) {
    values[i] = i;
    snprintf(names[i], sizeof names[i], "t.%d.w", (i * 7919) % N);
    entries[i] = (wn_safetensors_entry){names[i], WN_I32, 1, {1}, &values[i], 4};
  }
  assert_ok(ctx, wn_safetensors_write(ctx, path, entries, N, NULL));
  wn_safetensors *f = NULL;
  assert_ok(ctx, wn_safetensors_open(ctx, path, &f));
  for (int i = 0; i < N; i++) {
    const wn_safetensors_entry *e = wn_safetensors_find(f, names[i]);
    assert_non_null(e);
    assert_memory_equal(e->data, &values[i], 4);
  }
  wn_safetensors_close(f);
}

static void what_cannot_be_written_is_refused(void **state) {
  (void)state;
  float x[4] = {0};
  const wn_safetensors_entry good = {"a", WN_F32, 1, {4}, x, 16};
  wn_safetensors_entry e[2] = {good, good};
  put_file(path, "old", 3);
  assert_refused(ctx, wn_safetensors_write(ctx, path, e, 2, NULL), WN_ERR_ARGUMENT, "\"a\" is there twice");
  e[1].name = "\xff";
  assert_refused(ctx, wn_safetensors_write(ctx, path, e, 2, NULL), WN_ERR_ARGUMENT, "not UTF-8");
  e[1].name = "__metadata__";
  assert_refused(ctx, wn_safetensors_write(ctx, path, e, 2, NULL), WN_ERR_ARGUMENT, "no tensor can be named");
  e[1].name = NULL;
  assert_refused(ctx, wn_safetensors_write(ctx, path, e, 2, NULL), WN_ERR_ARGUMENT, "no name");
  e[1] = good;
  e[1].name = "b";
  e[1].bytes = 12;
  assert_refused(ctx, wn_safetensors_write(ctx, path, e, 2, NULL), WN_ERR_ARGUMENT, "has 12 bytes");
  e[1].bytes = 16;
  e[1].data = NULL;
  assert_refused(ctx, wn_safetensors_write(ctx, path, e, 2, NULL), WN_ERR_ARGUMENT, "need 16");
  e[1].data = x;
  e[1].ndim = WN_MAX_DIMS + 1;
  assert_refused(ctx, wn_safetensors_write(ctx, path, e, 2, NULL), WN_ERR_ARGUMENT, "impossible");
  e[1].ndim = 1;
  e[1].shape[0] = -4;
  assert_refused(ctx, wn_safetensors_write(ctx, path, e, 2, NULL), WN_ERR_ARGUMENT, "impossible");
  e[1].shape[0] = 4;
  e[1].dtype = (wn_dtype)99;
  assert_refused(ctx, wn_safetensors_write(ctx, path, e, 2, NULL), WN_ERR_ARGUMENT, "impossible");
  const char *twice[] = {"k", "1", "k", "2", NULL}, *odd[] = {"k", NULL}, *bad[] = {"k", "\xff", NULL};
  assert_refused(ctx, wn_safetensors_write(ctx, path, &good, 1, twice), WN_ERR_ARGUMENT, "metadata \"k\"");
  assert_refused(ctx, wn_safetensors_write(ctx, path, &good, 1, odd), WN_ERR_ARGUMENT, "metadata \"k\"");
  assert_refused(ctx, wn_safetensors_write(ctx, path, &good, 1, bad), WN_ERR_ARGUMENT, "metadata \"k\"");
  assert_file_is(path, "old");
  assert_refused(ctx, wn_safetensors_write(ctx, folder, &good, 1, NULL), WN_ERR_IO, "it is a folder");
}

/* A file that could not be read back is not written. */
static void what_cannot_be_read_back_is_not_written(void **state) {
  (void)state;
  enum { NAME = 5000, TEXT = 9 << 20 };
  static const uint8_t data[4];
  char *name = test_malloc(NAME + 1), *text = test_malloc(TEXT + 1);
  memset(name, 'n', NAME), memset(text, 't', TEXT);
  name[NAME] = text[TEXT] = 0;
  const wn_safetensors_entry long_name = {
      .name = name, .dtype = WN_U8, .ndim = 1, .shape = {4}, .data = data, .bytes = 4};
  const wn_safetensors_entry entry = {.name = "a", .dtype = WN_U8, .ndim = 1, .shape = {4}, .data = data, .bytes = 4};
  const char *const metadata[] = {"tokenizer", text, NULL};
  assert_refused(ctx, wn_safetensors_write(ctx, path, &long_name, 1, NULL), WN_ERR_ARGUMENT,
                 "a tensor's name: the JSON is 5002 bytes long");
  assert_refused(ctx, wn_safetensors_write(ctx, path, &entry, 1, metadata), WN_ERR_ARGUMENT,
                 "the metadata has at most");
  name[4000] = text[8 << 20 >> 1] = 0;
  assert_ok(ctx, wn_safetensors_write(ctx, path, &long_name, 1, metadata));
  wn_safetensors *f;
  assert_ok(ctx, wn_safetensors_open(ctx, path, &f));
  assert_non_null(wn_safetensors_find(f, name));
  wn_safetensors_close(f);
  test_free(name);
  test_free(text);
}

static void a_failing_write_keeps_the_old_file(void **state) {
  (void)state;
  float x[4] = {1, 2, 3, 4};
  char *large = test_calloc(1 << 18, 1);
  const wn_safetensors_entry small = {"a", WN_F32, 1, {4}, x, 16}, big = {"b", WN_U8, 1, {1 << 18}, large, 1 << 18};
  assert_ok(ctx, wn_safetensors_write(ctx, path, &small, 1, NULL));
  struct rlimit before, tight;
  assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
  tight = before;
  tight.rlim_cur = 65536;
  void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
  assert_int_equal(setrlimit(RLIMIT_FSIZE, &tight), 0);
  wn_status status = wn_safetensors_write(ctx, path, &big, 1, NULL);
  setrlimit(RLIMIT_FSIZE, &before);
  signal(SIGXFSZ, handler);
  test_free(large);
  assert_refused(ctx, status, WN_ERR_IO, "cannot write");
  wn_safetensors *f = NULL;
  assert_ok(ctx, wn_safetensors_open(ctx, path, &f));
  assert_memory_equal(wn_safetensors_find(f, "a")->data, x, 16);
  wn_safetensors_close(f);
}

static void files_that_are_not_there(void **state) {
  (void)state;
  wn_safetensors *f = NULL;
  char missing[700];
  snprintf(missing, sizeof missing, "%s/none.safetensors", folder);
  assert_refused(ctx, wn_safetensors_open(ctx, missing, &f), WN_ERR_IO, "none.safetensors: No such file");
  assert_refused(ctx, wn_safetensors_open(ctx, folder, &f), WN_ERR_IO, "it is a folder");
  put_file(path, "", 0);
  assert_refused(ctx, wn_safetensors_open(ctx, path, &f), WN_ERR_FORMAT, "0 bytes long");
  assert_refused(ctx, wn_safetensors_open(ctx, NULL, &f), WN_ERR_ARGUMENT, "path");
  assert_refused(ctx, wn_safetensors_open_memory(ctx, "m", NULL, 9, &f), WN_ERR_ARGUMENT, "bytes");
}

static void dtypes_have_sizes_and_names(void **state) {
  (void)state;
  static const size_t sizes[] = {4, 8, 2, 2, 4, 8, 1, 1, 2, 4, 2, 8, 1};
  for (int i = WN_F32; i <= WN_BOOL; i++) assert_int_equal(wn_dtype_size((wn_dtype)i), sizes[i]);
  assert_string_equal(wn_dtype_name(WN_BF16), "BF16");
  assert_int_equal(wn_dtype_size((wn_dtype)-1), 0);
  assert_string_equal(wn_dtype_name((wn_dtype)99), "unknown");
}

static int setup(void **state) {
  (void)state;
  ctx = make_context();
  make_folder(folder);
  snprintf(path, sizeof path, "%s/file.safetensors", folder);
  return 0;
}
static int teardown(void **state) {
  (void)state;
  remove_folder(folder);
  wn_context_destroy(ctx);
  return 0;
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(honest_headers_open),
      cmocka_unit_test(lying_headers_are_refused),
      cmocka_unit_test(deep_headers_are_refused),
      cmocka_unit_test(truncated_files_are_refused),
      cmocka_unit_test(changed_bytes_never_reach_outside),
      cmocka_unit_test(written_files_read_back),
      cmocka_unit_test(many_tensors_are_found),
      cmocka_unit_test(what_cannot_be_written_is_refused),
      cmocka_unit_test(what_cannot_be_read_back_is_not_written),
      cmocka_unit_test(a_failing_write_keeps_the_old_file),
      cmocka_unit_test(files_that_are_not_there),
      cmocka_unit_test(dtypes_have_sizes_and_names),
  };
  return cmocka_run_group_tests(tests, setup, teardown);
}
