/* Checksums: a flipped bit anywhere in a tensor file is found, and the message names the file and the tensor. Files
 * without checksums are read as they are. Whole folders can be verified. */
#include "support.h"

#include <sys/stat.h>
#include "io/checksum.h"
#include "winnow/data.h"
#include "winnow/gguf.h"
#include "winnow/safetensors.h"
#include "winnow/verify.h"

static wn_context *ctx;
static char folder[512], path[600];

static float one[6] = {1, 2, 3, 4, 5, 6};
static int64_t wide[2] = {-1, 7};
static uint8_t bytes3[3] = {9, 8, 7};
static const wn_safetensors_entry entries[] = {
    {.name = "bytes", .dtype = WN_U8, .ndim = 1, .shape = {3}, .data = bytes3, .bytes = 3},
    {.name = "one", .dtype = WN_F32, .ndim = 2, .shape = {2, 3}, .data = one, .bytes = sizeof one},
    {.name = "none", .dtype = WN_F32, .ndim = 1, .shape = {0}, .data = one, .bytes = 0},
    {.name = "wide", .dtype = WN_I64, .ndim = 1, .shape = {2}, .data = wide, .bytes = sizeof wide}};

static wn_status make_gguf(void *user, int i, void *out, size_t bytes) {
  (void)user;
  memset(out, i + 1, bytes);
  return WN_OK;
}

static void write_gguf(const char *to) {
  const wn_gguf_tensor tensors[] = {{.name = "first", .type = WN_GGUF_F32, .ndim = 1, .shape = {3}},
                                    {.name = "second", .type = WN_GGUF_Q8_0, .ndim = 2, .shape = {2, 32}}};
  wn_gguf_values *values;
  assert_ok(ctx, wn_gguf_values_create(ctx, &values));
  wn_gguf_values_put_string(values, "general.architecture", "llama", 5);
  wn_gguf_values_put_uint(values, "llama.block_count", 2);
  assert_ok(ctx, wn_gguf_write(ctx, to, values, tensors, 2, make_gguf, NULL));
  wn_gguf_values_destroy(values);
}

static size_t read_back(uint8_t *out, size_t room) {
  FILE *f = fopen(path, "rb");
  assert_non_null(f);
  const size_t n = fread(out, 1, room, f);
  fclose(f);
  assert_true(n > 0 && n < room);
  return n;
}

static wn_status check(const uint8_t *data, size_t bytes, bool gguf, bool *has) {
  wn_safetensors *s = NULL;
  wn_gguf *g = NULL;
  wn_status status = gguf ? wn_gguf_open_memory(ctx, "the.file", data, bytes, &g)
                          : wn_safetensors_open_memory(ctx, "the.file", data, bytes, &s);
  if (status == WN_OK) status = gguf ? wn_gguf_verify(ctx, g, has) : wn_safetensors_verify(ctx, s, has);
  wn_gguf_close(g);
  wn_safetensors_close(s);
  return status;
}

static void every_bit_of_a_file(void **state) {
  (void)state;
  static const char *const names[2][4] = {{"wide", "one", "bytes", "none"}, {"first", "second", "second", "second"}};
  static uint8_t good[8192], bad[8192];
  for (int gguf = 0; gguf < 2; gguf++) {
    bool has = false;
    if (gguf)
      write_gguf(path);
    else
      assert_ok(ctx, wn_safetensors_write(ctx, path, entries, 4, (const char *const[]){"format", "pt", NULL}));
    const size_t n = read_back(good, sizeof good);
    assert_ok(ctx, check(good, n, gguf, &has));
    assert_true(has);
    int tensors = 0;
    for (size_t bit = 0; bit < 8 * n; bit++) {
      memcpy(bad, good, n);
      bad[bit / 8] ^= (uint8_t)(1u << bit % 8);
      const wn_status status = check(bad, n, gguf, NULL);
      const char *error = wn_context_error(ctx);
      if (status == WN_OK) fail_msg("bit %zu of %s was not noticed", bit, gguf ? "a GGUF file" : "a safetensors file");
      assert_true(status == WN_ERR_FORMAT || status == WN_ERR_UNSUPPORTED); /* unknown versions and types */
      assert_non_null(strstr(error, "the.file"));
      bool named = false;
      for (int k = 0; k < 4; k++) {
        char text[64];
        snprintf(text, sizeof text, "tensor \"%s\" is damaged", names[gguf][k]);
        named = named || strstr(error, text);
      }
      tensors += named;
    }
    /* For every bit of the data its tensor is named. */
    assert_int_equal(tensors, gguf ? 8 * (32 + 96) : 8 * (sizeof one + sizeof wide + sizeof bytes3));
    assert_int_not_equal(check(good, n - 1, gguf, NULL), WN_OK);
  }
}

static void a_changed_tensor_is_named(void **state) {
  (void)state;
  static uint8_t data[8192];
  assert_ok(ctx, wn_safetensors_write(ctx, path, entries, 4, NULL));
  size_t n = read_back(data, sizeof data);
  data[n - 1] ^= 1;                /* "bytes" */
  data[n - 3 - sizeof one] ^= 128; /* "one" */
  assert_refused(ctx, check(data, n, false, NULL), WN_ERR_FORMAT,
                 "the.file: tensor \"one\" is damaged: its checksum is ");
  assert_non_null(strstr(wn_context_error(ctx), "; 1 more tensors are"));
}

static void files_of_others_have_none(void **state) {
  (void)state;
  static const char header[] = "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
                               "\"__metadata__\":{\"format\":\"xxh3 sums\"}}";
  uint8_t data[256] = {sizeof header - 1};
  bool has = true;
  memcpy(data + 8, header, sizeof header - 1);
  assert_ok(ctx, check(data, 8 + sizeof header, false, &has));
  assert_false(has);
}

/* The checksums stand under the key in an escaped form, and the header ends with a short value under the plain one. */
static void a_hostile_header_is_refused(void **state) {
  (void)state;
  static const char header[] =
      "{\"__metadata__\":{\"winnow\\u002echecksums\":\"xxh3 0000000000000000 0000000000000000\"},"
      "\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1],\"" WN_CHECKSUM_KEY "\":\"\"}}";
  uint8_t data[256] = {sizeof header - 1};
  bool has;
  memcpy(data + 8, header, sizeof header - 1);
  assert_refused(ctx, check(data, 8 + sizeof header, false, &has), WN_ERR_FORMAT, "the.file: the header is damaged");
}

/* A key of that name set by the caller, and data that a callback produces. */
static wn_status produce(void *user, int i, void *out, size_t bytes) {
  (void)user;
  if (bytes) memcpy(out, entries[i].data, bytes);
  return WN_OK;
}
static void written_both_ways(void **state) {
  (void)state;
  static uint8_t a[8192], b[8192];
  assert_ok(ctx, wn_safetensors_write(ctx, path, entries, 4, NULL));
  const size_t n = read_back(a, sizeof a);
  assert_ok(ctx, wn_safetensors_write_made(ctx, path, entries, 4, NULL, produce, NULL));
  assert_int_equal(read_back(b, sizeof b), n);
  assert_memory_equal(a, b, n);
  assert_refused(ctx, wn_safetensors_write(ctx, path, entries, 4, (const char *const[]){WN_CHECKSUM_KEY, "x", NULL}),
                 WN_ERR_ARGUMENT, "twice");
  const wn_gguf_tensor pair[] = {{.name = "b", .type = WN_GGUF_F32, .ndim = 1, .shape = {3}},
                                 {.name = "a", .type = WN_GGUF_F32, .ndim = 1, .shape = {3}},
                                 {.name = "b", .type = WN_GGUF_F32, .ndim = 1, .shape = {2}}};
  wn_gguf_values *values;
  assert_ok(ctx, wn_gguf_values_create(ctx, &values));
  assert_refused(ctx, wn_gguf_write(ctx, path_in(folder, "twice.gguf"), values, pair, 3, make_gguf, NULL),
                 WN_ERR_ARGUMENT, "\"b\" is there twice");
  wn_gguf_values_destroy(values);
  assert_ok(ctx, wn_safetensors_write(ctx, path, NULL, 0, NULL)); /* without tensors */
  bool has = false;
  assert_ok(ctx, check(b, read_back(b, sizeof b), false, &has));
  assert_true(has);
}

/* XXH3's own test values: other programs compute the same checksums. */
static void sums_are_xxh3(void **state) {
  (void)state;
  assert_true(wn_checksum("", 0) == 0x2d06800538d394c2u);
  uint8_t many[5000];
  for (size_t i = 0; i < sizeof many; i++) many[i] = (uint8_t)(i * 7 + i / 256);
  struct wn_checksum_stream s;
  wn_checksum_begin(&s);
  for (size_t i = 0; i < sizeof many; i += 77)
    wn_checksum_add(&s, many + i, sizeof many - i < 77 ? sizeof many - i : 77);
  assert_true(wn_checksum_end(&s) == wn_checksum(many, sizeof many));
}

struct seen {
  int count, states[4];
  char last[1200];
};
static bool see(void *user, const wn_file_report *r) {
  struct seen *s = user;
  s->count++;
  s->states[r->state]++;
  snprintf(s->last, sizeof s->last, "%s|%s|%s", r->kind, wn_file_state_name(r->state), r->detail);
  return true;
}

static void folders_are_verified(void **state) {
  (void)state;
  char dir[560], file[700], other[700];
  int32_t tokens[4] = {1, 2, 3, 4};
  snprintf(dir, sizeof dir, "%s/all", folder);
  assert_int_equal(mkdir(dir, 0777), 0);
  struct seen s = {0};
  assert_refused(ctx, wn_verify(ctx, dir, see, &s), WN_ERR_ARGUMENT, "no safetensors, GGUF or token file");
  snprintf(file, sizeof file, "%s/model.safetensors", dir);
  assert_ok(ctx, wn_safetensors_write(ctx, file, entries, 4, NULL));
  snprintf(other, sizeof other, "%s/m.gguf", dir);
  write_gguf(other);
  snprintf(other, sizeof other, "%s/val.bin", dir);
  assert_ok(ctx, wn_token_file_write(ctx, other, "llmc", 100, tokens, 4));
  snprintf(other, sizeof other, "%s/pytorch_model.bin", dir); /* a file of another program */
  put_file(other, "PK\003\004, and so on", 15);
  assert_ok(ctx, wn_verify(ctx, dir, see, &s));
  assert_true(s.count == 3 && s.states[WN_FILE_OK] == 3);
  FILE *f = fopen(file, "r+b");
  assert_non_null(f);
  assert_int_equal(fseek(f, -1, SEEK_END), 0);
  fputc(0x55, f);
  fclose(f);
  s = (struct seen){0};
  assert_refused(ctx, wn_verify(ctx, dir, see, &s), WN_ERR_FORMAT, "model.safetensors: tensor \"bytes\" is damaged");
  assert_true(s.count == 3 && s.states[WN_FILE_OK] == 2 && s.states[WN_FILE_DAMAGED] == 1);
  s = (struct seen){0};
  assert_int_equal(wn_verify(ctx, file, see, &s), WN_ERR_FORMAT);
  assert_non_null(strstr(s.last, "safetensors|damaged|tensor \"bytes\" is damaged"));
  snprintf(other, sizeof other, "%s/missing.gguf", dir);
  s = (struct seen){0};
  assert_refused(ctx, wn_verify(ctx, other, see, &s), WN_ERR_IO, "missing.gguf");
  assert_int_equal(s.count, 0);
  assert_int_equal(symlink("nowhere", other), 0); /* as a file of the folder */
  assert_refused(ctx, wn_verify(ctx, dir, see, &s), WN_ERR_IO, "missing.gguf");
  assert_true(s.count == 4 && s.states[WN_FILE_UNREADABLE] == 1 && s.states[WN_FILE_DAMAGED] == 1);
  assert_int_equal(wn_verify(ctx, NULL, NULL, NULL), WN_ERR_ARGUMENT);
  assert_int_equal(wn_verify(NULL, dir, NULL, NULL), WN_ERR_ARGUMENT);
}

static int setup(void **state) {
  (void)state;
  ctx = make_context();
  make_folder(folder);
  snprintf(path, sizeof path, "%s/file", folder);
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
      cmocka_unit_test(every_bit_of_a_file),       cmocka_unit_test(a_changed_tensor_is_named),
      cmocka_unit_test(files_of_others_have_none), cmocka_unit_test(a_hostile_header_is_refused),
      cmocka_unit_test(written_both_ways),         cmocka_unit_test(sums_are_xxh3),
      cmocka_unit_test(folders_are_verified)};
  return cmocka_run_group_tests(tests, setup, teardown);
}
