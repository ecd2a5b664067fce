/* What heads look at, checked against a plain computation from all attention weights. Survival of tokens under budgets,
 * checked where the policies window and streaming let the result be worked out. */
#include "model/models.h"

#include "model/layer.h"
#include "ops/attention.h"
#include "support.h"
#include "train/eval.h"
#include "winnow/analyze.h"
#include "reach.h"
#include "policies.h"

enum { L = 2, H = 4, HKV = 2, D = 6, T = 40, V = 256, ROWS = 4 * T, EARLY = 3 };
static const char text[] =
    "Heads look at what is near, at what stands first, and at marks that mean nothing; some look at all there is. "
    "Whoever wants to know must ask them.";

/* Attention weights, values and outputs of all rows. */
struct gathered {
  double w[L][ROWS][H][T], v[L][ROWS][HKV][D], y[L][ROWS][H][D];
  int32_t token[ROWS];
  bool real[ROWS];
  int64_t rows, base, layer;
};

static void on_rows(void *user, const struct wn_attention_view *view) {
  struct gathered *g = user;
  for (int64_t i = 0; i < view->rows; i++)
    for (int64_t j = 0; j < view->columns; j++)
      g->w[g->layer][g->base + view->b * view->a->Tq + view->r + i][view->h][j] = (double)view->w[i * view->stride + j];
}
static void on_batch(void *user, const struct wn_batch *batch) {
  struct gathered *g = user;
  g->base = g->rows;
  for (int64_t i = 0; i < batch->B * batch->T; i++, g->rows++) {
    assert_true(g->rows < ROWS);
    for (int64_t j = i; j < (i / batch->T + 1) * batch->T; j++) g->real[g->rows] |= batch->targets[j] >= 0;
    g->token[g->rows] = batch->tokens[i];
  }
}
static void on_attention(void *user, const struct wn_run *run, int64_t l, struct wn_attention *a) {
  struct gathered *g = user;
  (void)run;
  g->layer = l;
  a->look.rows = on_rows, a->look.user = g;
}
static void on_layer(void *user, const struct wn_run *run, int64_t l, const struct wn_layer_acts *acts) {
  struct gathered *g = user;
  for (int64_t n = 0; n < run->B * run->T; n++)
    for (int d = 0; d < D; d++) {
      for (int k = 0; k < HKV; k++)
        g->v[l][g->base + n][k][d] = get(reach(acts->qkv), (size_t)((n * (H + 2 * HKV) + H + HKV + k) * D + d), WN_F32);
      for (int h = 0; h < H; h++)
        g->y[l][g->base + n][h][d] = get(reach(acts->att), (size_t)((n * H + h) * D + d), WN_F32);
    }
}

static double cosine(const double *a, const double *b) {
  double ab = 0, aa = 0, bb = 0;
  for (int d = 0; d < D; d++) ab += a[d] * b[d], aa += a[d] * a[d], bb += b[d] * b[d];
  return ab / sqrt(aa * bb);
}

static void near(const char *what, int64_t l, int64_t h, double found, double expected) {
  if (!(fabs(found - expected) < 2e-5 * fmax(1, fabs(expected))))
    fail_msg("layer %d, head %d: %s is %g, expected %g", (int)l, (int)h, what, found, expected);
}

static void compare(const struct gathered *g, const wn_look_report *r) {
  for (int64_t l = 0; l < L; l++)
    for (int64_t h = 0; h < H; h++) {
      const int64_t k = h / (H / HKV);
      double self = 0, bits = 0, keys = 0, first = 0, early = 0, control = 0, distance = 0, output = 0, rows = 0;
      double far = 0, values = 0, learned = 0, documents = 0;
      for (int64_t n = 0; n < g->rows; n++) {
        const int64_t t = n % T;
        if (!g->real[n]) continue;
        double entropy = 0, sum = 0;
        for (int64_t j = 0; j <= t; j++) {
          const double w = g->w[l][n][h][j];
          sum += w;
          entropy -= w > 0 ? w * log2(w) : 0;
          distance += w * (double)(t - j);
          if (t - j >= 8 && t - j < 16) far += w;
          if (j < EARLY) early += w;
          if (g->token[n - t + j] == ' ') control += w;
        }
        if (1 - sum > 1e-6) entropy -= (1 - sum) * log2(1 - sum), learned += 1 - sum;
        bits += entropy, keys += exp2(entropy), rows++;
        self += g->w[l][n][h][t], first += g->w[l][n][h][0];
        output += cosine(g->y[l][n][h], g->v[l][n][k]);
      }
      for (int64_t from = 0; from < g->rows; from += T) {
        double pairs = 0, one = 0;
        for (int64_t i = from; i < from + T; i++)
          for (int64_t j = from; j < from + T; j++)
            if (i != j && g->real[i] && g->real[j]) one += cosine(g->v[l][i][k], g->v[l][j][k]), pairs++;
        if (pairs > 0) values += one / pairs, documents++;
      }
      const wn_look_head *found = &r->head[l * H + h];
      near("a_ii", l, h, found->self_weight, self / rows);
      near("entropy", l, h, found->entropy, bits / rows);
      near("keys", l, h, found->effective, keys / rows);
      near("first", l, h, found->first, first / rows);
      near("early", l, h, found->early, early / rows);
      near("control", l, h, found->control, control / rows);
      near("learned sinks", l, h, found->learned, learned / rows);
      near("distance", l, h, found->distance, distance / rows);
      near("weight at distances 8 to 15", l, h, found->octave[4], far / rows);
      near("cos(y,v)", l, h, found->output_similarity, output / rows);
      near("cos(v,v)", l, h, found->value_similarity, values / documents);
      assert_true((double)r->tokens == rows);
    }
  near("mean of heads", 1, -1, r->layer[1].entropy,
       (r->head[4].entropy + r->head[5].entropy + r->head[6].entropy + r->head[7].entropy) / 4);
}

static wn_model_config config_of(const char *attention) {
  const struct model_case k = {
      .position = WN_POS_ROPE, .ffn = WN_FFN_SWIGLU, .kv_heads = HKV, .qk_norm = true, .attention = attention};
  wn_model_config c = model_case_config(&k);
  c.vocab_size = V, c.context = T;
  return c;
}

static void test_look(void **state) {
  (void)state;
  static const char *const cases[] = {"{}", "{\"window\":12,\"window_layers\":\"01\"}",
                                      "{\"sinks\":2,\"selective\":{}}", "{\"threshold\":{\"tau\":0.7}}"};
  for (int n = 0; n < 8; n++) {
    wn_context *ctx = context_of(n % 2 ? "cpu" : "ref", 2);
    wn_model_config c = config_of(cases[n / 2]);
    struct wn_model *model = model_of(ctx, &c, WN_F32);
    wn_tokenizer *tok;
    OK(ctx, wn_tokenizer_load(ctx, "bytes", &tok));
    const wn_eval_options eval = {.size = sizeof eval, .batch = 2};
    const wn_analysis_input input = {.tok = tok, .text = text, .bytes = 110, .options = &eval};
    struct gathered *g = calloc(1, sizeof *g);
    assert_non_null(g);
    const struct wn_layer_observer observer = {
        .layer = on_layer, .batch = on_batch, .attention = on_attention, .user = g};
    wn_eval_result result;
    OK(ctx, wn_eval_text_observed(ctx, model, tok, text, 110, &eval, &observer, &result));
    const int32_t space = ' ';
    const wn_look_options options = {.size = sizeof options, .early = EARLY, .control = &space, .control_count = 1};
    wn_look_report *r;
    OK(ctx, wn_analyze_look(ctx, model, &input, &options, &r));
    compare(g, r);
    for (int64_t l = 0; l < r->layers; l++)
      assert_true(n / 2 == 2 ? r->layer[l].learned > 0.01 : r->layer[l].learned == 0);
    wn_look_report_destroy(r);
    assert_refused(ctx, wn_analyze_look(ctx, model, &input, &(wn_look_options){.size = sizeof(wn_look_options)}, &r),
                   WN_ERR_ARGUMENT, "at least 1");
    free(g);
    wn_model_destroy(model);
    wn_tokenizer_destroy(tok);
    wn_context_destroy(ctx);
  }
}

static void test_survival(void **state) {
  (void)state;
  enum { K = 8, SINKS = 2, POLICIES = 4 };
  for (int backend = 0; backend < 2; backend++) {
    wn_context *ctx = context_of(backend ? "cpu" : "ref", 1);
    wn_model_config c = config_of("{}");
    struct wn_model *model = model_of(ctx, &c, WN_F32);
    wn_tokenizer *tok;
    OK(ctx, wn_tokenizer_load(ctx, "bytes", &tok));
    int64_t tokens[L] = {K, K};
    const wn_policy policies[POLICIES] = {WN_POLICY_WINDOW, WN_POLICY_STREAMING, WN_POLICY_TOVA, WN_POLICY_H2O};
    wn_budgets budgets[POLICIES];
    const wn_budgets *list[POLICIES];
    for (int i = 0; i < POLICIES; i++) {
      budgets_init(&budgets[i]);
      budgets[i].policy = policies[i], budgets[i].layers = L, budgets[i].tokens = tokens, budgets[i].sinks = SINKS;
      list[i] = &budgets[i];
    }
    const wn_eval_options eval = {.size = sizeof eval, .batch = 2};
    const wn_analysis_input input = {.tok = tok, .text = text, .bytes = 2 * T + 1, .options = &eval}; /* two blocks */
    wn_survival_report *r;
    OK(ctx, wn_analyze_survival(ctx, model, &input, list, POLICIES, &r));
    double rows = 0;
    for (int i = 0; i < T; i++) rows += i + 1 < K ? i + 1 : K;
    for (int i = 0; i < POLICIES; i++) {
      wn_survival_policy *p = &r->policy[i];
      wn_eval_options under = eval;
      under.budgets = list[i];
      wn_eval_result result;
      OK(ctx, wn_eval_text(ctx, model, tok, text, 2 * T + 1, &under, &result));
      assert_true(p->policy == policies[i] && fabs(p->perplexity - result.perplexity) < 1e-6 * result.perplexity);
      assert_true(p->tokens == 2 * T * L * HKV);
      /* From row K on the cache holds K tokens, whichever they are. In the end all but K have been evicted. */
      assert_true(fabs(p->lifetime - rows / T) < 1e-9 && fabs(p->evicted - (double)(T - K) / T) < 1e-9);
      for (int k = 1; k < WN_SURVIVAL_AGES && p->alive[k] >= 0; k++) assert_true(p->alive[k - 1] >= 0);
      assert_true(r->overlap[i * POLICIES + i] == 1);
    }
    for (int k = 0; k < 6; k++) {
      const int age = 1 << k;
      assert_true(r->policy[0].alive[k] == (age < K ? 1 : 0));
      /* The first SINKS tokens stay. Any other token is evicted K - SINKS rows after its own row. */
      const double sinks = (double)SINKS / (T - age);
      if (age >= K) assert_true(fabs(r->policy[1].alive[k] - sinks) < 1e-9);
    }
    assert_true(r->policy[0].alive[6] < 0); /* no document is that long */
    assert_true(fabs(r->overlap[1] - (double)(K - SINKS) / K) < 1e-9 && r->overlap[1] == r->overlap[POLICIES]);
    /* Cache positions change what the model computes from the tokens that it holds, but not which tokens it holds. */
    wn_survival_report *by_place;
    wn_eval_options under = eval;
    wn_eval_result result;
    budgets[1].cache_positions = true, under.budgets = list[1];
    OK(ctx, wn_analyze_survival(ctx, model, &input, list + 1, 1, &by_place));
    OK(ctx, wn_eval_text(ctx, model, tok, text, 2 * T + 1, &under, &result));
    const wn_survival_policy *p = by_place->policy, *q = &r->policy[1];
    assert_true(p->tokens == q->tokens && p->lifetime == q->lifetime && p->evicted == q->evicted);
    assert_memory_equal(p->alive, q->alive, sizeof p->alive);
    assert_true(fabs(p->perplexity - result.perplexity) < 1e-6 * result.perplexity && p->perplexity != q->perplexity);
    wn_survival_report_destroy(by_place);
    wn_survival_report_destroy(r);
    assert_refused(ctx, wn_analyze_survival(ctx, model, &input, list, 0, &r), WN_ERR_ARGUMENT, "policies");
    budgets[0].policy = WN_POLICY_SELECTIVE;
    assert_refused(ctx, wn_analyze_survival(ctx, model, &input, list, 1, &r), WN_ERR_CONFIG, "selective");
    wn_model_destroy(model);
    wn_tokenizer_destroy(tok);
    wn_context_destroy(ctx);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_look), cmocka_unit_test(test_survival)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
