/* What wn_analyze_selection reports for each token: attention weights are those of a softmax written out here, F is the
 * sum of the selecting head's positive logits, evictions follow the budget, and means are those of the single
 * sequences. */
#include "model/models.h"

#include "model/layer.h"
#include "support.h"
#include "winnow/train.h"
#include "winnow/selection.h"
#include "reach.h"
#include "policies.h"

enum { T = 14, L = 2, H = 4, V = 13 };

struct kept {
  float weights[L][T][T], heads[L][H][T][T], F[L][T][T];
  int32_t evicted_at[L][T];
  int64_t budget[L];
  bool selective, evicts;
  int layers;
};

static wn_status keep(void *user, const wn_selection_layer *layer) {
  struct kept *k = user;
  const int64_t l = layer->layer;
  assert_int_equal(l, k->layers++);
  assert_int_equal(layer->T, T);
  assert_int_equal(layer->heads, H);
  memcpy(k->weights[l], layer->weights, sizeof k->weights[l]);
  if (layer->head_weights) memcpy(k->heads[l], layer->head_weights, sizeof k->heads[l]);
  k->selective = layer->F != NULL;
  if (layer->F) memcpy(k->F[l], layer->F, sizeof k->F[l]);
  k->evicts = layer->evicted_at != NULL;
  if (layer->evicted_at) memcpy(k->evicted_at[l], layer->evicted_at, sizeof k->evicted_at[l]);
  k->budget[l] = layer->budget;
  return WN_OK;
}

static void make_tokens(int32_t *tokens, uint64_t seed) {
  for (int i = 0; i < T; i++) tokens[i] = (int32_t)(wn_random_normal(seed, WN_STREAM_TEST, 9, (uint64_t)i) * 1e6) % V;
  for (int i = 0; i < T; i++)
    if (tokens[i] < 0) tokens[i] += V;
}

/* ---- the same, computed from q and k ---- */

struct naive {
  double weights[L][H][T][T], F[L][T][T];
};
static void on_layer(void *user, const struct wn_run *run, int64_t l, const struct wn_layer_acts *a) {
  struct naive *n = user;
  const int64_t D = 6, N = 3 * H * D;
  const double scale = 1 / sqrt((double)D);
  const bool selective = run->model->config.attention.selective.enabled;
  double logits[H][T][T];
  for (int h = 0; h < H; h++)
    for (int i = 0; i < T; i++)
      for (int j = 0; j <= i; j++) {
        double dot = 0;
        for (int d = 0; d < D; d++)
          dot += get(reach(a->qkv), (size_t)(i * N + h * D + d), run->exec.dtype) *
                 get(reach(a->qkv), (size_t)(j * N + (H + h) * D + d), run->exec.dtype);
        logits[h][i][j] = scale * dot;
      }
  for (int j = 0; j < T; j++) {
    double F = 0;
    for (int i = j; i < T; i++) {
      n->F[l][i][j] = F;
      if (selective && j >= 1 && j < i) F += fmax(0, logits[0][i][j]);
    }
  }
  for (int h = 0; h < H; h++)
    for (int i = 0; i < T; i++) {
      double sum = 0;
      for (int j = 0; j <= i; j++) sum += n->weights[l][h][i][j] = exp(logits[h][i][j] - n->F[l][i][j]);
      for (int j = 0; j <= i; j++) n->weights[l][h][i][j] /= sum;
    }
}

static wn_status selection_of(wn_context *ctx, wn_model *model, const int32_t *tokens, int64_t count,
                              const wn_budgets *budgets, bool heads, wn_selection_fn fn, void *user, double *loss) {
  const wn_selection_options options = {
      .size = sizeof options, .budgets = budgets, .heads = heads, .layer = fn, .user = user};
  return wn_analyze_selection(ctx, model, tokens, count, &options, loss);
}

static void test_weights(void **state) {
  (void)state;
  static const struct model_case cases[] = {
      {.position = WN_POS_LEARNED, .ffn = WN_FFN_SWIGLU, .kv_heads = 4, .sel = {PAPER}},
      {.position = WN_POS_LEARNED, .ffn = WN_FFN_SWIGLU, .kv_heads = 4},
      /* Exclusive attention changes outputs, not attention weights. */
      {.position = WN_POS_LEARNED, .ffn = WN_FFN_SWIGLU, .kv_heads = 4, .attention = "{\"exclusive\":true}"}};
  for (int c = 0; c < 3; c++)
    for (int b = 0; b < 2; b++) {
      wn_context *ctx = context_of(b ? "ref" : "cpu", 2);
      wn_model_config config = model_case_config(&cases[c]);
      struct wn_model *model = model_of(ctx, &config, WN_F32);
      int32_t tokens[T], targets[T];
      make_tokens(tokens, 3);
      for (int i = 0; i < T; i++) targets[i] = i + 1 < T ? tokens[i + 1] : -1;
      struct kept *k = calloc(1, sizeof *k);
      struct naive *n = calloc(1, sizeof *n);
      double loss;
      OK(ctx, selection_of(ctx, model, tokens, T, NULL, true, keep, k, &loss));
      assert_int_equal(k->layers, L);
      assert_int_equal(k->selective, c == 0);
      assert_false(k->evicts);
      wn_workspace *ws;
      struct wn_step_result result;
      const struct wn_layer_observer observer = {.layer = on_layer, .user = n};
      OK(ctx, wn_workspace_create(ctx, model, 1, T, &(struct wn_workspace_options){.activation_dtype = WN_F32}, &ws));
      OK(ctx, wn_model_step(model, ws, &(struct wn_batch){.B = 1, .T = T, .tokens = tokens, .targets = targets},
                            &(struct wn_step){.observer = &observer}, &result));
      assert_true(fabs(loss - result.loss_sum / (double)result.counted) < 1e-5);
      double most = 0, masked = 0;
      for (int l = 0; l < L; l++)
        for (int i = 0; i < T; i++)
          for (int j = 0; j < T; j++) {
            double mean = 0;
            for (int h = 0; h < H; h++) {
              const double want = j <= i ? n->weights[l][h][i][j] : 0;
              most = fmax(most, fabs(want - (double)k->heads[l][h][i][j]));
              mean += want / H;
            }
            most = fmax(most, fabs(mean - (double)k->weights[l][i][j]));
            if (c == 0 && j <= i)
              most = fmax(most, fabs(n->F[l][i][j] - (double)k->F[l][i][j]) / fmax(1, n->F[l][i][j]));
            if (j <= i) masked = fmax(masked, n->F[l][i][j]);
          }
      assert_true(most < 2e-5);
      assert_true((c == 0) == (masked > 0.1));
      wn_workspace_destroy(ws);
      free(k);
      free(n);
      wn_model_destroy(model);
      wn_context_destroy(ctx);
    }
}

static void test_budgets(void **state) {
  (void)state;
  static const struct model_case selective = {
      .position = WN_POS_LEARNED, .ffn = WN_FFN_SWIGLU, .kv_heads = 4, .sel = {PAPER}};
  wn_context *ctx = context_of("cpu", 1);
  wn_model_config config = model_case_config(&selective);
  struct wn_model *model = model_of(ctx, &config, WN_F32);
  int32_t tokens[T];
  make_tokens(tokens, 4);
  wn_budgets budgets;
  budgets_init(&budgets);
  OK(ctx, wn_budgets_parse(ctx, &config, "4,6", &budgets));
  struct kept *k = calloc(1, sizeof *k);
  OK(ctx, selection_of(ctx, model, tokens, T, &budgets, false, keep, k, NULL));
  assert_true(k->evicts && k->budget[0] == 4 && k->budget[1] == 6);
  for (int l = 0; l < L; l++)
    for (int i = 0; i < T; i++) {
      int held = 0;
      double sum = 0;
      for (int j = 0; j <= i; j++) {
        const bool here = k->evicted_at[l][j] > i;
        held += here;
        sum += (double)k->weights[l][i][j];
        if (!here) assert_true(k->weights[l][i][j] == 0);
      }
      assert_int_equal(held, i + 1 < budgets.tokens[l] ? i + 1 : budgets.tokens[l]);
      assert_true(fabs(sum - 1) < 1e-5);
    }
  wn_budgets_clear(&budgets);
  free(k);
  wn_model_destroy(model);
  wn_context_destroy(ctx);
}

static wn_status refuse(void *user, const wn_selection_layer *layer) {
  ++*(int *)user;
  return layer->layer == 0 ? WN_ERR_FORMAT : WN_OK;
}

static void test_refused(void **state) {
  (void)state;
  static const struct model_case plain = {.position = WN_POS_LEARNED, .ffn = WN_FFN_SWIGLU, .kv_heads = 4};
  wn_context *ctx = context_of("ref", 1);
  wn_model_config config = model_case_config(&plain);
  struct wn_model *model = model_of(ctx, &config, WN_F32);
  int32_t tokens[32] = {0};
  int calls = 0;
  assert_refused(ctx, selection_of(ctx, model, tokens, 17, NULL, false, refuse, &calls, NULL), WN_ERR_ARGUMENT,
                 "expected 1 to 16");
  assert_refused(ctx, selection_of(ctx, model, tokens, 0, NULL, false, refuse, &calls, NULL), WN_ERR_ARGUMENT,
                 "expected");
  assert_int_equal(selection_of(ctx, model, tokens, 8, NULL, false, refuse, &calls, NULL), WN_ERR_FORMAT);
  assert_int_equal(calls, 1);
  wn_model_destroy(model);
  config.position = WN_POS_ROPE;
  model = model_of(ctx, &config, WN_F32);
  int64_t budgets[L] = {4, 4};
  const wn_budgets by_place = {.policy = WN_POLICY_STREAMING, .layers = L, .tokens = budgets, .cache_positions = true};
  assert_refused(ctx, selection_of(ctx, model, tokens, 8, &by_place, false, refuse, &calls, NULL), WN_ERR_UNSUPPORTED,
                 "cache_positions");
  wn_model_destroy(model);
  wn_context_destroy(ctx);
}

/* The mean of two sequences in cells of two tokens, against the two sequences themselves. */
static void test_mean(void **state) {
  (void)state;
  static const struct model_case selective = {
      .position = WN_POS_LEARNED, .ffn = WN_FFN_SWIGLU, .kv_heads = 4, .sel = {PAPER}};
  char folder[512], path[600];
  wn_context *ctx = context_of("cpu", 1);
  wn_model_config config = model_case_config(&selective);
  struct wn_model *model = model_of(ctx, &config, WN_F32);
  int32_t tokens[2 * T + 1];
  make_tokens(tokens, 5);
  make_tokens(tokens + T, 6);
  tokens[2 * T] = 1;
  make_folder(folder);
  snprintf(path, sizeof path, "%s/val.bin", folder);
  OK(ctx, wn_token_file_write(ctx, path, "llmc", V, tokens, 2 * T + 1));
  wn_recipe recipe;
  wn_recipe_init(&recipe);
  recipe.data.kind = WN_DATA_TOKENS;
  snprintf(recipe.data.val, sizeof recipe.data.val, "%s", path);
  wn_data_source *source;
  OK(ctx, wn_data_source_create(ctx, &recipe.data, "val", T, V, &source));
  const wn_selection_mean_options mean_options = {.size = sizeof mean_options, .T = T, .sequences = 5, .cell = 2};
  wn_selection_mean *mean;
  OK(ctx, wn_analyze_selection_mean(ctx, model, source, &mean_options, &mean));
  assert_int_equal(mean->sequences, 2); /* the file has no more */
  assert_int_equal(mean->size, 7);
  struct kept *k = calloc(2, sizeof *k);
  for (int s = 0; s < 2; s++) OK(ctx, selection_of(ctx, model, tokens + s * T, T, NULL, false, keep, &k[s], NULL));
  for (int l = 0; l < L; l++)
    for (int r = 0; r < 7; r++)
      for (int c = 0; c < 7; c++) {
        double w = 0, m = 0, F = 0;
        int n = 0;
        for (int s = 0; s < 2; s++)
          for (int i = 2 * r; i < 2 * r + 2; i++)
            for (int j = 2 * c; j < 2 * c + 2 && j <= i; j++) {
              w += (double)k[s].weights[l][i][j];
              m += 1 - exp(-(double)k[s].F[l][i][j]);
              F += (double)k[s].F[l][i][j];
              n++;
            }
        const size_t at = (size_t)((l * 7 + r) * 7 + c);
        assert_true(fabs((double)mean->weights[at] - (n ? w / n : 0)) < 1e-6);
        assert_true(fabs((double)mean->masked[at] - (n ? m / n : 0)) < 1e-6);
        assert_true(fabs((double)mean->F[at] - (n ? F / n : 0)) < 1e-5);
      }
  for (int l = 0; l < L; l++)
    for (int j = 0; j < T; j++) {
      const double want = 1 - (exp(-(double)k[0].F[l][T - 1][j]) + exp(-(double)k[1].F[l][T - 1][j])) / 2;
      assert_true(fabs((double)mean->last[l * T + j] - want) < 1e-6);
    }
  free(k);
  wn_selection_mean_destroy(mean);
  wn_data_source_destroy(source);
  remove_folder(folder);
  wn_model_destroy(model);
  wn_context_destroy(ctx);
}

/* ---- encoders ---- */

enum { S = 12, E = 3 };

struct encoder_F {
  double F[E][S][S];
  int layers;
};

/* F in an encoder, where all rows see each other: row i gets what every row but i itself selects. */
static void on_encoder_layer(void *user, const struct wn_run *run, int64_t l, const struct wn_layer_acts *a) {
  struct encoder_F *n = user;
  const int64_t D = 6, N = 3 * H * D, count = run->T;
  for (int j = 0; j < count; j++) {
    double select[S], all = 0;
    for (int k = 0; k < count; k++) {
      double dot = 0;
      for (int d = 0; d < D; d++)
        dot += get(reach(a->qkv), (size_t)(k * N + d), run->exec.dtype) *
               get(reach(a->qkv), (size_t)(j * N + H * D + d), run->exec.dtype);
      all += select[k] = j >= 1 && k != j ? fmax(0, dot / sqrt((double)D)) : 0;
    }
    for (int i = 0; i < count; i++) n->F[l][i][j] = all - select[i];
  }
}

static wn_status keep_encoder_F(void *user, const wn_selection_layer *layer) {
  struct encoder_F *k = user;
  assert_int_equal(layer->layer, k->layers++);
  assert_null(layer->weights);
  for (int64_t i = 0; i < layer->T; i++)
    for (int64_t j = 0; j < layer->T; j++) k->F[layer->layer][i][j] = (double)layer->F[i * layer->T + j];
  return WN_OK;
}

static wn_model_config encoder_config(bool selective) {
  static const struct model_case plain = {.position = WN_POS_LEARNED, .ffn = WN_FFN_SWIGLU, .kv_heads = 4};
  wn_model_config c = model_case_config(&plain);
  c.context = 16;
  c.encoder.layers = E, c.encoder.context = S, c.encoder.selective = selective;
  return c;
}

static void test_encoder(void **state) {
  (void)state;
  for (int b = 0; b < 2; b++) {
    wn_context *ctx = context_of(b ? "ref" : "cpu", 2);
    const wn_model_config config = encoder_config(true);
    struct wn_model *model = model_of(ctx, &config, WN_F32);
    struct encoder_F *naive = calloc(1, sizeof *naive), *kept = calloc(1, sizeof *kept);
    int32_t tokens[T];
    make_tokens(tokens, 8);
    const struct wn_layer_observer observer = {.layer = on_encoder_layer, .user = naive};
    const struct wn_workspace_options options = {.activation_dtype = WN_F32, .observer = &observer};
    wn_workspace *ws;
    OK(ctx, wn_workspace_create(ctx, model->encoder, 1, S, &options, &ws));
    const struct wn_batch batch = {.B = 1, .T = S, .tokens = tokens};
    OK(ctx, wn_encoder_look(model->encoder, ws, &batch, NULL, &observer));
    const wn_selection_options o = {.size = sizeof o, .layer = keep_encoder_F, .user = kept, .encoder = true};
    OK(ctx, wn_analyze_selection(ctx, model, tokens, S, &o, NULL));
    assert_int_equal(kept->layers, E);
    double most = 0, off = 0;
    for (int l = 0; l < E; l++)
      for (int i = 0; i < S; i++)
        for (int j = 0; j < S; j++) {
          most = fmax(most, kept->F[l][i][j]);
          off = fmax(off, fabs(kept->F[l][i][j] - naive->F[l][i][j]));
        }
    assert_true(most > 0.1);
    assert_true(off < 1e-5 * fmax(1, most));
    wn_workspace_destroy(ws);
    free(naive);
    free(kept);
    wn_model_destroy(model);
    wn_context_destroy(ctx);
  }
}

/* The mean over span-corruption inputs in cells of two, without padding, against the single sequences. */
static void test_encoder_mean(void **state) {
  (void)state;
  char folder[512];
  wn_context *ctx = context_of("cpu", 1);
  const wn_model_config config = encoder_config(true);
  struct wn_model *model = model_of(ctx, &config, WN_F32);
  int32_t text[200];
  for (int i = 0; i < 200; i++) text[i] = (int32_t)wn_random_below(4, WN_STREAM_TEST, 1, (uint64_t)i, V - 4);
  make_folder(folder);
  wn_recipe recipe;
  wn_recipe_init(&recipe);
  recipe.data.kind = WN_DATA_SPAN_CORRUPTION, recipe.data.sentinels = 4, recipe.data.input_length = S;
  snprintf(recipe.data.val, sizeof recipe.data.val, "%.500s/val.bin", folder);
  OK(ctx, wn_token_file_write(ctx, recipe.data.val, "llmc", V, text, 200));
  wn_data_source *source;
  OK(ctx, wn_data_source_create(ctx, &recipe.data, "val", config.context, V, &source));
  enum { N = 6, CELLS = S / 2 };
  const wn_selection_mean_options options = {
      .size = sizeof options, .T = S, .sequences = N, .cell = 2, .encoder = true};
  wn_selection_mean *mean;
  OK(ctx, wn_analyze_selection_mean(ctx, model, source, &options, &mean));
  assert_true(mean->encoder);
  assert_null(mean->weights);
  assert_int_equal(mean->layers, E);
  assert_int_equal(mean->size, CELLS);
  double F[E][CELLS][CELLS] = {0}, masked[E][CELLS][CELLS] = {0}, pairs[CELLS][CELLS] = {0};
  for (uint64_t b = 0; b < N; b++) {
    int32_t inputs[S], count;
    struct encoder_F *k = calloc(1, sizeof *k);
    OK(ctx, wn_data_source_inputs(ctx, source, 0, b, 1, inputs, &count));
    const wn_selection_options o = {.size = sizeof o, .layer = keep_encoder_F, .user = k, .encoder = true};
    OK(ctx, wn_analyze_selection(ctx, model, inputs, count, &o, NULL));
    for (int i = 0; i < count; i++)
      for (int j = 0; j < count; j++) {
        pairs[i / 2][j / 2]++;
        for (int l = 0; l < E; l++)
          F[l][i / 2][j / 2] += k->F[l][i][j], masked[l][i / 2][j / 2] += 1 - exp(-k->F[l][i][j]);
      }
    free(k);
  }
  for (int l = 0; l < E; l++)
    for (int r = 0; r < CELLS; r++)
      for (int c = 0; c < CELLS; c++) {
        const size_t at = (size_t)((l * CELLS + r) * CELLS + c);
        const double n = fmax(1, pairs[r][c]);
        assert_true(fabs((double)mean->F[at] - F[l][r][c] / n) < 1e-5);
        assert_true(fabs((double)mean->masked[at] - masked[l][r][c] / n) < 1e-6);
      }
  wn_selection_likeness *same;
  OK(ctx, wn_selection_compare(ctx, mean, mean, &same));
  assert_true(fabs(same->same - 1) < 1e-9);
  wn_selection_likeness_destroy(same);
  const wn_selection_mean decoder = {.layers = E, .T = S, .cell = 2, .size = CELLS, .masked = mean->masked};
  assert_refused(ctx, wn_selection_compare(ctx, mean, &decoder, &same), WN_ERR_ARGUMENT, "encoder");
  wn_selection_mean_destroy(mean);
  wn_data_source_destroy(source);
  remove_folder(folder);
  wn_model_destroy(model);
  wn_context_destroy(ctx);
}

static void test_encoder_refused(void **state) {
  (void)state;
  wn_context *ctx = context_of("cpu", 1);
  int32_t tokens[T];
  int calls = 0;
  make_tokens(tokens, 8);
  for (int selective = 0; selective < 2; selective++) {
    const wn_model_config config = encoder_config(selective);
    struct wn_model *model = model_of(ctx, &config, WN_F32);
    wn_selection_options o = {.size = sizeof o, .layer = refuse, .user = &calls};
    assert_refused(ctx, wn_analyze_selection(ctx, model, tokens, 8, &o, NULL), WN_ERR_UNSUPPORTED,
                   selective ? "its selective encoder can be" : "cannot be shown");
    o.encoder = true;
    if (!selective)
      assert_refused(ctx, wn_analyze_selection(ctx, model, tokens, 8, &o, NULL), WN_ERR_UNSUPPORTED,
                     "no selective encoder");
    o.heads = true;
    if (selective)
      assert_refused(ctx, wn_analyze_selection(ctx, model, tokens, 8, &o, NULL), WN_ERR_UNSUPPORTED, "no weights");
    o.heads = false;
    if (selective)
      assert_refused(ctx, wn_analyze_selection(ctx, model, tokens, S + 1, &o, NULL), WN_ERR_ARGUMENT, "1 to 12");
    wn_model_destroy(model);
  }
  assert_int_equal(calls, 0);
  wn_context_destroy(ctx);
}

static wn_status keep_F(void *user, const wn_selection_layer *layer) {
  struct kept *k = user;
  for (int64_t i = 0; i < layer->T; i++)
    for (int64_t j = 0; j <= i; j++) k->F[layer->layer][i][j] = layer->F[i * layer->T + j];
  return WN_OK;
}

/* Padding does not count: the mean of one full sequence and one of 6 tokens. */
static void test_mean_of_documents(void **state) {
  (void)state;
  static const struct model_case selective = {
      .position = WN_POS_LEARNED, .ffn = WN_FFN_SWIGLU, .kv_heads = 4, .sel = {PAPER}};
  enum { SHORT = 6 };
  char folder[512];
  wn_context *ctx = context_of("cpu", 1);
  wn_model_config config = model_case_config(&selective);
  struct wn_model *model = model_of(ctx, &config, WN_F32);
  int32_t tokens[T + 1 + SHORT + 1];
  make_tokens(tokens, 5);
  make_tokens(tokens + SHORT + 1, 6);
  for (int i = 0; i < T + SHORT + 2; i++)
    if (i > T || tokens[i] == 0) tokens[i] = 1 + i % (V - 1);
  tokens[0] = tokens[T + 1] = 0; /* documents of T + 1 and SHORT + 1 tokens: one more than inputs */
  make_folder(folder);
  wn_recipe recipe;
  wn_recipe_init(&recipe);
  recipe.data.rows = WN_ROWS_DOCUMENT, recipe.data.document_token = 0;
  snprintf(recipe.data.val, sizeof recipe.data.val, "%.500s/val.bin", folder);
  OK(ctx, wn_token_file_write(ctx, recipe.data.val, "llmc", V, tokens, T + SHORT + 2));
  wn_data_source *source;
  OK(ctx, wn_data_source_create(ctx, &recipe.data, "val", T, V, &source));
  const wn_selection_mean_options options = {.size = sizeof options, .T = T, .sequences = 2, .cell = 1};
  wn_selection_mean *mean;
  OK(ctx, wn_analyze_selection_mean(ctx, model, source, &options, &mean));
  struct kept *k = calloc(2, sizeof *k);
  OK(ctx, selection_of(ctx, model, tokens, T, NULL, false, keep_F, &k[0], NULL));
  OK(ctx, selection_of(ctx, model, tokens + T + 1, SHORT, NULL, false, keep_F, &k[1], NULL));
  for (int l = 0; l < L; l++)
    for (int i = 0; i < T; i++)
      for (int j = 0; j <= i; j++) {
        const int n = i < SHORT ? 2 : 1;
        const size_t at = (size_t)((l * T + i) * T + j);
        const double F = (double)k[0].F[l][i][j] + (n == 2 ? (double)k[1].F[l][i][j] : 0);
        assert_true(fabs((double)mean->F[at] - F / n) < 1e-5);
        assert_true(mean->pairs[i * T + j] == n);
        if (i == T - 1) assert_true(fabs((double)mean->last[l * T + j] - (1 - exp(-(double)k[0].F[l][i][j]))) < 1e-6);
      }
  assert_true(mean->whole == 1); /* one of the two fills its sequence */
  free(k);
  wn_selection_mean_destroy(mean);
  wn_data_source_destroy(source);
  remove_folder(folder);
  wn_model_destroy(model);
  wn_context_destroy(ctx);
}

/* Two layers of 2 by 2 cells each; numpy.corrcoef of [.1 .4 .2], [.3 .9 .5], [.2 .8 .4], [.5 .1 .9]. */
static void test_likeness(void **state) {
  (void)state;
  wn_context *ctx = context_of("ref", 1);
  float a[] = {0.1f, 9, 0.4f, 0.2f, 0.3f, 9, 0.9f, 0.5f}, b[] = {0.2f, 7, 0.8f, 0.4f, 0.5f, 7, 0.1f, 0.9f};
  const wn_selection_mean first = {.layers = 2, .T = 4, .cell = 2, .size = 2, .masked = a};
  wn_selection_mean second = first;
  second.masked = b;
  wn_selection_likeness *r;
  OK(ctx, wn_selection_compare(ctx, &first, &second, &r));
  static const double correlation[] = {1, -0.65465367, 1, -0.65465367},
                      difference[] = {0.7 / 3, 1.4 / 3, 0.3 / 3, 1.4 / 3};
  for (int i = 0; i < 4; i++) {
    assert_true(fabs(r->correlation[i] - correlation[i]) < 1e-6);
    assert_true(fabs(r->difference[i] - difference[i]) < 1e-6);
  }
  assert_true(fabs(r->same - (r->correlation[0] + r->correlation[3]) / 2) < 1e-12);
  assert_true(fabs(r->others - (r->correlation[1] + r->correlation[2]) / 2) < 1e-12);
  assert_true(fabs(r->best - 1) < 1e-6);
  assert_true(fabs(r->same_difference - (0.7 + 1.4) / 6) < 1e-6);
  wn_selection_likeness_destroy(r);
  /* A cell that has no pairs in one of the two means is left out of the comparison. */
  double pairs[] = {6, 0, 8, 0};
  second.pairs = pairs;
  OK(ctx, wn_selection_compare(ctx, &first, &second, &r));
  assert_true(fabs(r->correlation[1] + 1) < 1e-6 && fabs(r->difference[1] - 0.35) < 1e-6);
  wn_selection_likeness_destroy(r);
  second.cell = 1;
  assert_refused(ctx, wn_selection_compare(ctx, &first, &second, &r), WN_ERR_ARGUMENT, "cells of 1");
  second.cell = 2, second.masked = NULL;
  assert_refused(ctx, wn_selection_compare(ctx, &first, &second, &r), WN_ERR_ARGUMENT, "selective");
  wn_context_destroy(ctx);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_mean_of_documents), cmocka_unit_test(test_likeness),
                                     cmocka_unit_test(test_weights),           cmocka_unit_test(test_budgets),
                                     cmocka_unit_test(test_refused),           cmocka_unit_test(test_mean),
                                     cmocka_unit_test(test_encoder),           cmocka_unit_test(test_encoder_mean),
                                     cmocka_unit_test(test_encoder_refused)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
