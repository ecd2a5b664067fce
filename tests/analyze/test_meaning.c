/* The report of meaningful attention, checked against a plain count over all attention weights of the same pass: on
 * both backends, with grouped heads, windows, selection, packed documents and control tokens. */
#include "model/models.h"

#include "model/layer.h"
#include "ops/attention.h"
#include "support.h"
#include "train/eval.h"
#include "winnow/analyze.h"

enum { L = 2, H = 4, T = 48, V = 256, TAUS = 5, ROWS = 6 * T };
static const double taus[TAUS] = {0.25, 0.5, 0.8, 0.95, 1};
static const char text[] =
    "In the beginning was the word, and all that came after it is context: who reads on keeps some of what has been "
    "said in mind and lets the rest go. How much is enough? It depends on what is read, by whom, and on what comes "
    "next; nobody knows that beforehand, which is why this is measured and not guessed at, head by head.";

/* The attention weights of all rows, in the order in which rows arrive: [L][ROWS][H][T]. */
struct gathered {
  double w[L][ROWS][H][T];
  int32_t first[ROWS], token[ROWS];
  bool real[ROWS];           /* not padding: up to its sequence's last target */
  int64_t rows, base, layer; /* rows of the earlier batches; the batch's first row; current layer */
  int64_t BT;
};

static void on_rows(void *user, const struct wn_attention_view *v) {
  struct gathered *g = user;
  for (int64_t i = 0; i < v->rows; i++)
    for (int64_t j = 0; j < v->columns; j++)
      g->w[g->layer][g->base + v->b * v->a->Tq + v->r + i][v->h][j] = (double)v->w[i * v->stride + j];
}
static void on_batch(void *user, const struct wn_batch *batch) {
  struct gathered *g = user;
  g->base = g->rows;
  for (int64_t i = 0; i < batch->B * batch->T; i++) {
    assert_true(g->rows < ROWS);
    for (int64_t j = i; j < (i / batch->T + 1) * batch->T; j++) g->real[g->rows] |= batch->targets[j] >= 0;
    g->token[g->rows] = batch->tokens[i];
    g->first[g->rows++] = batch->doc_start ? batch->doc_start[i] : 0;
  }
}
static void on_attention(void *user, const struct wn_run *run, int64_t l, struct wn_attention *a) {
  struct gathered *g = user;
  (void)run;
  g->layer = l;
  a->look.rows = on_rows, a->look.user = g;
}

static int falling(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return x < y ? 1 : x > y ? -1 : 0;
}

/* How many tokens row n of layer l and head h needs, and by how much that changes when tau moves by 1e-5. */
static double needed(const struct gathered *g, int64_t l, int64_t n, int64_t h, int64_t width, double tau, bool control,
                     double *slack) {
  double row[T], total = 0;
  int64_t m = 0, count[3];
  for (int64_t j = 0; j < width; j++) {
    if (!(g->w[l][n][h][j] > 0) || (control && g->token[n / width * width + j] == ' ')) continue;
    total += row[m++] = g->w[l][n][h][j];
  }
  qsort(row, (size_t)m, sizeof *row, falling);
  for (int k = -1; k <= 1; k++) {
    double before = 0;
    count[k + 1] = 0;
    while (count[k + 1] < m && (tau >= 1 || before < (tau + k * 1e-5) * total)) before += row[count[k + 1]++];
  }
  *slack += (double)(count[2] - count[0]);
  return (double)count[1];
}

static void compare(wn_context *ctx, struct wn_model *model, const wn_analysis_input *input, bool control,
                    const char *name) {
  struct gathered *g = calloc(1, sizeof *g);
  assert_non_null(g);
  const struct wn_layer_observer observer = {.batch = on_batch, .attention = on_attention, .user = g};
  wn_eval_result eval;
  const wn_eval_options *options = input->options;
  if (input->source)
    OK(ctx, wn_eval_observed(ctx, model, input->source, options, &observer, &eval));
  else
    OK(ctx, wn_eval_text_observed(ctx, model, input->tok, input->text, input->bytes, options, &observer, &eval));
  const int32_t ids[] = {' '};
  const wn_meaning_options meaning = {
      .size = sizeof meaning, .taus = taus, .tau_count = TAUS, .control = ids, .control_count = control};
  wn_meaning_report *r;
  OK(ctx, wn_analyze_meaning(ctx, model, input, &meaning, &r));
  assert_true(r->layers == L && r->heads == H && r->tau_count == TAUS && r->length_count == 7);
  assert_true(fabs(r->eval.loss - eval.loss) < 1e-5);
  double rows_seen = 0;
  for (int length = 0; length < r->length_count; length++) {
    assert_true(r->length[length] == 1 << length);
    for (int t = 0; t < TAUS; t++) {
      double all = 0, all_slack = 0;
      for (int64_t l = 0; l < L; l++)
        for (int64_t h = 0; h < H; h++) {
          double sum = 0, slack = 0, rows = 0, low = 1e9, high = 0, content = 0;
          for (int64_t n = 0; n < g->rows; n++) {
            const int64_t i = n % T, keys = i + 1 - g->first[n];
            if (!g->real[n] || keys > 1 << length || 2 * keys <= 1 << length) continue;
            const double one = needed(g, l, n, h, T, taus[t], control, &slack);
            sum += one, rows++;
            low = fmin(low, one), high = fmax(high, one);
            for (int64_t j = g->first[n]; j <= i; j++) content += !control || g->token[n - i + j] != ' ';
          }
          const int64_t at = ((int64_t)length * TAUS + t) * L + l;
          const wn_meaning_cell *cell = &r->head[at * H + h];
          assert_true((double)r->rows[length] == rows);
          if (rows == 0) continue;
          if (t == 0 && l == 0 && h == 0) rows_seen += rows;
          assert_true(fabs(r->content[length] - content / rows) < 1e-9);
          if (!(fabs(cell->mean - sum / rows) <= slack / rows + 1e-9))
            fail_msg("%s: length %d, tau %g, layer %d, head %d: %g tokens, expected %g", name, 1 << length, taus[t],
                     (int)l, (int)h, cell->mean, sum / rows);
          for (int q = 0; q < 3; q++) assert_true(cell->quantile[q] >= low - 1 && cell->quantile[q] <= high + 1);
          all += sum / rows, all_slack += slack / rows;
        }
      if (r->rows[length] == 0) continue;
      const wn_meaning_cell *cell = &r->all[length * TAUS + t];
      assert_true(fabs(cell->mean - all / (L * H)) <= all_slack / (L * H) + 1e-9);
    }
  }
  assert_true((double)r->points == rows_seen && rows_seen > 150);
  /* A point is the mean over layers and heads of one row. */
  int64_t point = 0;
  for (int64_t n = 0; n < g->rows; n++) {
    if (!g->real[n]) continue;
    double sum = 0, slack = 0;
    for (int64_t l = 0; l < L; l++)
      for (int64_t h = 0; h < H; h++) sum += needed(g, l, n, h, T, taus[2], control, &slack);
    assert_true(r->x[point] == (double)(n % T + 1 - g->first[n]));
    assert_true(fabs(r->y[2 * r->points + point] - sum / (L * H)) <= slack / (L * H) + 1e-9);
    point++;
  }
  assert_true(point == r->points);
  wn_meaning_report_destroy(r);
  free(g);
}

static wn_model_config config_of(const char *attention) {
  const struct model_case k = {
      .position = WN_POS_ROPE, .ffn = WN_FFN_SWIGLU, .kv_heads = 2, .qk_norm = true, .attention = attention};
  wn_model_config c = model_case_config(&k);
  c.vocab_size = V, c.context = T;
  return c;
}

static void test_models(void **state) {
  (void)state;
  static const struct {
    const char *attention;
    bool control;
  } cases[] = {
      {"{}", false},
      {"{}", true},
      {"{\"window\":9,\"window_layers\":\"10\"}", true},
      {"{\"selective\":{},\"sinks\":2}", false},
      {"{\"span\":{\"limit\":30,\"ramp\":4,\"init\":0.5},\"exclusive\":{}}", false},
  };
  for (int backend = 0; backend < 2; backend++)
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
      wn_context *ctx = context_of(backend ? "cpu" : "ref", 2);
      wn_model_config c = config_of(cases[i].attention);
      struct wn_model *model = model_of(ctx, &c, WN_F32);
      wn_tokenizer *tok;
      OK(ctx, wn_tokenizer_load(ctx, "bytes", &tok));
      const wn_eval_options options = {.size = sizeof options, .batch = 2};
      const wn_analysis_input input = {.tok = tok, .text = text, .bytes = 250, .options = &options};
      compare(ctx, model, &input, cases[i].control, cases[i].attention);
      wn_tokenizer_destroy(tok);
      wn_model_destroy(model);
      wn_context_destroy(ctx);
    }
}

static void test_packed(void **state) {
  (void)state;
  wn_context *ctx = context_of("cpu", 2);
  char folder[512];
  make_folder(folder);
  wn_recipe recipe;
  wn_recipe_init(&recipe);
  wn_data_config data = recipe.data;
  snprintf(data.val, sizeof data.val, "%s/val.bin", folder);
  int32_t ids[5 * T + 1];
  for (int i = 0; i < 5 * T + 1; i++) ids[i] = (uint8_t)text[i];
  OK(ctx, wn_token_file_write(ctx, data.val, "llmc", V, ids, 5 * T + 1));
  data.pack = true, data.document_token = ',';
  wn_data_source *source;
  OK(ctx, wn_data_source_create(ctx, &data, "val", T, V, &source));
  wn_model_config c = config_of("{}");
  struct wn_model *model = model_of(ctx, &c, WN_F32);
  const wn_eval_options options = {.size = sizeof options, .batch = 2};
  const wn_analysis_input input = {.source = source, .options = &options};
  compare(ctx, model, &input, true, "packed");
  wn_model_destroy(model);
  wn_data_source_destroy(source);
  remove_folder(folder);
  wn_context_destroy(ctx);
}

static void test_refused(void **state) {
  (void)state;
  wn_context *ctx = context_of("ref", 1);
  wn_model_config c = config_of("{}");
  struct wn_model *model = model_of(ctx, &c, WN_F32);
  wn_tokenizer *tok;
  OK(ctx, wn_tokenizer_load(ctx, "bytes", &tok));
  wn_eval_options options = {.size = sizeof options, .batch = 1};
  wn_analysis_input input = {.tok = tok, .text = text, .bytes = 100, .options = &options};
  const double falls[] = {0.5, 0.4}, beyond[] = {0.5, 1.1};
  const int32_t outside[] = {V};
  wn_meaning_options meaning = {.size = sizeof meaning, .taus = falls, .tau_count = 2};
  wn_meaning_report *r = (wn_meaning_report *)&c;
  assert_refused(ctx, wn_analyze_meaning(ctx, model, &input, &meaning, &r), WN_ERR_ARGUMENT, "ascending");
  assert_null(r);
  meaning.taus = beyond;
  assert_refused(ctx, wn_analyze_meaning(ctx, model, &input, &meaning, &r), WN_ERR_ARGUMENT, "(0,1]");
  meaning = (wn_meaning_options){.size = sizeof(wn_meaning_options), .control = outside, .control_count = 1};
  assert_refused(ctx, wn_analyze_meaning(ctx, model, &input, &meaning, &r), WN_ERR_ARGUMENT, "vocabulary");
  assert_refused(ctx, wn_analyze_meaning(ctx, model, NULL, NULL, &r), WN_ERR_ARGUMENT, "text");
  options.context = T + 1;
  assert_refused(ctx, wn_analyze_meaning(ctx, model, &input, NULL, &r), WN_ERR_ARGUMENT, "context");
  options.context = 0, options.recurrence = 5;
  assert_refused(ctx, wn_analyze_meaning(ctx, model, &input, NULL, &r), WN_ERR_UNSUPPORTED, "segment recurrence");
  /* A data source made for a larger vocabulary is refused. */
  char folder[512], path[600];
  int32_t ids[3 * T];
  wn_data_config data = {.kind = WN_DATA_TOKENS, .document_token = -1};
  wn_data_source *source;
  make_folder(folder);
  snprintf(path, sizeof path, "%s/tokens.bin", folder);
  for (int i = 0; i < 3 * T; i++) ids[i] = i == T + 3 ? 40000000 : i % 9;
  OK(ctx, wn_token_file_write(ctx, path, "llmc", 50000000, ids, 3 * T));
  snprintf(data.val, sizeof data.val, "%s", path);
  OK(ctx, wn_data_source_create(ctx, &data, "val", T, 50000000, &source));
  options.recurrence = 0;
  const wn_analysis_input foreign = {.source = source, .options = &options};
  assert_refused(ctx, wn_analyze_meaning(ctx, model, &foreign, NULL, &r), WN_ERR_ARGUMENT, "40000000");
  wn_data_source_destroy(source);
  remove_folder(folder);
  int64_t tokens[] = {4, 4};
  const wn_budgets by_place = {.policy = WN_POLICY_STREAMING, .layers = 2, .tokens = tokens, .cache_positions = true};
  options.recurrence = 0, options.budgets = &by_place;
  assert_refused(ctx, wn_analyze_meaning(ctx, model, &input, NULL, &r), WN_ERR_UNSUPPORTED, "cache_positions");
  wn_meaning_report_destroy(NULL);
  wn_model_destroy(model);
  wn_tokenizer_destroy(tok);
  wn_context_destroy(ctx);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_models), cmocka_unit_test(test_packed),
                                     cmocka_unit_test(test_refused)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
