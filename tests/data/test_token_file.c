/* Token files: the three layouts, round trips, and files whose headers are wrong. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "data/token_file.h"

static wn_context *ctx;
static char dir[64], path[128];

static int setup(void **state) {
  (void)state;
  snprintf(dir, sizeof dir, "/tmp/wn_token_file_XXXXXX");
  if (!mkdtemp(dir)) return -1;
  snprintf(path, sizeof path, "%s/t.bin", dir);
  return wn_context_create(NULL, &ctx) == WN_OK ? 0 : -1;
}
static int teardown(void **state) {
  (void)state;
  wn_context_destroy(ctx);
  unlink(path);
  return rmdir(dir); /* fails if a temporary file is left */
}

static void put(const void *data, size_t bytes) {
  FILE *f = fopen(path, "wb");
  assert_non_null(f);
  assert_int_equal(fwrite(data, 1, bytes, f), bytes);
  fclose(f);
}
static void put_header(uint32_t magic, uint32_t version, uint32_t count, uint32_t high, size_t body) {
  uint8_t bytes[4096] = {0};
  uint32_t words[4] = {magic, version, count, high};
  memcpy(bytes, words, sizeof words);
  assert_true(1024 + body <= sizeof bytes);
  put(bytes, 1024 + body);
}
static void refused(wn_status expected, const char *part) {
  wn_token_file *f = NULL;
  assert_int_equal(wn_token_file_open(ctx, path, &f), expected);
  assert_null(f);
  assert_non_null(strstr(wn_context_error(ctx), path));
  if (!strstr(wn_context_error(ctx), part)) fail_msg("\"%s\" lacks \"%s\"", wn_context_error(ctx), part);
}

static void round_trip(const char *layout, int32_t vocab, int width, size_t header) {
  int32_t tokens[5000], back[5000];
  for (int i = 0; i < 5000; i++) tokens[i] = (int32_t)(((uint64_t)i * 7919 + 13) % (uint64_t)vocab);
  tokens[4999] = vocab - 1;
  assert_int_equal(wn_token_file_write(ctx, path, layout, vocab, tokens, 5000), WN_OK);
  FILE *raw = fopen(path, "rb");
  assert_non_null(raw);
  fseek(raw, 0, SEEK_END);
  assert_int_equal(ftell(raw), header + 5000 * (size_t)width);
  fclose(raw);
  wn_token_file *f;
  assert_int_equal(wn_token_file_open(ctx, path, &f), WN_OK);
  assert_int_equal(wn_token_file_count(f), 5000);
  assert_int_equal(wn_token_file_read(ctx, f, 0, 5000, back), WN_OK);
  assert_memory_equal(tokens, back, sizeof tokens);
  assert_int_equal(wn_token_file_read(ctx, f, 4997, 3, back), WN_OK);
  assert_memory_equal(tokens + 4997, back, 12);
  assert_int_equal(wn_token_file_read(ctx, f, 5000, 0, back), WN_OK);
  assert_int_equal(wn_token_file_read(ctx, f, 4998, 3, back), WN_ERR_ARGUMENT);
  assert_int_equal(wn_token_file_read(ctx, f, 5001, 0, back), WN_ERR_ARGUMENT);
  assert_int_equal(wn_token_file_read(ctx, f, UINT64_MAX, 2, back), WN_ERR_ARGUMENT);
  assert_int_equal(wn_token_file_read(ctx, f, 1, UINT64_MAX, back), WN_ERR_ARGUMENT);
  wn_token_file_close(f);
}

static void test_layouts(void **state) {
  (void)state;
  round_trip("llmc", 300, 2, 1024);
  round_trip("llmc", 65536, 2, 1024);
  round_trip("llmc", 65537, 4, 1024);
  round_trip("llmc", INT32_MAX, 4, 1024);
  round_trip("nanogpt", 50257, 2, 0);
  round_trip(NULL, 256, 2, 1024);
}

static void test_header_bytes(void **state) {
  (void)state;
  int32_t tokens[3] = {1, 258, 65535};
  assert_int_equal(wn_token_file_write(ctx, path, "llmc", 65536, tokens, 3), WN_OK);
  uint8_t bytes[1030];
  FILE *f = fopen(path, "rb");
  assert_non_null(f);
  assert_int_equal(fread(bytes, 1, sizeof bytes, f), sizeof bytes);
  fclose(f);
  int32_t header[256] = {20240520, 1, 3}; /* the header that llm.c's scripts write */
  assert_memory_equal(bytes, header, 16);
  assert_memory_equal(bytes + 16, "wn-xxh3\n", 8);
  assert_memory_equal(bytes + 40, (uint8_t *)header + 40, 1024 - 40);
  const uint8_t body[6] = {1, 0, 2, 1, 255, 255};
  assert_memory_equal(bytes + 1024, body, 6);
}

/* A flipped bit anywhere is found. Files without checksums, from winnow 0.1 or other programs, are read without that
 * check. */
static void test_every_bit(void **state) {
  (void)state;
  for (int wide = 0; wide < 2; wide++) {
    int32_t tokens[5] = {1, 258, 65535, 0, 7};
    uint8_t good[1100], bad[1100];
    bool has = false;
    wn_token_file *f;
    assert_int_equal(wn_token_file_write(ctx, path, "llmc", wide ? 70000 : 65536, tokens, 5), WN_OK);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    const size_t n = fread(good, 1, sizeof good, file);
    fclose(file);
    assert_int_equal(n, 1024 + 5 * (wide ? 4 : 2));
    assert_int_equal(wn_token_file_open(ctx, path, &f), WN_OK);
    assert_int_equal(wn_token_file_verify(ctx, f, &has), WN_OK);
    assert_true(has);
    wn_token_file_close(f);
    for (size_t bit = 0; bit < 8 * n; bit++) {
      memcpy(bad, good, n);
      bad[bit / 8] ^= (uint8_t)(1u << bit % 8);
      put(bad, n);
      if (wn_token_file_open(ctx, path, &f) != WN_ERR_FORMAT) fail_msg("bit %zu was not noticed", bit);
      assert_non_null(strstr(wn_context_error(ctx), path));
      if (bit >= 8 * 1024) assert_non_null(strstr(wn_context_error(ctx), "the tokens are damaged"));
    }
    memcpy(bad, good, n);
    memset(bad + 16, 0, 24);
    put(bad, n);
    assert_int_equal(wn_token_file_open(ctx, path, &f), WN_OK);
    assert_int_equal(wn_token_file_count(f), 5);
    assert_int_equal(wn_token_file_verify(ctx, f, &has), WN_OK);
    assert_false(has);
    wn_token_file_close(f);
  }
}

static void test_empty_count(void **state) {
  (void)state;
  assert_int_equal(wn_token_file_write(ctx, path, "llmc", 10, NULL, 0), WN_OK);
  wn_token_file *f;
  assert_int_equal(wn_token_file_open(ctx, path, &f), WN_OK);
  assert_int_equal(wn_token_file_count(f), 0);
  wn_token_file_close(f);
}

static void test_hostile(void **state) {
  (void)state;
  put("", 0);
  refused(WN_ERR_FORMAT, "empty");
  put("abc", 3);
  refused(WN_ERR_FORMAT, "not a token file");
  uint32_t magic = 20240520;
  put(&magic, 4);
  refused(WN_ERR_FORMAT, "truncated");
  put_header(20240520, 2, 10, 0, 20);
  refused(WN_ERR_FORMAT, "version 2");
  put_header(20240801, 1, 10, 0, 40);
  refused(WN_ERR_FORMAT, "version 1");
  put_header(20240520, 1, 11, 0, 20);
  refused(WN_ERR_FORMAT, "11 tokens");
  put_header(20240520, 1, 10, 0, 21);
  refused(WN_ERR_FORMAT, "21 bytes");
  put_header(20240801, 7, 10, 0, 39);
  refused(WN_ERR_FORMAT, "39 bytes");
  put_header(20240520, 1, UINT32_MAX, 0, 20);
  refused(WN_ERR_FORMAT, "4294967295 tokens");
  /* 2 * count overflows to exactly the body's size */
  put_header(20240520, 1, 10, 0x80000000u, 20);
  refused(WN_ERR_FORMAT, "tokens");
  put_header(20240801, 7, 5, 0x40000000u, 20);
  refused(WN_ERR_FORMAT, "tokens");
  unlink(path);
  refused(WN_ERR_IO, "No such file");
  wn_token_file *f = NULL;
  assert_int_equal(wn_token_file_open(ctx, dir, &f), WN_ERR_IO);
  assert_null(f);
}

static void test_wide_value(void **state) {
  (void)state;
  uint8_t bytes[1024 + 12] = {0};
  uint32_t header[3] = {20240801, 7, 3}, body[3] = {7, 8, 0x80000001u};
  memcpy(bytes, header, sizeof header);
  memcpy(bytes + 1024, body, sizeof body);
  put(bytes, sizeof bytes);
  wn_token_file *f;
  int32_t out[3];
  assert_int_equal(wn_token_file_open(ctx, path, &f), WN_OK);
  assert_int_equal(wn_token_file_read(ctx, f, 0, 2, out), WN_OK);
  assert_int_equal(wn_token_file_read(ctx, f, 1, 2, out), WN_ERR_FORMAT);
  assert_non_null(strstr(wn_context_error(ctx), "token 2 is 2147483649"));
  wn_token_file_close(f);
}

static void test_writer_refuses(void **state) {
  (void)state;
  int32_t good[2] = {1, 2}, bad[2] = {1, 10}, negative[2] = {-1, 0};
  assert_int_equal(wn_token_file_write(ctx, path, "llmc", 10, good, 2), WN_OK);
  assert_int_equal(wn_token_file_write(ctx, path, "llmc", 10, bad, 2), WN_ERR_ARGUMENT);
  assert_non_null(strstr(wn_context_error(ctx), "token 1 is 10"));
  assert_int_equal(wn_token_file_write(ctx, path, "llmc", 10, negative, 2), WN_ERR_ARGUMENT);
  assert_int_equal(wn_token_file_write(ctx, path, "parquet", 10, good, 2), WN_ERR_ARGUMENT);
  assert_int_equal(wn_token_file_write(ctx, path, "nanogpt", 65537, good, 2), WN_ERR_ARGUMENT);
  assert_int_equal(wn_token_file_write(ctx, path, "llmc", 0, good, 0), WN_ERR_ARGUMENT);
  /* the previous file is still whole */
  wn_token_file *f;
  int32_t out[2];
  assert_int_equal(wn_token_file_open(ctx, path, &f), WN_OK);
  assert_int_equal(wn_token_file_read(ctx, f, 0, 2, out), WN_OK);
  assert_memory_equal(out, good, sizeof good);
  wn_token_file_close(f);
}

/* Shards of any widths, in the order of their names, as one file; tokens are read across their ends. */
static void test_shards(void **state) {
  (void)state;
  enum { N = 30, SHARDS = 4 };
  static const int counts[SHARDS] = {7, 0, 12, 11};
  int32_t tokens[N], back[N];
  char shard[SHARDS][160], all[160];
  for (int i = 0; i < N; i++) tokens[i] = 3 * i + 1;
  int at = 0;
  for (int k = 0; k < SHARDS; k++) { /* "part_10" would come before "part_9" */
    snprintf(shard[k], sizeof shard[k], "%s/part_%d.bin", dir, 10 + k);
    assert_int_equal(
        wn_token_file_write(ctx, shard[k], "llmc", k == 2 ? 100000 : 100, tokens + at, (uint64_t)counts[k]), WN_OK);
    at += counts[k];
  }
  wn_token_file *f;
  snprintf(all, sizeof all, "%s/part_*.bin", dir);
  if (wn_token_file_open(ctx, all, &f) != WN_OK) fail_msg("%s", wn_context_error(ctx));
  assert_int_equal(wn_token_file_count(f), N);
  for (int first = 0; first <= N; first++)
    for (int count = 0; count <= N - first; count++) {
      assert_int_equal(wn_token_file_read(ctx, f, (uint64_t)first, (uint64_t)count, back), WN_OK);
      assert_memory_equal(back, tokens + first, (size_t)count * sizeof *back);
    }
  assert_int_equal(wn_token_file_read(ctx, f, 20, 11, back), WN_ERR_ARGUMENT);
  assert_non_null(strstr(wn_context_error(ctx), all));
  bool has = false;
  assert_int_equal(wn_token_file_verify(ctx, f, &has), WN_OK);
  assert_true(has);
  wn_token_file_close(f);
  FILE *bad = fopen(shard[3], "r+b");
  fseek(bad, 1030, SEEK_SET);
  fputc(77, bad);
  fclose(bad);
  assert_int_equal(wn_token_file_open(ctx, all, &f), WN_ERR_FORMAT);
  assert_non_null(strstr(wn_context_error(ctx), shard[3]));
  for (int k = 0; k < SHARDS; k++) unlink(shard[k]);
  assert_int_equal(wn_token_file_open(ctx, all, &f), WN_ERR_IO);
  assert_non_null(strstr(wn_context_error(ctx), "part_*.bin: no file has such a name"));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_every_bit),    cmocka_unit_test(test_layouts),        cmocka_unit_test(test_shards),
      cmocka_unit_test(test_header_bytes), cmocka_unit_test(test_empty_count),    cmocka_unit_test(test_wide_value),
      cmocka_unit_test(test_hostile),      cmocka_unit_test(test_writer_refuses),
  };
  return cmocka_run_group_tests(tests, setup, teardown);
}
