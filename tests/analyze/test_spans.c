/* The report of spans: its counts give the paper's own figures, static spans are the parameters, and dynamic spans are
 * those of the tokens that were read. */
#include "model/models.h"

#include "model/layer.h"
#include "support.h"
#include "train/eval.h"
#include "winnow/analyze.h"
#include "reach.h"

/* One layer of the paper's small or large model, all heads with the same span. *total is the count for all its layers.
 */
static wn_span_report *paper(bool large, double limit, double span, double *total) {
  wn_context *ctx = context_of("cpu", 1);
  wn_model_config c;
  wn_model_config_init(&c);
  c.vocab_size = 5;
  c.context = 8;
  c.recurrence = 4096;
  c.layers = 1;
  c.width = large ? 768 : 512;
  c.heads = 8;
  c.ffn_width = large ? 4096 : 2048;
  c.ffn = WN_FFN_RELU;
  c.position = WN_POS_NONE;
  c.attention.span.enabled = true;
  c.attention.span.limit = limit;
  c.attention.span.init = span / limit;
  c.attention.relative.enabled = true;
  wn_model *model;
  wn_span_report *r;
  OK(ctx, wn_model_create(ctx, &c, 1, &model));
  OK(ctx, wn_analyze_spans(ctx, model, NULL, &r));
  *total = (large ? 24 : 12) * r->operations.total;
  wn_model_destroy(model);
  wn_context_destroy(ctx);
  return r;
}

static void test_paper(void **state) {
  (void)state;
  double total;
  wn_span_report *r = paper(false, 8192, 314 - 32, &total);
  assert_true(fabs(total - 42e6) < 0.5e6); /* Table 1: 42M */
  assert_true(fabs(r->keys - 314) < 1e-3 && fabs(r->span - 282) < 1e-3);
  const wn_span_operations *o = &r->operations;
  assert_true(fabs((o->maps + o->attention_full) / o->total_full - 0.82) < 0.005); /* 82% at 8192 */
  assert_true(o->total == o->total_together && o->total == o->maps + o->ffn + o->attention);
  /* Of 4096 tokens of earlier blocks the last 314 are seen, in five tiles. A cache holds those and the current token.
   */
  assert_int_equal(r->layer[0].reach, 314);
  assert_int_equal(r->layer[0].recurrence_rows, 320);
  assert_int_equal(r->layer[0].cache_tokens, 315);
  assert_true(r->state_bytes == 320.0 * 512 * 4 && r->state_bytes_full == 4096.0 * 512 * 4);
  assert_true(r->cache_bytes == 315.0 * 1024 * 4 && r->cache_bytes_full == 4104.0 * 1024 * 4);
  wn_span_report_destroy(r);
  r = paper(true, 8192, 245 - 32, &total);
  assert_true(fabs(total - 216.6e6) < 0.1e6); /* Table 1 has 179M, fewer than the model's weights */
  wn_span_report_destroy(r);
  r = paper(false, 256, 256, &total);
  assert_true(fabs(r->operations.ffn / r->operations.total_full - 0.62) < 0.005); /* 62% at 256 */
  assert_true(r->operations.attention == r->operations.attention_full && r->keys == 256);
  wn_span_report_destroy(r);
}

static const struct model_case spans = {
    .position = WN_POS_ROPE,
    .ffn = WN_FFN_SWIGLU,
    .kv_heads = 2,
    .attention = "{\"span\":{\"limit\":100,\"ramp\":8},\"window\":50,\"window_layers\":\"01\"}"};

static void test_heads(void **state) {
  (void)state;
  static const double ratio[2][4] = {{0, 0.25, 0.5, 1}, {0.125, 0.375, 0.5, 0.0625}};
  wn_context *ctx = context_of("ref", 1);
  wn_model_config c = model_case_config(&spans);
  struct wn_model *model = model_of(ctx, &c, WN_F32);
  for (int l = 0; l < 2; l++)
    memcpy(wn_element(
               reach(model->params),
               (int64_t)model->table.rows[wn_param_find(&model->table, l ? "layers.1.attn.span" : "layers.0.attn.span")]
                   .offset,
               WN_F32),
           (const float[]){(float)ratio[l][0], (float)ratio[l][1], (float)ratio[l][2], (float)ratio[l][3]},
           4 * sizeof(float));
  wn_span_report *r;
  OK(ctx, wn_analyze_spans(ctx, model, NULL, &r));
  assert_false(r->dynamic);
  assert_int_equal(r->layers * 10 + r->heads, 24);
  double keys = 0;
  for (int i = 0; i < 8; i++) {
    const double z = ratio[i / 4][i % 4];
    const double seen = fmin(fmin(100 * z + 8, 100), i / 4 ? 50 : 100);
    assert_true(r->head[i].span == 100 * z && r->head[i].quantile[0] == 100 * z && r->head[i].quantile[4] == 100 * z);
    assert_true(fabs(r->head[i].keys - seen) < 1e-12);
    keys += seen / 8;
  }
  assert_true(fabs(r->keys - keys) < 1e-12 && r->widest == 100 && fabs(r->span - 100 * 2.8125 / 8) < 1e-12);
  assert_true(r->layer[0].widest == 100 && r->layer[1].widest == 50 && r->layer[0].span == 43.75);
  assert_int_equal(r->layer[0].reach, 108);
  assert_int_equal(r->layer[1].reach, 49);
  assert_true(fabs(r->operations.attention - 2 * 6 * 8 * keys) < 1e-9);
  assert_true(r->operations.attention_full == 2 * 6 * 4 * (100 + 50));
  assert_true(r->operations.attention_together == 2 * 6 * 4 * (100 + 50));
  assert_true(r->operations.ffn == 2 * 3 * 16 * 10 && r->operations.maps == 2 * (16 * 8 * 6 + 24 * 16));
  wn_span_report_destroy(r);
  wn_model_destroy(model);
  wn_context_destroy(ctx);
}

/* ---- dynamic ---- */

struct seen {
  float z[8][64];
  int count[8];
};
static void on_layer(void *user, const struct wn_run *run, int64_t l, const struct wn_layer_acts *a) {
  struct seen *s = user;
  const float *z = reach(a->input[wn_span_input(&run->model->config)]);
  for (int64_t row = 0; row < run->B * run->T; row++)
    for (int64_t h = 0; h < 4; h++) s->z[l * 4 + h][s->count[l * 4 + h]++] = z[row * 4 + h];
}
static int by_size(const void *a, const void *b) {
  const float x = *(const float *)a, y = *(const float *)b;
  return (x > y) - (x < y);
}

static void test_dynamic(void **state) {
  (void)state;
  static const char text[] = "a small text of forty-nine bytes, which is enough";
  wn_context *ctx = context_of("ref", 1);
  wn_model_config c = model_case_config(&spans);
  c.vocab_size = 256;
  c.attention.span.dynamic = true;
  struct wn_model *model = model_of(ctx, &c, WN_F32);
  wn_tokenizer *tok;
  OK(ctx, wn_tokenizer_load(ctx, "bytes", &tok));
  const wn_eval_options options = {.size = sizeof options, .batch = 1, .context = 12};
  struct seen s = {0};
  const struct wn_layer_observer observer = {.layer = on_layer, .user = &s};
  wn_eval_result result;
  OK(ctx, wn_eval_text_observed(ctx, model, tok, text, sizeof text - 1, &options, &observer, &result));
  const wn_analysis_input input = {.tok = tok, .text = text, .bytes = sizeof text - 1, .options = &options};
  wn_span_report *r;
  OK(ctx, wn_analyze_spans(ctx, model, &input, &r));
  assert_true(r->dynamic && r->tokens == 48);
  /* Spans come in the order of the text, however it is batched. */
  wn_eval_options batches = options;
  batches.batch = 3;
  const wn_analysis_input by_token = {.tok = tok, .text = text, .bytes = sizeof text - 1, .options = &batches};
  static const int starts[] = {0, 2, 8, 13, 16, 27, 34, 40, 43}; /* where words start: 49 starts one too */
  wn_span_tokens *one;
  double kinds[3] = {0};
  OK(ctx, wn_analyze_span_tokens(ctx, model, &by_token, &one));
  assert_int_equal(one->count, 48);
  for (int t = 0, next = 0; t < 48; t++) {
    double all = 0;
    for (int i = 0; i < 8; i++) {
      all += 100 * (double)s.z[i][t] / 8;
      assert_true(fabs((double)one->span[t * 8 + i] - 100 * (double)s.z[i][t]) < 1e-5);
    }
    assert_true(fabs(one->mean[t] - all) < 1e-5);
    assert_int_equal(one->id[t], (unsigned char)text[t]);
    const bool start = next < 9 && starts[next] == t;
    assert_int_equal(one->start[t], start);
    next += start;
    kinds[start ? 0 : next < 9 && starts[next] == t + 1 ? 1 : 2] += all;
  }
  assert_int_equal(one->starts, 9);
  assert_int_equal(one->before, 8);
  assert_int_equal(one->others, 31);
  assert_true(fabs(one->start_mean - kinds[0] / 9) < 1e-5 && fabs(one->before_mean - kinds[1] / 8) < 1e-5 &&
              fabs(one->other_mean - kinds[2] / 31) < 1e-5);
  wn_span_tokens_destroy(one);
  bool differ = false;
  for (int i = 0; i < 8; i++) {
    double mean = 0;
    assert_int_equal(s.count[i], 48);
    for (int t = 0; t < 48; t++) mean += (double)s.z[i][t] / 48;
    qsort(s.z[i], 48, sizeof **s.z, by_size);
    assert_true(fabs(r->head[i].span - 100 * mean) < 1e-9);
    for (int q = 0; q < 5; q++) { /* quantile q/4 lies between two neighbours of the sorted spans */
      const double low = 100 * (double)s.z[i][q == 0 ? 0 : 12 * q - 1],
                   high = 100 * (double)s.z[i][q == 4 ? 47 : 12 * q];
      const double bin = 100.0 / 8192;
      if (!(r->head[i].quantile[q] >= low - bin && r->head[i].quantile[q] <= high + bin))
        fail_msg("head %d: quantile %d is %g, expected %g to %g", i, q, r->head[i].quantile[q], low, high);
    }
    differ = differ || s.z[i][0] < s.z[i][47];
  }
  assert_true(differ);
  assert_true(fabs(r->span - result.span) < 1e-6);
  assert_int_equal(r->layer[0].reach, 108); /* limit + ramp: a dynamic span is not known in advance */
  wn_span_report_destroy(r);
  /* Padding does not count: 4 sequences, of which the last has 3 tokens, hold 48 tokens that do. */
  wn_eval_options padded = {.size = sizeof padded, .batch = 1, .context = 15};
  memset(&s, 0, sizeof s);
  OK(ctx, wn_eval_text_observed(ctx, model, tok, text, sizeof text - 1, &padded, &observer, &result));
  padded.batch = 3;
  const wn_analysis_input whole = {.tok = tok, .text = text, .bytes = sizeof text - 1, .options = &padded};
  OK(ctx, wn_analyze_spans(ctx, model, &whole, &r));
  assert_int_equal(r->tokens, 48);
  double mean = 0, with_padding = 0;
  for (int i = 0; i < 8; i++) {
    double of_head = 0;
    assert_int_equal(s.count[i], 60);
    for (int t = 0; t < 60; t++) {
      with_padding += 100 * (double)s.z[i][t] / 60 / 8;
      if (t < 48) of_head += 100 * (double)s.z[i][t] / 48;
    }
    assert_true(fabs(r->head[i].span - of_head) < 1e-6);
    mean += of_head / 8;
  }
  assert_true(fabs(r->span - mean) < 1e-6 && fabs(mean - with_padding) > 1e-3);
  wn_span_report_destroy(r);
  r = (wn_span_report *)&s;
  assert_int_equal(wn_analyze_spans(ctx, model, NULL, &r), WN_ERR_UNSUPPORTED);
  assert_null(r);
  assert_non_null(strstr(wn_context_error(ctx), "dynamic"));
  assert_refused(ctx, wn_analyze_span_tokens(ctx, model, NULL, &one), WN_ERR_ARGUMENT, "input");
  wn_model_destroy(model);
  c.attention.span.enabled = false;
  model = model_of(ctx, &c, WN_F32);
  assert_int_equal(wn_analyze_spans(ctx, model, &input, &r), WN_ERR_UNSUPPORTED);
  assert_non_null(strstr(wn_context_error(ctx), "no spans"));
  assert_refused(ctx, wn_analyze_span_tokens(ctx, model, &input, &one), WN_ERR_UNSUPPORTED, "dynamic");
  wn_span_report_destroy(NULL);
  wn_model_destroy(model);
  wn_tokenizer_destroy(tok);
  wn_context_destroy(ctx);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_paper), cmocka_unit_test(test_heads),
                                     cmocka_unit_test(test_dynamic)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
