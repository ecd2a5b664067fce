/* GGUF: every type against what llama.cpp's Python package decodes (tests/golden/gguf), metadata of every kind, and
 * malformed files. Hostile buffers have exactly the file's length, so that the sanitizers see a read past the end. */
#include "support.h"

#include "winnow/gguf.h"
#include "winnow/safetensors.h"

static wn_context *ctx;

static void types(void **state) {
  (void)state;
  wn_gguf *f = NULL;
  wn_safetensors *expected = NULL;
  assert_ok(ctx, wn_gguf_open(ctx, WN_TEST_DIR "/golden/gguf/types.gguf", &f));
  assert_ok(ctx, wn_safetensors_open(ctx, WN_TEST_DIR "/golden/gguf/types.safetensors", &expected));
  assert_int_equal(wn_gguf_tensor_count(f), WN_GGUF_TYPE_COUNT);
  assert_int_equal(wn_safetensors_count(expected), WN_GGUF_TYPE_COUNT);
  for (int i = 0; i < WN_GGUF_TYPE_COUNT; i++) {
    const wn_safetensors_entry *e = wn_safetensors_at(expected, i);
    const wn_gguf_tensor *t = wn_gguf_tensor_find(f, e->name);
    assert_non_null(t);
    assert_int_equal(t->ndim, 2);
    assert_int_equal(t->shape[0], 3);
    assert_int_equal(t->shape[1], 512);
    assert_int_equal(t->bytes, 3 * 512 / wn_gguf_block_weights(t->type) * (int64_t)wn_gguf_block_bytes(t->type));
    float all[3][512], row[512];
    assert_ok(ctx, wn_gguf_dequantize(ctx, t, 0, 3, all[0]));
    assert_ok(ctx, wn_gguf_dequantize(ctx, t, 2, 1, row));
    assert_memory_equal(row, all[2], sizeof row);
    const int64_t kept = e->shape[1];
    for (int64_t r = 0; r < 3; r++)
      for (int64_t k = 0; k < kept; k++) {
        float want;
        memcpy(&want, (const char *)e->data + (size_t)(r * kept + k) * sizeof want, sizeof want);
        /* the same float products; a sum may be rounded once more or less */
        const float got = all[r][7 * k], size = want < 0 ? -want : want, off = got - want;
        if (!((off < 0 ? -off : off) <= 2.4e-7f * size + 1e-9f))
          fail_msg("%s[%d][%d]: %.9g, expected %.9g", e->name, (int)r, (int)(7 * k), (double)got, (double)want);
      }
    assert_refused(ctx, wn_gguf_dequantize(ctx, t, 2, 2, row), WN_ERR_ARGUMENT, "rows 2 to 4 of 3");
  }
  assert_null(wn_gguf_tensor_find(f, "q9_9"));
  wn_safetensors_close(expected);
  wn_gguf_close(f);
}

static void metadata(void **state) {
  (void)state;
  wn_gguf *f = NULL;
  assert_ok(ctx, wn_gguf_open(ctx, WN_TEST_DIR "/golden/gguf/types.gguf", &f));
  static const struct {
    const char *key;
    int64_t value;
  } numbers[] = {
      {"kind.uint8", 200},         {"kind.int8", -100},         {"kind.uint16", 60000},       {"kind.int16", -30000},
      {"kind.uint32", 4000000000}, {"kind.int32", -2000000000}, {"kind.int64", -(1LL << 62)}, {"kind.bool", 1}};
  int64_t n = 0;
  double x = 0;
  const char *text;
  size_t bytes;
  for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
    const wn_gguf_value *v = wn_gguf_value_find(f, numbers[i].key);
    assert_non_null(v);
    assert_false(v->is_array);
    assert_true(wn_gguf_value_int(v, 0, &n));
    assert_int_equal(n, numbers[i].value);
    assert_false(wn_gguf_value_int(v, 1, &n));
    assert_false(wn_gguf_value_float(v, 0, &x));
    assert_false(wn_gguf_value_string(v, 0, &text, &bytes));
  }
  assert_false(wn_gguf_value_int(wn_gguf_value_find(f, "kind.uint64"), 0, &n)); /* 2^63 + 1 */
  assert_true(wn_gguf_value_float(wn_gguf_value_find(f, "kind.float64"), 0, &x));
  assert_true(x == 0.1);
  assert_true(wn_gguf_value_float(wn_gguf_value_find(f, "kind.float32"), 0, &x));
  assert_true(x == (double)0.1f);
  assert_true(wn_gguf_value_string(wn_gguf_value_find(f, "kind.string"), 0, &text, &bytes));
  assert_int_equal(bytes, 10);
  assert_memory_equal(text, "na\xc3\xafve \xe2\x98\x82", 10);
  const wn_gguf_value *v = wn_gguf_value_find(f, "array.string");
  assert_true(v && v->is_array && v->count == 4 && v->kind == WN_GGUF_STRING);
  assert_true(wn_gguf_value_string(v, 0, &text, &bytes) && bytes == 0);
  assert_true(wn_gguf_value_string(v, 2, &text, &bytes) && bytes == 9 && memcmp(text, "two words", 9) == 0);
  assert_false(wn_gguf_value_string(v, 4, &text, &bytes));
  v = wn_gguf_value_find(f, "array.int32");
  assert_true(v && v->is_array && v->count == 3 && wn_gguf_value_int(v, 1, &n) && n == -1);
  assert_null(wn_gguf_value_find(f, "no.such.key"));
  assert_null(wn_gguf_value_at(f, wn_gguf_value_count(f)));
  wn_gguf_close(f);
}

/* A file being built. */
struct build {
  unsigned char bytes[4096];
  size_t n;
};
static void add(struct build *b, const void *p, size_t n) {
  assert_true(b->n + n <= sizeof b->bytes);
  memcpy(b->bytes + b->n, p, n);
  b->n += n;
}
static void u32(struct build *b, uint32_t x) {
  add(b, &x, sizeof x);
}
static void u64(struct build *b, uint64_t x) {
  add(b, &x, sizeof x);
}
static void string(struct build *b, const char *s) {
  u64(b, strlen(s));
  add(b, s, strlen(s));
}
static struct build begin(uint64_t tensors, uint64_t values) {
  struct build b = {.n = 0};
  add(&b, "GGUF", 4);
  u32(&b, 3);
  u64(&b, tensors);
  u64(&b, values);
  return b;
}
static void tensor(struct build *b, const char *name, uint64_t columns, uint64_t rows, uint32_t type, uint64_t offset) {
  string(b, name);
  u32(b, 2);
  u64(b, columns);
  u64(b, rows);
  u32(b, type);
  u64(b, offset);
}
static void data(struct build *b, size_t bytes) {
  static const unsigned char zeros[256];
  add(b, zeros, (32 - b->n % 32) % 32);
  add(b, zeros, bytes);
}

static wn_status open_built(const struct build *b, size_t bytes) {
  unsigned char *copy = test_malloc(bytes + 1);
  memcpy(copy + 1, b->bytes, bytes); /* deliberately unaligned */
  wn_gguf *f = NULL;
  const wn_status status = wn_gguf_open_memory(ctx, "evil", copy + 1, bytes, &f);
  if (status != WN_OK) assert_null(f);
  wn_gguf_close(f);
  test_free(copy);
  return status;
}

#define REFUSED(b, part) assert_refused(ctx, open_built(&(b), (b).n), WN_ERR_FORMAT, part)

static void honest_files_open_and_no_part_of_them(void **state) {
  (void)state;
  struct build b = begin(2, 2);
  string(&b, "list");
  u32(&b, 9);
  u32(&b, 8);
  u64(&b, 2);
  string(&b, "x");
  string(&b, "");
  string(&b, "n");
  u32(&b, 4);
  u32(&b, 7);
  tensor(&b, "a", 32, 2, 8, 0);
  tensor(&b, "b", 3, 1, 0, 96);
  data(&b, 96 + 12);
  assert_ok(ctx, open_built(&b, b.n));
  for (size_t n = 0; n < b.n; n++)
    if (open_built(&b, n) == WN_OK) fail_msg("the first %zu of %zu bytes open", n, b.n);
}

static void lies_are_refused(void **state) {
  (void)state;
  struct build b = begin(0, 0);
  b.bytes[0] = 'g';
  REFUSED(b, "does not begin with");
  b = begin(0, 0);
  b.bytes[4] = 9;
  assert_refused(ctx, open_built(&b, b.n), WN_ERR_UNSUPPORTED, "version 9");
  b = begin(1ull << 60, 0);
  REFUSED(b, "do not fit");
  b = begin(0, UINT64_MAX);
  REFUSED(b, "do not fit");
  b = begin(0, 1); /* a key longer than the file */
  u64(&b, UINT64_MAX);
  data(&b, 64);
  REFUSED(b, "truncated");
  b = begin(0, 1);
  string(&b, "");
  data(&b, 64);
  REFUSED(b, "0 bytes or a NUL");
  b = begin(0, 1);
  string(&b, "k");
  u32(&b, 13);
  data(&b, 64);
  REFUSED(b, "type 13");
  b = begin(0, 1); /* arrays of arrays */
  string(&b, "k");
  u32(&b, 9);
  u32(&b, 9);
  u64(&b, 0);
  data(&b, 64);
  REFUSED(b, "inside an array");
  b = begin(0, 1); /* lengths that overflow when multiplied */
  string(&b, "k");
  u32(&b, 9);
  u32(&b, 10);
  u64(&b, (1ull << 61) + 1);
  data(&b, 64);
  REFUSED(b, "truncated");
  b = begin(0, 1);
  string(&b, "k");
  u32(&b, 9);
  u32(&b, 8);
  u64(&b, 1ull << 61);
  data(&b, 64);
  REFUSED(b, "truncated");
  b = begin(0, 2);
  for (int i = 0; i < 2; i++) {
    string(&b, "same");
    u32(&b, 7);
    add(&b, "", 1);
  }
  REFUSED(b, "there twice");
  b = begin(1, 1);
  string(&b, "general.alignment");
  u32(&b, 4);
  u32(&b, 24);
  tensor(&b, "t", 1, 1, 0, 0);
  data(&b, 64);
  REFUSED(b, "power of two");
  static const struct {
    uint64_t columns, rows;
    uint32_t type;
    uint64_t offset;
    const char *part;
  } bad[] = {{0, 1, 0, 0, "dimension 1 is 0"},
             {1ull << 62, 1ull << 62, 0, 0, "larger than can be"},
             {33, 1, 8, 0, "whole blocks"},
             {128, 1, 12, 0, "whole blocks"},
             {4, 4, 0, 32, "not inside"}, /* 64 bytes at 32 of 64 */
             {4, 4, 0, UINT64_MAX - 31, "not inside"},
             {2, 2, 0, 8, "multiple of 32"}};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    b = begin(1, 0);
    tensor(&b, "t", bad[i].columns, bad[i].rows, bad[i].type, bad[i].offset);
    data(&b, 64);
    REFUSED(b, bad[i].part);
  }
  b = begin(1, 0);
  tensor(&b, "t", 256, 1, 10, 0); /* Q2_K */
  data(&b, 84);
  assert_refused(ctx, open_built(&b, b.n), WN_ERR_UNSUPPORTED, "type 10");
  b = begin(2, 0);
  tensor(&b, "t", 16, 1, 0, 0);
  tensor(&b, "u", 4, 1, 0, 32);
  data(&b, 64);
  REFUSED(b, "overlap");
  b = begin(2, 0);
  tensor(&b, "t", 4, 1, 0, 0);
  tensor(&b, "t", 4, 1, 0, 32);
  data(&b, 64);
  REFUSED(b, "there twice");
  assert_refused(ctx, wn_gguf_open(ctx, "/no/such.gguf", &(wn_gguf *){0}), WN_ERR_IO, "/no/such.gguf");
}

static int setup(void **state) {
  (void)state;
  ctx = make_context();
  return 0;
}
static int teardown(void **state) {
  (void)state;
  wn_context_destroy(ctx);
  return 0;
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(types), cmocka_unit_test(metadata),
                                     cmocka_unit_test(honest_files_open_and_no_part_of_them),
                                     cmocka_unit_test(lies_are_refused)};
  return cmocka_run_group_tests_name("gguf", tests, setup, teardown);
}
