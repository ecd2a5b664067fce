/* Evaluation totals against whole logits: every token but the first counts once, including the rest of a block. */
#include "tiny.h"

#include <math.h>

enum { CONTEXT = 16 };
static const char text[] = "The quick brown fox jumps over the lazy dog, twice.";
enum { BYTES = sizeof text - 1 }; /* 51: blocks of 16, 16, 16 and 2 predictions */

struct bench {
  wn_context *ctx;
  wn_model *model;
  wn_tokenizer *tok;
  double loss;
  uint64_t hits;
};

static void bench_init(struct bench *b) {
  *b = (struct bench){.ctx = tiny_context("cpu", 1)};
  wn_recipe r;
  tiny_recipe(&r, true);
  r.model.vocab_size = 256;
  r.model.context = CONTEXT;
  r.model.init_std = 0.3;
  must(b->ctx, wn_model_config_resolve(b->ctx, &r.model));
  must(b->ctx, wn_model_create(b->ctx, &r.model, 3, &b->model));
  must(b->ctx, wn_tokenizer_load(b->ctx, "bytes", &b->tok));
  float logits[CONTEXT * 256];
  int32_t ids[BYTES];
  for (int i = 0; i < BYTES; i++) ids[i] = (unsigned char)text[i];
  for (int at = 0; at + 1 < BYTES; at += CONTEXT) {
    int n = BYTES - 1 - at < CONTEXT ? BYTES - 1 - at : CONTEXT;
    must(b->ctx, wn_model_logits(b->ctx, b->model, ids + at, 1, n, NULL, logits));
    for (int t = 0; t < n; t++) {
      const float *row = logits + t * 256;
      double sum = 0;
      int best = 0, target = ids[at + t + 1];
      for (int v = 0; v < 256; v++) {
        sum += exp((double)row[v]);
        if (row[v] > row[best]) best = v;
      }
      b->loss += log(sum) - (double)row[target];
      b->hits += best == target;
    }
  }
}

static void bench_clear(struct bench *b) {
  wn_tokenizer_destroy(b->tok);
  wn_model_destroy(b->model);
  wn_context_destroy(b->ctx);
}

static void near(double found, double expected) {
  if (!(fabs(found - expected) < 1e-5 * (1 + fabs(expected)))) fail_msg("found %.9g, expected %.9g", found, expected);
}

static void check(const struct bench *b, const wn_eval_result *r) {
  assert_int_equal(r->tokens, BYTES - 1);
  near(r->loss, b->loss / (BYTES - 1));
  near(r->perplexity, exp(b->loss / (BYTES - 1)));
  near(r->accuracy, (double)b->hits / (BYTES - 1));
}

static void test_text(void **state) {
  (void)state;
  struct bench b;
  bench_init(&b);
  for (int64_t batch = 0; batch <= 5; batch++) {
    wn_eval_options options = {.size = sizeof options, .batch = batch};
    wn_eval_result r;
    must(b.ctx, wn_eval_text(b.ctx, b.model, b.tok, text, BYTES, &options, &r));
    check(&b, &r);
    assert_int_equal(r.bytes, BYTES - 1); /* the first byte is no target */
    near(r.bits_per_byte, b.loss / log(2) / (BYTES - 1));
  }
  wn_eval_options some = {.size = sizeof some, .batch = 1, .max_batches = 2};
  wn_eval_result r;
  must(b.ctx, wn_eval_text(b.ctx, b.model, b.tok, text, BYTES, &some, &r));
  assert_int_equal(r.tokens, 2 * CONTEXT);
  assert_true(r.bits_per_byte == 0); /* unknown for a part of the text */
  must(b.ctx, wn_eval_text(b.ctx, b.model, b.tok, text, 2, NULL, &r));
  assert_int_equal(r.tokens, 1);
  assert_int_equal(wn_eval_text(b.ctx, b.model, b.tok, text, 1, NULL, &r), WN_ERR_FORMAT);
  assert_int_equal(wn_eval_text(b.ctx, b.model, b.tok, text, 0, NULL, &r), WN_ERR_FORMAT);
  wn_eval_options bad = {.size = sizeof bad, .context = CONTEXT + 1};
  assert_int_equal(wn_eval_text(b.ctx, b.model, b.tok, text, BYTES, &bad, &r), WN_ERR_ARGUMENT);
  bench_clear(&b);
}

/* The sums of rows: those of the text's blocks, whatever the batch, with the error that their spread gives. */
static void test_rows(void **state) {
  (void)state;
  struct bench b;
  bench_init(&b);
  wn_row_sums first[4];
  for (int64_t batch = 1; batch <= 5; batch++) {
    wn_eval_rows rows;
    wn_eval_options options = {.size = sizeof options, .batch = batch, .rows = &rows};
    wn_eval_result r;
    double loss = 0, squares = 0;
    must(b.ctx, wn_eval_text(b.ctx, b.model, b.tok, text, BYTES, &options, &r));
    assert_int_equal(rows.count, 4);
    assert_string_equal(rows.unit, "block");
    for (int i = 0; i < 4; i++) {
      wn_eval_result block;
      const int64_t at = (int64_t)i * CONTEXT, n = i < 3 ? CONTEXT : 2;
      assert_true(rows.sums[i].tokens == (double)n);
      must(b.ctx, wn_eval_text(b.ctx, b.model, b.tok, text + at, (size_t)n + 1, NULL, &block));
      near(rows.sums[i].loss, block.loss * (double)n);
      near(rows.sums[i].hits, block.accuracy * (double)n);
      assert_true(block.loss_rows.rows == 1 && isnan(block.loss_rows.error) && isnan(block.loss_rows.low));
      loss += rows.sums[i].loss;
      const double residual = (rows.sums[i].loss - r.loss * (double)n) / (1 - (double)n / (BYTES - 1));
      squares += residual * residual;
    }
    near(loss / (BYTES - 1), r.loss);
    near(r.loss_rows.error, sqrt(0.75 * squares) / (BYTES - 1));
    assert_true(r.loss_rows.low < r.loss && r.loss < r.loss_rows.high && r.loss_rows.value == r.loss);
    if (batch == 1) memcpy(first, rows.sums, sizeof first);
    for (int i = 0; i < 4; i++) near(rows.sums[i].loss, first[i].loss);
    wn_eval_rows_clear(&rows);
  }
  bench_clear(&b);
}

/* Rows [count] are every `stride`-th row of `all`, rounded down. */
static void check_spread(const wn_eval_rows *rows, int64_t count, const wn_eval_rows *all) {
  assert_int_equal(rows->count, count);
  for (int64_t i = 0; i < count; i++) {
    const wn_row_sums *expected = &all->sums[i * all->count / count];
    assert_true(rows->sums[i].tokens == expected->tokens);
    near(rows->sums[i].loss, expected->loss);
  }
}

/* Fewer batches than all read rows spread evenly over a text, and over a source's documents, whatever the batch. */
static void test_spread(void **state) {
  (void)state;
  struct bench b;
  bench_init(&b);
  char dir[256];
  tiny_folder(dir);
  wn_recipe recipe;
  tiny_recipe(&recipe, true);
  recipe.data.kind = WN_DATA_TOKENS;
  recipe.data.rows = WN_ROWS_DOCUMENT;
  recipe.data.document_token = 0;
  snprintf(recipe.data.val, sizeof recipe.data.val, "%s/val.bin", dir);
  enum { DOCUMENTS = 11, LENGTH = 9 };
  int32_t ids[DOCUMENTS * LENGTH];
  for (int i = 0; i < DOCUMENTS * LENGTH; i++) ids[i] = i % LENGTH ? 1 + (37 * i) % 255 : 0;
  must(b.ctx, wn_token_file_write(b.ctx, recipe.data.val, "llmc", 256, ids, DOCUMENTS * LENGTH));
  wn_data_source *source = NULL;
  must(b.ctx, wn_data_source_create(b.ctx, &recipe.data, "val", CONTEXT, 256, &source));
  static const struct {
    bool text;
    int64_t batch;
    uint64_t batches;
  } cases[] = {{true, 1, 2}, {true, 1, 3}, {true, 2, 1}, {false, 1, 4}, {false, 2, 2}, {false, 3, 3}, {false, 5, 1}};
  wn_eval_rows all[2];
  wn_eval_result r;
  wn_eval_options options = {.size = sizeof options, .rows = &all[0]};
  must(b.ctx, wn_eval(b.ctx, b.model, source, &options, &r));
  options.rows = &all[1];
  must(b.ctx, wn_eval_text(b.ctx, b.model, b.tok, text, BYTES, &options, &r));
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    wn_eval_rows rows;
    options = (wn_eval_options){
        .size = sizeof options, .batch = cases[i].batch, .max_batches = cases[i].batches, .rows = &rows};
    if (cases[i].text)
      must(b.ctx, wn_eval_text(b.ctx, b.model, b.tok, text, BYTES, &options, &r));
    else
      must(b.ctx, wn_eval(b.ctx, b.model, source, &options, &r));
    check_spread(&rows, cases[i].batch * (int64_t)cases[i].batches, &all[cases[i].text]);
    wn_eval_rows_clear(&rows);
  }
  for (int i = 0; i < 2; i++) wn_eval_rows_clear(&all[i]);
  wn_data_source_destroy(source);
  bench_clear(&b);
  tiny_remove(dir);
}

/* The tokens of a text give the same bits as the text. */
static void test_tokens(void **state) {
  (void)state;
  struct bench b;
  bench_init(&b);
  int32_t ids[BYTES];
  for (int i = 0; i < BYTES; i++) ids[i] = (unsigned char)text[i];
  const wn_eval_options options = {.size = sizeof options, .batch = 2, .bytes = BYTES - 1};
  wn_eval_result expected, r;
  must(b.ctx, wn_eval_text(b.ctx, b.model, b.tok, text, BYTES, &options, &expected));
  must(b.ctx, wn_eval_tokens(b.ctx, b.model, ids, BYTES, &options, &r));
  assert_true(r.loss == expected.loss && r.accuracy == expected.accuracy && r.bits_per_byte == expected.bits_per_byte);
  assert_int_equal(r.bytes, BYTES - 1);
  must(b.ctx, wn_eval_tokens(b.ctx, b.model, ids, BYTES, NULL, &r));
  assert_true(r.bits_per_byte == 0); /* unknown */
  assert_int_equal(wn_eval_tokens(b.ctx, b.model, ids, 1, NULL, &r), WN_ERR_ARGUMENT);
  ids[3] = 256;
  assert_int_equal(wn_eval_tokens(b.ctx, b.model, ids, BYTES, NULL, &r), WN_ERR_ARGUMENT);
  bench_clear(&b);
}

/* One document per sequence: each document's loss is that of the document alone, cut at the context. Padding does not
 * count. */
static void test_documents(void **state) {
  (void)state;
  struct bench b;
  bench_init(&b);
  static const int lengths[] = {5,  30, 2, 1,
                                15, 17, 14}; /* sequences of 16; a document of one token predicts nothing */
  enum { DOCUMENTS = sizeof lengths / sizeof *lengths, MOST = 100 };
  int32_t ids[MOST];
  float logits[CONTEXT * 256];
  double loss = 0, long_loss = 0;
  uint64_t counted = 0, long_counted = 0;
  int all = 0;
  for (int d = 0; d < DOCUMENTS; d++) {
    const int first = all, n = lengths[d] > CONTEXT + 1 ? CONTEXT : lengths[d] - 1;
    for (int i = 0; i < lengths[d]; i++, all++) ids[all] = i ? 1 + (37 * all + 11 * d) % 255 : 0;
    if (n < 1) continue;
    must(b.ctx, wn_model_logits(b.ctx, b.model, ids + first, 1, n, NULL, logits));
    for (int t = 0; t < n; t++) {
      double sum = 0;
      for (int v = 0; v < 256; v++) sum += exp((double)logits[t * 256 + v]);
      const double one = log(sum) - (double)logits[t * 256 + ids[first + t + 1]];
      loss += one, counted++;
      if (lengths[d] >= 15) long_loss += one, long_counted++; /* long: 90% of 16 is more than 14 */
    }
  }
  char dir[256];
  tiny_folder(dir);
  wn_recipe recipe;
  tiny_recipe(&recipe, true);
  recipe.data.kind = WN_DATA_TOKENS;
  recipe.data.rows = WN_ROWS_DOCUMENT;
  recipe.data.document_token = 0;
  snprintf(recipe.data.val, sizeof recipe.data.val, "%s/val.bin", dir);
  must(b.ctx, wn_token_file_write(b.ctx, recipe.data.val, "llmc", 256, ids, (uint64_t)all));
  for (int64_t batch = 1; batch <= 4; batch++)
    for (int only = 0; only < 2; only++) {
      wn_data_source *source = NULL;
      wn_eval_options options = {.size = sizeof options, .batch = batch};
      wn_eval_result r;
      recipe.data.long_only = only;
      must(b.ctx, wn_data_source_create(b.ctx, &recipe.data, "val", CONTEXT, 256, &source));
      must(b.ctx, wn_eval(b.ctx, b.model, source, &options, &r));
      assert_int_equal(r.tokens, only ? long_counted : counted);
      near(r.loss, only ? long_loss / (double)long_counted : loss / (double)counted);
      wn_data_source_destroy(source);
    }
  bench_clear(&b);
  tiny_remove(dir);
}

/* The mean span is over tokens, however they are batched: here one batch is short and has other spans. */
static void test_mean_span(void **state) {
  (void)state;
  struct bench b = {.ctx = tiny_context("cpu", 1)};
  double first = 0;
  wn_recipe r;
  tiny_recipe(&r, false);
  r.model.vocab_size = 256, r.model.context = CONTEXT, r.model.init_std = 0.3;
  r.model.attention.span = (wn_span_config){.enabled = true, .dynamic = true, .limit = 16, .ramp = 4, .init = 0.5};
  must(b.ctx, wn_model_config_resolve(b.ctx, &r.model));
  must(b.ctx, wn_model_create(b.ctx, &r.model, 3, &b.model));
  must(b.ctx, wn_tokenizer_load(b.ctx, "bytes", &b.tok));
  for (int64_t batch = 1; batch <= 4; batch++) {
    wn_eval_options options = {.size = sizeof options, .batch = batch};
    wn_eval_result found;
    must(b.ctx, wn_eval_text(b.ctx, b.model, b.tok, text, BYTES, &options, &found));
    if (batch == 1) first = found.span;
    near(found.span, first);
  }
  assert_true(first > 0 && first < 16);
  bench_clear(&b);
}

static void test_token_file(void **state) {
  (void)state;
  struct bench b;
  bench_init(&b);
  char dir[256];
  tiny_folder(dir);
  wn_recipe recipe;
  tiny_recipe(&recipe, true);
  recipe.data.kind = WN_DATA_TOKENS;
  snprintf(recipe.data.val, sizeof recipe.data.val, "%s/val.bin", dir);
  int32_t ids[BYTES];
  for (int i = 0; i < BYTES; i++) ids[i] = (unsigned char)text[i];
  must(b.ctx, wn_token_file_write(b.ctx, recipe.data.val, "llmc", 256, ids, BYTES));
  wn_data_source *source = NULL;
  must(b.ctx, wn_data_source_create(b.ctx, &recipe.data, "val", CONTEXT, 256, &source));
  for (int64_t batch = 1; batch <= 5; batch++) {
    wn_eval_options options = {.size = sizeof options, .batch = batch, .bytes = BYTES - 1};
    wn_eval_result r;
    must(b.ctx, wn_eval(b.ctx, b.model, source, &options, &r));
    check(&b, &r);
    near(r.bits_per_byte, b.loss / log(2) / (BYTES - 1));
  }
  wn_context_cancel(b.ctx);
  wn_eval_result r;
  assert_int_equal(wn_eval(b.ctx, b.model, source, NULL, &r), WN_ERR_CANCELLED);
  wn_data_source_destroy(source);
  bench_clear(&b);
  tiny_remove(dir);
}

/* If the recurrence reaches all the way back, the blocks of one stream give the result of the whole text at once;
 * several streams give each its own. */
static void test_memory(void **state) {
  (void)state;
  wn_context *ctx = tiny_context("ref", 1);
  wn_recipe r;
  tiny_recipe(&r, false);
  r.model.vocab_size = 256;
  r.model.context = 64;
  r.model.init_std = 0.3;
  r.model.position = WN_POS_ROPE;
  wn_model *model = NULL;
  wn_tokenizer *tok = NULL;
  must(ctx, wn_model_create(ctx, &r.model, 3, &model));
  must(ctx, wn_tokenizer_load(ctx, "bytes", &tok));
  char dir[256];
  tiny_folder(dir);
  wn_recipe recipe;
  tiny_recipe(&recipe, false);
  recipe.data.kind = WN_DATA_TOKENS;
  snprintf(recipe.data.val, sizeof recipe.data.val, "%s/val.bin", dir);
  int32_t ids[BYTES];
  for (int i = 0; i < BYTES; i++) ids[i] = (unsigned char)text[i];
  must(ctx, wn_token_file_write(ctx, recipe.data.val, "llmc", 256, ids, BYTES));
  for (int64_t batch = 1; batch <= 2; batch++) {
    const int64_t each = batch == 1 ? 56 : 28; /* tokens in a stream: 7 blocks of 8; 4 of 7 */
    const int64_t T = batch == 1 ? 8 : 7;
    double loss = 0;
    for (int64_t at = 0; at < BYTES - 1; at += each) {
      const size_t n = (size_t)(BYTES - at < each + 1 ? BYTES - at : each + 1);
      wn_eval_result one;
      must(ctx, wn_eval_text(ctx, model, tok, text + at, n,
                             &(wn_eval_options){.size = sizeof(wn_eval_options), .batch = 1}, &one));
      loss += one.loss * (double)one.tokens;
    }
    wn_eval_options options = {.size = sizeof options, .batch = batch, .context = T, .recurrence = 60};
    wn_eval_result found;
    must(ctx, wn_eval_text(ctx, model, tok, text, BYTES, &options, &found));
    assert_int_equal(found.tokens, BYTES - 1);
    near(found.loss, loss / (BYTES - 1));
    wn_data_source *source = NULL;
    recipe.data.stream = true;
    must(ctx, wn_data_source_create(ctx, &recipe.data, "val", T, 256, &source));
    must(ctx, wn_eval(ctx, model, source, &options, &found));
    near(found.loss, loss / (BYTES - 1));
    must(ctx, wn_eval(ctx, model, source, &options, &found)); /* a second time: streams restart */
    near(found.loss, loss / (BYTES - 1));
    options.recurrence = -1; /* no recurrence */
    must(ctx, wn_eval(ctx, model, source, &options, &found));
    assert_true(fabs(found.loss - loss / (BYTES - 1)) > 1e-4);
    wn_data_source_destroy(source);
    recipe.data.stream = false;
    must(ctx, wn_data_source_create(ctx, &recipe.data, "val", T, 256, &source));
    options.recurrence = 60;
    assert_int_equal(wn_eval(ctx, model, source, &options, &found), WN_ERR_ARGUMENT);
    assert_non_null(strstr(wn_context_error(ctx), "data.stream"));
    wn_data_source_destroy(source);
  }
  wn_tokenizer_destroy(tok);
  wn_model_destroy(model);
  wn_context_destroy(ctx);
  tiny_remove(dir);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_text),   cmocka_unit_test(test_rows),
                                     cmocka_unit_test(test_tokens), cmocka_unit_test(test_documents),
                                     cmocka_unit_test(test_memory), cmocka_unit_test(test_token_file),
                                     cmocka_unit_test(test_spread), cmocka_unit_test(test_mean_span)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
