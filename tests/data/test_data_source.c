/* Data sources: batches as pure functions of seed and step, epochs without replacement, validation that covers every
 * token, packing. The synthetic tasks are solved a second time from the sequence alone. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/rng.h"
#include "winnow/data.h"

static wn_context *ctx;
static char dir[64], path[128];

static int setup(void **state) {
  (void)state;
  snprintf(dir, sizeof dir, "/tmp/wn_data_source_XXXXXX");
  if (!mkdtemp(dir)) return -1;
  snprintf(path, sizeof path, "%s/t.bin", dir);
  return wn_context_create(NULL, &ctx) == WN_OK ? 0 : -1;
}
static int teardown(void **state) {
  (void)state;
  wn_context_destroy(ctx);
  unlink(path);
  return rmdir(dir);
}

/* A file of the tokens 0, 1, 2, ... so that a token is its own position. */
static wn_data_config counting(int32_t count) {
  int32_t *tokens = malloc((size_t)count * sizeof *tokens);
  for (int32_t i = 0; i < count; i++) tokens[i] = i;
  assert_int_equal(wn_token_file_write(ctx, path, "llmc", count, tokens, (uint64_t)count), WN_OK);
  free(tokens);
  wn_data_config c = {.kind = WN_DATA_TOKENS, .document_token = -1};
  snprintf(c.train, sizeof c.train, "%s", path);
  snprintf(c.val, sizeof c.val, "%s", path);
  return c;
}
static wn_data_source *open_source(const wn_data_config *c, const char *split, int64_t T, int32_t V) {
  wn_data_source *s = NULL;
  wn_status status = wn_data_source_create(ctx, c, split, T, V, &s);
  if (status != WN_OK) fail_msg("%s", wn_context_error(ctx));
  return s;
}

static void test_permutation(void **state) {
  (void)state;
  for (uint64_t n = 1; n <= 130; n++) {
    uint8_t seen[130] = {0};
    for (uint64_t i = 0; i < n; i++) {
      uint64_t j = wn_random_permute(5, WN_STREAM_TEST, 1, n, i);
      assert_true(j < n);
      assert_int_equal(seen[j]++, 0);
    }
  }
}

static void test_epochs(void **state) {
  (void)state;
  enum { T = 8, V = 803, BLOCKS = 100, B = 5 }; /* 802 = 100 * 8 + 2: blocks shift by up to 2 */
  wn_data_config c = counting(V);
  wn_data_source *s = open_source(&c, "train", T, V);
  assert_int_equal(wn_data_source_batches(s, B), BLOCKS / B);
  int32_t tokens[B * T], targets[B * T], order[3][BLOCKS];
  bool last_used = false;
  for (int epoch = 0; epoch < 3; epoch++) {
    uint8_t seen[BLOCKS] = {0};
    for (int k = 0; k < BLOCKS / B; k++) {
      assert_int_equal(wn_data_source_batch(ctx, s, 11, (uint64_t)(epoch * BLOCKS / B + k), B, tokens, targets, NULL),
                       WN_OK);
      assert_false(wn_data_source_packs(s));
      for (int r = 0; r < B; r++) {
        int32_t first = tokens[r * T], offset = first % T;
        assert_true(offset <= 2);
        assert_int_equal(seen[first / T]++, 0); /* without replacement */
        order[epoch][k * B + r] = first / T;
        for (int i = 0; i < T; i++) {
          assert_int_equal(tokens[r * T + i], first + i);
          assert_int_equal(targets[r * T + i], first + i + 1);
          last_used |= targets[r * T + i] == V - 1;
        }
      }
    }
  }
  assert_memory_not_equal(order[0], order[1], sizeof order[0]);
  assert_memory_not_equal(order[1], order[2], sizeof order[0]);
  int in_place = 0;
  for (int i = 0; i < BLOCKS; i++) in_place += order[0][i] == i;
  assert_true(in_place < 15);                          /* shuffled: about 1 expected */
  for (uint64_t k = 60; !last_used && k < 2000; k++) { /* some shift uses the last token */
    assert_int_equal(wn_data_source_batch(ctx, s, 11, k, B, tokens, targets, NULL), WN_OK);
    for (int i = 0; i < B * T; i++) last_used |= targets[i] == V - 1;
  }
  assert_true(last_used);
  wn_data_source_destroy(s);
}

static void test_pure(void **state) {
  (void)state;
  enum { T = 8, V = 500 };
  wn_data_config c = counting(V);
  wn_data_source *a = open_source(&c, "train", T, V), *b = open_source(&c, "train", T, V);
  int32_t x[4 * T], y[4 * T], tx[4 * T], ty[4 * T];
  for (uint64_t step = 40; step-- > 0;) { /* backwards: batches depend on no earlier call */
    assert_int_equal(wn_data_source_batch(ctx, a, 3, step, 4, x, tx, NULL), WN_OK);
    assert_int_equal(wn_data_source_batch(ctx, b, 3, 2 * step, 2, y, ty, NULL), WN_OK);
    assert_int_equal(wn_data_source_batch(ctx, b, 3, 2 * step + 1, 2, y + 2 * T, ty + 2 * T, NULL), WN_OK);
    assert_memory_equal(x, y, sizeof x);
    assert_memory_equal(tx, ty, sizeof tx);
  }
  assert_int_equal(wn_data_source_batch(ctx, b, 4, 0, 4, y, ty, NULL), WN_OK);
  assert_memory_not_equal(x, y, sizeof x); /* another seed differs */
  assert_int_equal(wn_data_source_batch(ctx, a, 3, UINT64_MAX / 2, 4, x, tx, NULL), WN_ERR_ARGUMENT);
  assert_int_equal(wn_data_source_batch(ctx, a, 3, 0, 0, x, tx, NULL), WN_ERR_ARGUMENT);
  wn_data_source_destroy(a);
  wn_data_source_destroy(b);
}

/* One pass over a validation source counts every token but the first exactly once, for any T and B. */
static void test_validation_covers(void **state) {
  (void)state;
  enum { V = 101 };
  wn_data_config c = counting(V);
  int32_t tokens[7 * 200], targets[7 * 200];
  static const int64_t lengths[] = {1, 20, 25, 34, 50, 67, 100, 133, 199}; /* some divide the 100 targets */
  for (size_t n = 0; n < sizeof lengths / sizeof *lengths; n++)
    for (int64_t B = 1; B <= 7; B += 3) {
      const int64_t T = lengths[n];
      wn_data_source *s = open_source(&c, "val", T, V);
      uint8_t seen[V] = {0};
      int32_t next = 1;
      uint64_t batches = wn_data_source_batches(s, B);
      assert_int_equal(batches, ((V - 1 + T - 1) / T + B - 1) / B); /* no batch is all padding */
      for (uint64_t k = 0; k < batches; k++) {
        assert_int_equal(wn_data_source_batch(ctx, s, 0, k, B, tokens, targets, NULL), WN_OK);
        for (int64_t i = 0; i < B * T; i++) {
          if (targets[i] < 0) continue;
          assert_int_equal(tokens[i] + 1, targets[i]);
          assert_int_equal(targets[i], next++); /* in file order */
          assert_int_equal(seen[targets[i]]++, 0);
        }
      }
      assert_int_equal(next, V);
      wn_data_source_destroy(s);
    }
}

/* data.json in the token file's folder. */
static const char *data_json(void) {
  static char beside[160];
  snprintf(beside, sizeof beside, "%s/data.json", dir);
  return beside;
}
static void write_data_json(const char *text) {
  FILE *f = fopen(data_json(), "w");
  assert_non_null(f);
  fputs(text, f);
  fclose(f);
}
static void remove_data_json(void) {
  assert_int_equal(unlink(data_json()), 0);
}

static void test_packing(void **state) {
  (void)state;
  int32_t file[] = {5, 6, 1, 7, 8, 1, 1, 9, 5, 6}, tokens[9], targets[9], start[9];
  assert_int_equal(wn_token_file_write(ctx, path, "nanogpt", 10, file, 10), WN_OK);
  wn_data_config c = {.kind = WN_DATA_TOKENS, .pack = true, .document_token = 1};
  snprintf(c.val, sizeof c.val, "%s", path);
  wn_data_source *s = open_source(&c, "val", 9, 10);
  assert_int_equal(wn_data_source_batch(ctx, s, 0, 0, 1, tokens, targets, start), WN_OK);
  assert_true(wn_data_source_packs(s));
  const int32_t expected[9] = {0, 0, 2, 2, 2, 5, 6, 6, 6};
  assert_memory_equal(start, expected, sizeof expected);
  wn_data_source_destroy(s);
  c.document_token = -1; /* unset: an error, unless data.json in the folder has it */
  assert_int_equal(wn_data_source_create(ctx, &c, "val", 9, 10, &s), WN_ERR_CONFIG);
  assert_non_null(strstr(wn_context_error(ctx), "packed documents need data.document_token"));
  write_data_json("{\"document_token\": 1}");
  s = open_source(&c, "val", 9, 10);
  assert_int_equal(wn_data_source_batch(ctx, s, 0, 0, 1, tokens, targets, start), WN_OK);
  assert_memory_equal(start, expected, sizeof expected);
  wn_data_source_destroy(s);
  remove_data_json();
  c.document_token = 10;
  assert_int_equal(wn_data_source_create(ctx, &c, "val", 9, 10, &s), WN_ERR_CONFIG);
  assert_non_null(strstr(wn_context_error(ctx), "outside the vocabulary"));
}

/* One document per sequence. The file has documents of 12, 3, 1 and 9 tokens after two tokens that belong to none. With
 * 8 tokens a sequence, the longest document gives its first 9: 8 inputs and 8 targets. A document is long if it fills
 * 90% of a sequence: at least 8 tokens. */
static const int32_t document_tokens[] = {7, 8,  1,  20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30,
                                          1, 31, 32, 1,  1,  40, 41, 42, 43, 44, 45, 46, 47};

static wn_data_config documents(bool long_only) {
  const uint64_t count = sizeof document_tokens / sizeof *document_tokens;
  assert_int_equal(wn_token_file_write(ctx, path, "nanogpt", 50, document_tokens, count), WN_OK);
  wn_data_config c = {.kind = WN_DATA_TOKENS, .document_token = 1, .rows = WN_ROWS_DOCUMENT, .long_only = long_only};
  snprintf(c.train, sizeof c.train, "%s", path);
  snprintf(c.val, sizeof c.val, "%s", path);
  return c;
}

static void test_documents_in_file_order(void **state) {
  (void)state;
  enum { T = 8, B = 2 };
  static const int32_t rows[4][T] = {
      {1, 20, 21, 22, 23, 24, 25, 26}, {1, 31, 0, 0, 0, 0, 0, 0}, {1, 40, 41, 42, 43, 44, 45, 46}, {0}};
  static const int32_t next[4][T] = {{20, 21, 22, 23, 24, 25, 26, 27},
                                     {31, 32, -1, -1, -1, -1, -1, -1},
                                     {40, 41, 42, 43, 44, 45, 46, 47},
                                     {-1, -1, -1, -1, -1, -1, -1, -1}};
  int32_t x[4 * T], y[4 * T], start[2 * T];
  wn_data_config c = documents(false);
  wn_data_source *s = open_source(&c, "val", T, 50);
  assert_int_equal(wn_data_source_batches(s, B), 2); /* a document of one token has nothing to predict */
  assert_false(wn_data_source_packs(s));
  for (uint64_t k = 0; k < 2; k++)
    assert_int_equal(wn_data_source_batch(ctx, s, 5, k, B, x + k * B * T, y + k * B * T, start), WN_OK);
  assert_memory_equal(x, rows, sizeof rows);
  assert_memory_equal(y, next, sizeof next);
  wn_data_source_destroy(s);
  c = documents(true);
  s = open_source(&c, "val", T, 50);
  assert_int_equal(wn_data_source_batches(s, 1), 2);
  assert_int_equal(wn_data_source_batch(ctx, s, 5, 1, 1, x, y, NULL), WN_OK);
  assert_memory_equal(x, rows[2], sizeof rows[2]);
  wn_data_source_destroy(s);
}

/* Each epoch has every document once, in its own order. A batch is a function of its number. */
static void test_documents_in_training(void **state) {
  (void)state;
  enum { T = 8, EPOCHS = 40 };
  wn_data_config c = documents(false);
  wn_data_source *s = open_source(&c, "train", T, 50);
  int32_t x[3 * T], y[3 * T], again[T];
  int orders[6] = {0};
  for (uint64_t e = 0; e < EPOCHS; e++) {
    int seen = 0, first = 0;
    assert_int_equal(wn_data_source_batch(ctx, s, 5, e, 3, x, y, NULL), WN_OK);
    for (int r = 0; r < 3; r++) {
      const int which = x[r * T + 1] == 20 ? 0 : x[r * T + 1] == 31 ? 1 : 2;
      assert_int_equal(seen & 1 << which, 0);
      assert_int_equal(x[r * T], 1);
      assert_int_equal(y[r * T + 2], which == 1 ? -1 : x[r * T + 2] + 1);
      seen |= 1 << which;
      if (r == 0) first = which;
      if (r == 1) orders[2 * first + (which > first ? which - 1 : which)]++;
    }
    assert_int_equal(wn_data_source_batch(ctx, s, 5, 3 * e + 2, 1, again, y, NULL), WN_OK);
    assert_memory_equal(again, x + 2 * T, sizeof again);
  }
  for (int i = 0; i < 6; i++) assert_true(orders[i] > 0);
  wn_data_source_destroy(s);
}

static void test_documents_refused(void **state) {
  (void)state;
  wn_data_config c = documents(true);
  wn_data_source *s;
  assert_int_equal(wn_data_source_create(ctx, &c, "val", 40, 50, &s), WN_ERR_FORMAT);
  assert_non_null(strstr(wn_context_error(ctx), "90%"));
  c.pack = true;
  assert_int_equal(wn_data_source_create(ctx, &c, "val", 8, 50, &s), WN_ERR_CONFIG);
  c.pack = false, c.rows = WN_ROWS_BLOCKS;
  assert_int_equal(wn_data_source_create(ctx, &c, "val", 8, 50, &s), WN_ERR_CONFIG);
  assert_non_null(strstr(wn_context_error(ctx), "data.rows"));
  c.rows = WN_ROWS_DOCUMENT, c.document_token = 49;
  assert_int_equal(wn_data_source_create(ctx, &c, "val", 8, 50, &s), WN_ERR_FORMAT);
  c.document_token = 50;
  assert_int_equal(wn_data_source_create(ctx, &c, "val", 8, 50, &s), WN_ERR_CONFIG);
  assert_non_null(strstr(wn_context_error(ctx), "outside the vocabulary"));
  c.document_token = -1; /* unset: an error, unless data.json in the folder has it */
  assert_int_equal(wn_data_source_create(ctx, &c, "val", 8, 50, &s), WN_ERR_CONFIG);
  assert_non_null(strstr(wn_context_error(ctx), "document_token"));
  write_data_json("{\"vocab_size\": 50, \"document_token\": 1}");
  s = open_source(&c, "val", 8, 50);
  assert_int_equal(wn_data_source_batches(s, 1), 2);
  wn_data_source_destroy(s);
  remove_data_json();
}

static void test_refused(void **state) {
  (void)state;
  wn_data_config c = counting(100);
  wn_data_source *s;
  assert_int_equal(wn_data_source_create(ctx, &c, "train", 100, 100, &s), WN_ERR_FORMAT);
  assert_null(s);
  assert_non_null(strstr(wn_context_error(ctx), "shorter than a block"));
  s = open_source(&c, "train", 99, 100);
  wn_data_source_destroy(s);
  assert_int_equal(wn_data_source_create(ctx, &c, "test", 9, 100, &s), WN_ERR_ARGUMENT);
  assert_int_equal(wn_data_source_create(ctx, &c, "train", 0, 100, &s), WN_ERR_ARGUMENT);
  c.val[0] = 0;
  assert_int_equal(wn_data_source_create(ctx, &c, "val", 9, 100, &s), WN_ERR_CONFIG);
  int32_t tokens[99], targets[99];
  s = open_source(&c, "train", 99, 99); /* a vocabulary of 99 has no token 99 */
  assert_int_equal(wn_data_source_batch(ctx, s, 0, 0, 1, tokens, targets, NULL), WN_ERR_SHAPE);
  assert_non_null(strstr(wn_context_error(ctx), "token 99 is 99"));
  wn_data_source_destroy(s);

  wn_data_config v = {.kind = WN_DATA_VARIABLE_ASSIGNMENT, .variables = 3, .values = 10, .assignments = 8};
  assert_int_equal(wn_data_source_create(ctx, &v, "train", 16, 13, &s), WN_ERR_SHAPE);
  assert_int_equal(wn_data_source_create(ctx, &v, "train", 17, 12, &s), WN_ERR_SHAPE);
  v.eval_values = 11;
  assert_int_equal(wn_data_source_create(ctx, &v, "val", 17, 13, &s), WN_ERR_CONFIG);
  v.eval_values = 0;
  v.assignments = 0;
  assert_int_equal(wn_data_source_create(ctx, &v, "val", 17, 13, &s), WN_ERR_CONFIG);
}

enum { ROWS = 32, LONGEST = 300 };
static int32_t tokens[ROWS * LONGEST], targets[ROWS * LONGEST];

static void sample(const wn_data_config *c, const char *split, int64_t T, uint64_t step) {
  int64_t V, need;
  wn_data_config_requirements(c, &V, &need);
  assert_true(need <= T && T <= LONGEST);
  wn_data_source *s = open_source(c, split, T, (int32_t)V);
  assert_int_equal(wn_data_source_batches(s, 4), 0); /* no end */
  memset(tokens, 0x55, sizeof tokens);
  memset(targets, 0x55, sizeof targets);
  assert_int_equal(wn_data_source_batch(ctx, s, 9, step, ROWS, tokens, targets, NULL), WN_OK);
  for (int64_t i = 0; i < ROWS * T; i++) {
    assert_in_range(tokens[i], 0, V - 1);
    assert_true(targets[i] >= -1 && targets[i] < V);
  }
  wn_data_source_destroy(s);
}

/* Reads the assignments from the start and keeps each variable's value. Returns the largest value seen. */
static int32_t solve_assignments(int variables, int assignments, int64_t T) {
  int32_t largest = 0;
  int queried[16] = {0};
  for (int r = 0; r < ROWS; r++) {
    const int32_t *row = tokens + r * T, *answer = targets + r * T;
    int32_t memory[16];
    for (int v = 0; v < variables; v++) memory[v] = -1;
    for (int a = 0; a < assignments; a++) {
      int32_t variable = row[2 * a], value = row[2 * a + 1];
      assert_in_range(variable, 0, variables - 1);
      assert_true(value >= variables);
      memory[variable] = value;
      if (value - variables > largest) largest = value - variables;
    }
    int32_t query = row[2 * assignments];
    assert_in_range(query, 0, variables - 1);
    assert_true(memory[query] >= 0);
    queried[query]++;
    for (int64_t i = 0; i < T; i++) assert_int_equal(answer[i], i == 2 * assignments ? memory[query] : -1);
  }
  int kinds = 0;
  for (int v = 0; v < variables; v++) kinds += queried[v] > 0;
  assert_true(kinds == variables || assignments < 8);
  return largest;
}

static void test_variable_assignment(void **state) {
  (void)state;
  wn_data_config c = {.kind = WN_DATA_VARIABLE_ASSIGNMENT, .variables = 3, .values = 100, .assignments = 64};
  int64_t V, need;
  wn_data_config_requirements(&c, &V, &need);
  assert_int_equal(V, 103);
  assert_int_equal(need, 129);
  for (uint64_t step = 0; step < 4; step++) {
    sample(&c, "train", 129 + (int64_t)step, step);
    assert_true(solve_assignments(3, 64, 129 + (int64_t)step) > 90);
  }
  int32_t train[ROWS * 129];
  sample(&c, "train", 129, 7);
  memcpy(train, tokens, sizeof train);
  sample(&c, "val", 129, 7);
  solve_assignments(3, 64, 129);
  assert_memory_not_equal(train, tokens, sizeof train); /* validation has its own samples */
  c.eval_values = 2;
  sample(&c, "val", 129, 1);
  assert_int_equal(solve_assignments(3, 64, 129), 1); /* with two values only */
  sample(&c, "train", 129, 7);
  assert_memory_equal(train, tokens, sizeof train); /* training samples do not change */
  c = (wn_data_config){.kind = WN_DATA_VARIABLE_ASSIGNMENT, .variables = 5, .values = 1, .assignments = 1};
  sample(&c, "train", 3, 0);
  solve_assignments(5, 1, 3);
}

static void test_copy(void **state) {
  (void)state;
  wn_data_config c = {.kind = WN_DATA_COPY, .values = 20, .max_length = 24};
  int64_t V, need;
  wn_data_config_requirements(&c, &V, &need);
  assert_int_equal(V, 23);
  assert_int_equal(need, 51); /* 2 * 24 + 3, as in the paper */
  int lengths[25] = {0};
  for (uint64_t step = 0; step < 20; step++) {
    int64_t T = 51 + (int64_t)step % 3;
    sample(&c, "train", T, step);
    for (int r = 0; r < ROWS; r++) {
      const int32_t *row = tokens + r * T, *answer = targets + r * T;
      assert_int_equal(row[0], 0);
      int n = 1;
      while (row[n] >= 3) n++;
      assert_int_equal(row[n], 1);
      int length = n - 1;
      assert_in_range(length, 1, 24);
      lengths[length]++;
      for (int64_t i = 0; i < T; i++) {
        int32_t expected = i < n || i > n + length ? -1 : i == n + length ? 2 : row[1 + i - n];
        assert_int_equal(answer[i], expected);
        if (i > n && i <= n + length) assert_int_equal(row[i], row[i - n]);
      }
      assert_int_equal(row[2 * length + 2], 2);
    }
  }
  for (int n = 1; n <= 24; n++) assert_true(lengths[n] > 5); /* 26.7 expected */
}

static void test_parity(void **state) {
  (void)state;
  for (int length = 2; length <= 260; length += 43) {
    wn_data_config c = {.kind = WN_DATA_PARITY, .max_length = length};
    int64_t T = length + length % 3;
    sample(&c, "val", T, 5);
    int ones = 0, drawn = 0;
    for (int r = 0; r < ROWS; r++) {
      const int32_t *row = tokens + r * T, *answer = targets + r * T;
      for (int position = 1; position <= T; position++) { /* from 1, as in the paper */
        if (position > length || position % 2 == 0) {
          assert_int_equal(answer[position - 1], -1);
          continue;
        }
        ones += row[position - 1];
        drawn++;
        int parity = 0;
        for (int j = 1; j <= position; j += 2) parity ^= row[j - 1];
        if (position + 1 > length) {
          assert_int_equal(answer[position - 1], -1);
        } else {
          assert_int_equal(answer[position - 1], parity);
          assert_int_equal(row[position], parity);
        }
      }
    }
    assert_true(ones > drawn / 4 && ones < drawn - drawn / 4);
  }
}

/* Streams: a sequence continues where it stopped; streams do not overlap; at their end all start again; batches are
 * still a pure function of the step. */
static void test_streams(void **state) {
  (void)state;
  enum { T = 4, V = 103, B = 3, EACH = 8 }; /* 25 blocks of 4: three streams of 8 */
  wn_data_config c = counting(V);
  c.stream = true;
  wn_data_source *s = open_source(&c, "train", T, V);
  assert_true(wn_data_source_streams(s));
  int32_t tokens[B * T], targets[B * T];
  for (uint64_t step = 0; step < 2 * EACH + 1; step++) {
    assert_int_equal(wn_data_source_batch(ctx, s, step, step, B, tokens, targets, NULL), WN_OK); /* any seed */
    assert_false(wn_data_source_packs(s));
    assert_int_equal(wn_data_source_continues(s, step, B), step % EACH != 0);
    for (int b = 0; b < B; b++) {
      for (int t = 0; t < T; t++) {
        assert_int_equal(tokens[b * T + t], (b * EACH + (int)(step % EACH)) * T + t);
        assert_int_equal(targets[b * T + t], tokens[b * T + t] + 1);
      }
    }
  }
  assert_int_equal(wn_data_source_batch(ctx, s, 0, 0, 25, (int32_t[25 * T]){0}, (int32_t[25 * T]){0}, NULL), WN_OK);
  assert_false(wn_data_source_continues(s, 1, 25));
  assert_int_equal(wn_data_source_batch(ctx, s, 0, 0, 26, (int32_t[26 * T]){0}, (int32_t[26 * T]){0}, NULL),
                   WN_ERR_FORMAT);
  wn_data_source_destroy(s);
  s = open_source(&c, "val", T, V); /* 26 blocks, the last of 2: every token after the first once */
  uint8_t seen[V] = {0};
  const uint64_t batches = wn_data_source_batches(s, B);
  assert_int_equal(batches, 9);
  for (uint64_t step = 0; step < batches; step++) {
    assert_int_equal(wn_data_source_batch(ctx, s, 0, step, B, tokens, targets, NULL), WN_OK);
    assert_int_equal(wn_data_source_continues(s, step, B), step != 0);
    for (int i = 0; i < B * T; i++) {
      if (targets[i] < 0) continue;
      assert_int_equal(targets[i], tokens[i] + 1);
      assert_int_equal(tokens[i], ((int)(i / T) * 9 + (int)step) * T + i % T);
      seen[targets[i]]++;
    }
  }
  for (int i = 0; i < V; i++) assert_int_equal(seen[i], i > 0);
  wn_data_source_destroy(s);
  c.pack = true;
  c.document_token = 3;
  assert_int_equal(wn_data_source_create(ctx, &c, "train", T, V, &s), WN_ERR_CONFIG);
  c = (wn_data_config){.kind = WN_DATA_PARITY, .max_length = 4, .stream = true};
  s = open_source(&c, "train", T, V);
  assert_false(wn_data_source_streams(s) || wn_data_source_continues(s, 1, B));
  wn_data_source_destroy(s);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_documents_in_file_order),
      cmocka_unit_test(test_documents_in_training),
      cmocka_unit_test(test_documents_refused),
      cmocka_unit_test(test_streams),
      cmocka_unit_test(test_permutation),
      cmocka_unit_test(test_epochs),
      cmocka_unit_test(test_pure),
      cmocka_unit_test(test_validation_covers),
      cmocka_unit_test(test_packing),
      cmocka_unit_test(test_refused),
      cmocka_unit_test(test_variable_assignment),
      cmocka_unit_test(test_copy),
      cmocka_unit_test(test_parity),
  };
  return cmocka_run_group_tests(tests, setup, teardown);
}
