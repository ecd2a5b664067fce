/* Protocols (wn_when): a context is read in full and compressed once, and then the cache grows or stays full; or it is
 * compressed every N tokens. What stays is compared with scores that are computed here, in double, from the keys,
 * values, sums and F that a policy of the test's own is shown. */
#include "model/models.h"

#include <math.h>

#include "decode/session_once.h"
#include "decode/snapshot.h"
#include "kv/policy.h"
#include "support.h"
#include "winnow/generate.h"
#include "policies.h"

enum { V = 13, L = 2, HKV = 2, MOST = 96, ROWS = 6 };

static wn_model *model_with(wn_context *ctx, const char *attention, int layers) {
  const struct model_case k = {
      .position = WN_POS_ROPE, .ffn = WN_FFN_SWIGLU, .kv_heads = HKV, .attention = attention ? attention : "{}"};
  wn_model_config c = model_case_config(&k);
  c.context = MOST, c.layers = layers;
  return model_of(ctx, &c, WN_F32);
}

static void random_text(uint64_t seed, int32_t *ids, int n) {
  for (int i = 0; i < n; i++) ids[i] = (int32_t)wn_random_below(seed, WN_STREAM_TEST, 3, (uint64_t)i, V);
}

static wn_session *session_with(wn_context *ctx, wn_model *model, const char *policy, const char *options,
                                const char *budget, int64_t sequences) {
  wn_budgets b;
  wn_session *s;
  budgets_init(&b);
  if (!wn_budgets_named(policy, &b)) assert_int_equal(wn_policy_find(NULL, policy, &b.policy), WN_OK);
  OK(ctx, wn_budgets_set(ctx, options, &b));
  OK(ctx, wn_budgets_parse(ctx, wn_model_config_get(model), budget, &b));
  OK(ctx, wn_session_create(
              ctx, model, WN_OPTIONS(wn_session_options, .sequences = sequences, .capacity = MOST, .budgets = &b), &s));
  wn_budgets_clear(&b);
  return s;
}

/* Reads n tokens in pieces of random sizes. */
static void read_in_pieces(wn_context *ctx, wn_session *s, uint64_t seed, const int32_t *ids, int n) {
  for (int done = 0, piece; done < n; done += piece) {
    piece = 1 + (int)wn_random_below(seed, WN_STREAM_TEST, 7, (uint64_t)done, 40);
    if (piece > n - done) piece = n - done;
    OK(ctx, wn_session_feed(ctx, s, ids + done, piece, 0, NULL));
  }
}

struct kept {
  int64_t count[L][HKV];
  int32_t at[L][HKV][MOST];
};
static void kept_of(wn_context *ctx, const wn_session *s, struct kept *out) {
  memset(out, 0, sizeof *out);
  for (int l = 0; l < wn_model_config_get(s->model)->layers; l++)
    for (int h = 0; h < HKV; h++) OK(ctx, wn_session_kept(ctx, s, 0, l, h, out->at[l][h], &out->count[l][h]));
}

/* ---- scores in double ---- */

/* What the test's own policy was shown of a layer. */
struct shown {
  int n, groups, heads, D;
  double k[HKV][MOST][64], sums[HKV][ROWS][MOST], all[HKV][MOST], F[HKV][MOST];
};
struct witness {
  struct shown layer[L];
  int rows;
};

static bool witness_score(void *user, const wn_policy_view *v) {
  struct witness *w = user;
  struct shown *x = &w->layer[v->layer];
  x->n = (int)v->count, x->groups = (int)v->groups, x->heads = (int)v->heads, x->D = (int)v->head_size;
  for (int64_t g = 0; g < v->groups; g++)
    for (int64_t j = 0; j < v->count; j++) {
      for (int64_t h = 0; h < v->heads; h++)
        for (int64_t d = 0; d < v->head_size; d++)
          x->k[g * v->heads + h][j][d] = (double)v->keys[((g * v->heads + h) * v->count + j) * v->head_size + d];
      if (v->selections) x->F[g][j] = (double)v->selections[g * v->count + j];
      if (w->rows == 0) x->all[g][j] = (double)v->sums[g * v->count + j];
      for (int r = 0; r < w->rows; r++) x->sums[g][r][j] = (double)v->sums[(g * w->rows + r) * v->count + j];
    }
  return true;
}

/* Importance by the policies' definitions: the larger, the better. */
static double knorm(const struct shown *x, int g, int j) {
  double sum = 0;
  for (int h = g * x->heads; h < (g + 1) * x->heads; h++) {
    double square = 0;
    for (int d = 0; d < x->D; d++) square += x->k[h][j][d] * x->k[h][j][d];
    sum -= sqrt(square);
  }
  return sum;
}

static double keydiff(const struct shown *x, int g, int j) {
  double sum = 0;
  for (int h = g * x->heads; h < (g + 1) * x->heads; h++) {
    double anchor[64] = {0}, dot = 0, own = 0, length = 0;
    for (int i = 0; i < x->n; i++) {
      double square = 0;
      for (int d = 0; d < x->D; d++) square += x->k[h][i][d] * x->k[h][i][d];
      for (int d = 0; d < x->D; d++) anchor[d] += x->k[h][i][d] / sqrt(square);
    }
    for (int d = 0; d < x->D; d++) {
      dot += anchor[d] * x->k[h][j][d], own += x->k[h][j][d] * x->k[h][j][d], length += anchor[d] * anchor[d];
    }
    sum -= dot / sqrt(own) / sqrt(length);
  }
  return sum;
}

static double tova(const struct shown *x, int g, int j) {
  return x->sums[g][ROWS - 1][j];
}

static double h2o(const struct shown *x, int g, int j) {
  return x->all[g][j];
}

static double selective(const struct shown *x, int g, int j) {
  return -x->F[g][j];
}

/* Pooled over the tokens before the protected ones. */
static double snapkv(const struct shown *x, int g, int j, int end, int neighbours) {
  double sum = 0;
  for (int i = j - neighbours; i <= j + neighbours; i++)
    for (int r = 0; i >= 0 && i < end && r < ROWS; r++) sum += x->sums[g][r][i];
  return sum;
}

/* The K best of n, ascending: `recent` last and `sinks` first ones first of all; of equal ones the newest. *margin: how
 * far the worst that stays is from the best that goes. */
static void best(const double *importance, int n, int K, int sinks, int recent, int32_t *out, double *margin) {
  bool stays[L * HKV * MOST] = {0};
  double worst = INFINITY, other = -INFINITY;
  int protects = 0;
  for (int j = 0; j < n && protects < K; j++)
    if (j < sinks) stays[j] = true, protects++;
  for (int j = n - 1; j >= n - recent && j >= 0 && protects < K; j--)
    if (!stays[j]) stays[j] = true, protects++;
  for (int k = protects; k < K; k++) {
    int top = -1;
    for (int j = n - 1; j >= 0; j--)
      if (!stays[j] && (top < 0 || importance[j] > importance[top])) top = j;
    stays[top] = true;
    worst = importance[top];
  }
  for (int j = 0; j < n; j++)
    if (!stays[j] && importance[j] > other) other = importance[j];
  *margin = fabs(worst - other);
  for (int j = 0; j < n; j++)
    if (stays[j]) *out++ = j;
}

enum { KNORM, KEYDIFF, TOVA, H2O, SNAPKV, SELECTIVE, STREAMING, RULES };
static const char *const rule_names[RULES] = {"knorm", "keydiff", "tova", "h2o", "snapkv", "selective", "streaming"};

/* Which tokens of layer l, group g stay. False: equal to rounding, so either may. */
static bool expected(const struct witness *w, int rule, int l, int g, int K, int32_t *out) {
  const struct shown *x = &w->layer[l];
  double importance[MOST], margin;
  const int rows = ROWS < K / 2 ? ROWS : K / 2, sinks = rule == STREAMING ? (4 < K - 1 ? 4 : K - 1) : 0;
  const int recent = rule == SNAPKV ? rows : rule == TOVA ? 1 : rule == H2O ? K / 2 : 0;
  for (int j = 0; j < x->n; j++)
    importance[j] = rule == KNORM       ? knorm(x, g, j)
                    : rule == KEYDIFF   ? keydiff(x, g, j)
                    : rule == TOVA      ? tova(x, g, j)
                    : rule == H2O       ? h2o(x, g, j)
                    : rule == SNAPKV    ? snapkv(x, g, j, x->n - recent, 2)
                    : rule == SELECTIVE ? (j == 0 ? INFINITY : selective(x, g, j))
                                        : 0;
  best(importance, x->n, K, rule == SELECTIVE ? 1 : sinks, recent, out, &margin);
  return rule == STREAMING || !(margin <= 1e-5);
}

/* A random text, read in random pieces, is compressed as the scores say. */
static void check_scores(wn_context *ctx, wn_model *model, int rule, bool heads, int number, int *sure) {
  const uint64_t seed = (uint64_t)number * 31 + (uint64_t)rule;
  const int n = 12 + (int)wn_random_below(seed, WN_STREAM_TEST, 1, 0, MOST - 12 - 8);
  const int K = 2 + (int)wn_random_below(seed, WN_STREAM_TEST, 1, 1, (uint64_t)n - 3);
  struct witness *w = calloc(1, sizeof *w);
  wn_own_policy own = {.size = sizeof own, .needs = WN_OWN_KEYS | WN_OWN_SUMS, .score = witness_score, .user = w};
  wn_budgets b;
  wn_session *shown, *s;
  struct kept kept;
  int32_t ids[MOST];
  char budget[32], options[96];
  w->rows = rule == H2O ? 0 : ROWS;
  own.rows = w->rows;
  if (wn_model_config_get(model)->attention.selective.enabled) own.needs |= WN_OWN_SELECTIONS;
  random_text(seed, ids, n);
  snprintf(budget, sizeof budget, "%d", K);
  snprintf(options, sizeof options, "when=%s,snapkv.rows=%d,per_kv_head=%s", number % 2 ? "prompt" : "hold", ROWS,
           heads ? "true" : "false");
  budgets_init(&b);
  b.policy = WN_POLICY_OWN, b.own = &own, b.per_kv_head = heads, b.when = WN_WHEN_PROMPT;
  OK(ctx, wn_budgets_parse(ctx, wn_model_config_get(model), budget, &b));
  OK(ctx, wn_session_create(ctx, model, WN_OPTIONS(wn_session_options, .capacity = MOST, .budgets = &b), &shown));
  read_in_pieces(ctx, shown, seed, ids, n);
  OK(ctx, wn_session_compress(ctx, shown));
  s = session_with(ctx, model, rule_names[rule], options, budget, 1);
  read_in_pieces(ctx, s, seed + 1, ids, n);
  OK(ctx, wn_session_compress(ctx, s));
  kept_of(ctx, s, &kept);
  for (int l = 0; l < L; l++)
    for (int h = 0; h < HKV; h++) {
      int32_t wanted[MOST];
      assert_int_equal(kept.count[l][h], K);
      if (!expected(w, rule, l, w->layer[l].groups > 1 ? h : 0, K, wanted)) continue;
      ++*sure;
      if (memcmp(wanted, kept.at[l][h], (size_t)K * sizeof *wanted) != 0)
        fail_msg("%s, case %d, %d tokens, K %d, layer %d, head %d", rule_names[rule], number, n, K, l, h);
    }
  wn_session_destroy(s), wn_session_destroy(shown);
  wn_budgets_clear(&b);
  free(w);
}

static void test_scores(void **state) {
  (void)state;
  wn_context *ctx = context_of("cpu", 1);
  static const char *const kinds[] = {NULL, "{\"selective\":{\"per_kv_head\":true}}", "{\"softcap\":{\"cap\":2}}"};
  for (int kind = 0; kind < 3; kind++) {
    wn_model *model = model_with(ctx, kinds[kind], L);
    const bool selects = wn_model_config_get(model)->attention.selective.enabled;
    int sure = 0, cases = 0;
    for (int number = 0; number < 40; number++)
      for (int rule = 0; rule < RULES; rule++)
        for (int heads = 0; heads < 2; heads++) {
          const bool by_head = rule != SELECTIVE && rule != STREAMING; /* can each head decide? */
          if (by_head ? selects && !heads : heads || (rule == SELECTIVE) != selects) continue;
          check_scores(ctx, model, rule, heads, number, &sure), cases++;
        }
    assert_true(sure > cases * L * HKV / 2); /* most choices are clear */
    wn_model_destroy(model);
  }
  wn_context_destroy(ctx);
}

/* ---- KVzip ---- */

struct repeated {
  int rows, n, first, end;
  double (*out)[HKV][MOST];
};

static bool repeated_weights(void *user, const wn_policy_view *v) {
  const struct repeated *r = user;
  const int sinks = r->first < 4 ? r->first : 4;
  for (int64_t g = 0; g < v->groups; g++)
    for (int t = 0; t < r->rows; t++) {
      const float *row = v->sums + (g * r->rows + t) * v->count;
      double sum = 0;
      for (int j = 0; j < (int)v->count; j++)
        if (j < sinks || j >= r->n || (j >= r->first && j < r->end)) sum += (double)row[j];
      for (int j = r->first; j < r->end; j++)
        r->out[v->layer][g][j] = fmax(r->out[v->layer][g][j], (double)row[j] / sum);
    }
  return true;
}

static const int32_t asked[] = {3, 1}, asked_later[] = {5, 1, 2}, closing[] = {7};

/* Importances of tokens first..end-1 by definition: the context and the repetition are read as one text, and of the
 * weights of the repetition's rows those that count are put in relation to each other. Heads and key-value heads are
 * alike in number, so that a sum over a group is a head's own weight. */
static void repeated_by_definition(wn_context *ctx, wn_model *model, const int32_t *ids, int n, int first, int end,
                                   double out[L][HKV][MOST]) {
  int32_t text[3 * MOST];
  int count = n;
  memcpy(text, ids, (size_t)n * sizeof *ids);
  for (int i = 0; i < (first ? 3 : 2); i++) text[count++] = (first ? asked_later : asked)[i];
  for (int j = first > 8 ? first - 8 : 0; j < first; j++) text[count++] = ids[j];
  text[count++] = closing[0];
  for (int j = first; j < end; j++) text[count++] = ids[j];
  struct repeated r = {count - n, n, first, end, out};
  wn_own_policy own = {.size = sizeof own, .needs = WN_OWN_SUMS, .rows = r.rows, .score = repeated_weights, .user = &r};
  wn_budgets b;
  wn_session *s;
  budgets_init(&b);
  b.policy = WN_POLICY_OWN, b.own = &own, b.per_kv_head = true, b.when = WN_WHEN_PROMPT;
  OK(ctx, wn_budgets_parse(ctx, wn_model_config_get(model), "9", &b));
  OK(ctx, wn_session_create(ctx, model, WN_OPTIONS(wn_session_options, .capacity = 3 * MOST, .budgets = &b), &s));
  OK(ctx, wn_session_feed(ctx, s, text, count, 0, NULL));
  OK(ctx, wn_session_compress(ctx, s));
  wn_session_destroy(s);
  wn_budgets_clear(&b);
}

/* Heads keep the tokens that the definition says, each K or all layers together as many; in one chunk and in several.
 */
static void test_kvzip(void **state) {
  (void)state;
  wn_context *ctx = context_of("cpu", 2);
  const struct model_case k = {.position = WN_POS_ROPE, .ffn = WN_FFN_SWIGLU, .kv_heads = HKV, .attention = "{}"};
  wn_model_config c = model_case_config(&k);
  c.context = 3 * MOST, c.layers = L, c.heads = HKV;
  wn_model *model = model_of(ctx, &c, WN_F32);
  int32_t ids[MOST];
  int sure = 0;
  for (int number = 0; number < 24; number++) {
    const bool all = number % 2, several = number % 4 > 1;
    const int n = 30 + number, K = 9 + number / 2, chunk = several ? 13 : 2048;
    double importance[L][HKV][MOST] = {0}, flat[L * HKV * MOST], margin;
    int32_t wanted[L * HKV * MOST];
    char budget[16];
    struct kept kept;
    random_text((uint64_t)number + 70, ids, n);
    for (int first = 0; first < n; first += chunk)
      repeated_by_definition(ctx, model, ids, n, first, first + chunk < n ? first + chunk : n, importance);
    for (int l = 0; l < L; l++)
      for (int h = 0; h < HKV; h++)
        for (int j = 0; j < 4; j++) importance[l][h][j] = 2; /* the first tokens stay */
    snprintf(budget, sizeof budget, "%d", K);
    wn_session *s = session_with(ctx, model, "kvzip", all ? "when=prompt" : "when=hold,allot=uniform", budget, 1);
    s->once->own.options.kvzip.chunk = chunk;
    OK(ctx,
       wn_session_repeat_ids(ctx, s, (int32_t *const[]){(int32_t *)asked, (int32_t *)asked_later, (int32_t *)closing},
                             (const size_t[]){2, 3, 1}));
    read_in_pieces(ctx, s, (uint64_t)number, ids, n);
    OK(ctx, wn_session_compress(ctx, s));
    kept_of(ctx, s, &kept);
    int total = 0;
    for (int i = 0; i < L * HKV; i++) {
      memcpy(flat + i * n, importance[i / HKV][i % HKV], (size_t)n * sizeof *flat);
      total += (int)kept.count[i / HKV][i % HKV];
    }
    assert_int_equal(total, L * HKV * K);
    best(flat, L * HKV * n, all ? L * HKV * K : 0, 0, 0, wanted, &margin);
    for (int i = 0, at = 0; i < L * HKV; i++) {
      const int l = i / HKV, h = i % HKV;
      int own = 0;
      if (!all) best(importance[l][h], n, own = K, 0, 0, wanted + at, &margin);
      while (all && at + own < L * HKV * K && wanted[at + own] < (i + 1) * n) own++;
      const bool clear = margin > 1e-6;
      if (clear) assert_int_equal(kept.count[l][h], own);
      for (int j = 0; clear && j < own; j++) {
        if (kept.at[l][h][j] != (all ? wanted[at + j] - i * n : wanted[at + j]))
          fail_msg("case %d, layer %d, head %d: token %d of %d", number, l, h, j, own);
        sure++;
      }
      at += own;
    }
    wn_session_destroy(s);
  }
  assert_true(sure > 12 * L * HKV * 9);
  /* without a request; a second time */
  wn_session *s = session_with(ctx, model, "kvzip", "when=prompt", "9", 1);
  OK(ctx, wn_session_feed(ctx, s, ids, 20, 0, NULL));
  assert_refused(ctx, wn_session_compress(ctx, s), WN_ERR_ARGUMENT, "expected a tokenizer");
  OK(ctx,
     wn_session_repeat_ids(ctx, s, (int32_t *const[]){(int32_t *)asked, (int32_t *)asked_later, (int32_t *)closing},
                           (const size_t[]){2, 3, 1}));
  OK(ctx, wn_session_compress(ctx, s));
  assert_refused(ctx, wn_session_compress(ctx, s), WN_ERR_UNSUPPORTED, "in full");
  wn_session_destroy(s);
  wn_model_destroy(model);
  wn_context_destroy(ctx);
}

/* ---- what is attended to ---- */

/* In a model of one layer a token reaches the logits of a question exactly if some head has kept it. */
static void test_reaches_logits(void **state) {
  (void)state;
  wn_context *ctx = context_of("cpu", 1);
  wn_model *model = model_with(ctx, NULL, 1);
  static const char *const options[] = {"when=prompt", "when=prompt,per_kv_head=true", "when=hold,per_kv_head=true"};
  enum { N = 40, Q = 9 };
  for (int o = 0; o < 3; o++) {
    wn_session *s = session_with(ctx, model, "random", options[o], "25", 1);
    int32_t ids[N + Q], heads[N + Q];
    float logits[V], changed[V];
    int seen = 0;
    random_text(3, ids, N + Q);
    for (int i = -1; i < N; i++) {
      if (i >= 0) ids[i] = (ids[i] + 1) % V;
      wn_session_reset(s);
      OK(ctx, wn_session_feed(ctx, s, ids, N, 0, NULL));
      OK(ctx, wn_session_compress(ctx, s));
      if (o == 2) OK(ctx, wn_session_held(ctx, s, 0, 0, heads));
      OK(ctx, wn_session_feed(ctx, s, ids + N, Q, 0, i < 0 ? logits : changed));
      if (i < 0) continue;
      ids[i] = (ids[i] + V - 1) % V;
      if (o < 2) OK(ctx, wn_session_held(ctx, s, 0, 0, heads));
      const bool same = !memcmp(logits, changed, sizeof logits);
      if (o == 2 && heads[i] > 0) continue; /* it may have gone since */
      if (same != (heads[i] == 0)) fail_msg("%s, position %d: held by %d heads", options[o], i, heads[i]);
      seen += heads[i] > 0;
    }
    assert_true(o == 2 || (seen > 0 && seen < N));
    wn_session_destroy(s);
  }
  wn_model_destroy(model);
  wn_context_destroy(ctx);
}

/* A budget of everything changes no bit, whatever is asked for. */
static void test_whole_budget(void **state) {
  (void)state;
  wn_context *ctx = context_of("cpu", 1);
  static const char *const policies[] = {"random",   "snapkv",     "knorm",          "h2o",
                                         "expected", "ada-snapkv", "critical-snapkv"};
  wn_model *model = model_with(ctx, NULL, L);
  int32_t ids[MOST];
  float wanted[V], found[V];
  random_text(8, ids, MOST);
  wn_session *plain;
  OK(ctx, wn_session_create(ctx, model, WN_OPTIONS(wn_session_options, .capacity = MOST), &plain));
  OK(ctx, wn_session_feed(ctx, plain, ids, 50, 0, NULL));
  for (int t = 50; t < 60; t++) OK(ctx, wn_session_feed(ctx, plain, ids + t, 1, 0, wanted));
  for (size_t p = 0; p < sizeof policies / sizeof *policies; p++) {
    wn_session *s = session_with(ctx, model, policies[p], "when=prompt", "100%", 1);
    OK(ctx, wn_session_feed(ctx, s, ids, 50, 0, NULL));
    OK(ctx, wn_session_compress(ctx, s));
    for (int t = 50; t < 60; t++) OK(ctx, wn_session_feed(ctx, s, ids + t, 1, 0, found));
    for (int v = 0; v < V; v++)
      if (!(fabsf(wanted[v] - found[v]) <= 1e-5f)) fail_msg("%s: logit %d", policies[p], v);
    wn_session_destroy(s);
  }
  wn_session_destroy(plain);
  wn_model_destroy(model);
  wn_context_destroy(ctx);
}

/* ---- memory ---- */

/* Bytes are those of the tokens held, to a block; the peak is that of the context. */
static void test_memory(void **state) {
  (void)state;
  wn_context *ctx = context_of("cpu", 1);
  const struct model_case k = {.position = WN_POS_ROPE, .ffn = WN_FFN_SWIGLU, .kv_heads = HKV, .attention = "{}"};
  wn_model_config c = model_case_config(&k);
  c.context = 2048, c.layers = L;
  wn_model *model = model_of(ctx, &c, WN_F32);
  wn_budgets b;
  wn_session *s;
  int32_t ids[1024];
  random_text(6, ids, 1024);
  budgets_init(&b);
  assert_int_equal(wn_policy_find(NULL, "knorm", &b.policy), WN_OK);
  b.when = WN_WHEN_PROMPT;
  OK(ctx, wn_budgets_parse(ctx, &c, "64", &b));
  OK(ctx, wn_session_create(ctx, model, WN_OPTIONS(wn_session_options, .capacity = 2048, .budgets = &b), &s));
  const size_t each = wn_session_kv_bytes(s) / 64; /* an empty cache has a block of 64 tokens */
  OK(ctx, wn_session_feed(ctx, s, ids, 1000, 0, NULL));
  assert_int_equal(wn_session_kv_bytes(s) / each, 1024);
  OK(ctx, wn_session_compress(ctx, s));
  assert_int_equal(wn_session_kv_bytes(s) / each, 64);
  const size_t peak = wn_session_peak_bytes(s);
  assert_true(peak >= 1024 * each && peak <= (1024 + 64) * each);
  for (int t = 0; t < 65; t++) {
    OK(ctx, wn_session_feed(ctx, s, ids + t, 1, 0, NULL));
    assert_int_equal(wn_session_kv_bytes(s) / each, t < 64 ? 128 : 192);
  }
  assert_int_equal(wn_session_held_bytes(s), 129 * each);
  assert_int_equal(wn_session_peak_bytes(s), peak);
  wn_session_reset(s);
  OK(ctx, wn_session_feed(ctx, s, ids, 1000, 0, NULL));
  OK(ctx, wn_session_compress(ctx, s));
  assert_int_equal(wn_session_kv_bytes(s) / each, 64);
  wn_session_destroy(s);
  wn_budgets_clear(&b);
  wn_model_destroy(model);
  wn_context_destroy(ctx);
}

/* ---- after the context ---- */

/* "prompt": all that was kept stays, and so does all that comes. "hold": K tokens from then on, the newest among them.
 */
static void test_after(void **state) {
  (void)state;
  wn_context *ctx = context_of("cpu", 1);
  wn_model *model = model_with(ctx, NULL, L);
  static const char *const policies[] = {"knorm", "keydiff", "h2o", "snapkv", "tova", "random", "streaming", "window"};
  int32_t ids[MOST];
  random_text(9, ids, MOST);
  for (size_t p = 0; p < 8; p++)
    for (int hold = 0; hold < 2; hold++)
      for (int piece = 1; piece < 20; piece += 18) {
        wn_session *s = session_with(ctx, model, policies[p], hold ? "when=hold" : "when=prompt", "14", 1);
        struct kept before, after;
        OK(ctx, wn_session_feed(ctx, s, ids, 50, 0, NULL));
        OK(ctx, wn_session_compress(ctx, s));
        kept_of(ctx, s, &before);
        for (int t = 50; t < 88; t += piece) OK(ctx, wn_session_feed(ctx, s, ids + t, piece, 0, NULL));
        kept_of(ctx, s, &after);
        for (int l = 0; l < L; l++)
          for (int h = 0; h < HKV; h++) {
            assert_int_equal(before.count[l][h], 14);
            assert_int_equal(after.count[l][h], hold ? 14 : 14 + 38);
            assert_int_equal(after.at[l][h][after.count[l][h] - 1], 87);
            if (!hold) assert_memory_equal(before.at[l][h], after.at[l][h], 14 * sizeof(int32_t));
            for (int j = 0; !hold && j < 38; j++) assert_int_equal(after.at[l][h][14 + j], 50 + j);
          }
        wn_session_destroy(s);
      }
  wn_model_destroy(model);
  wn_context_destroy(ctx);
}

/* "every": between K and K + N tokens; in one piece, token by token and in between the same tokens. */
static void test_every(void **state) {
  (void)state;
  wn_context *ctx = context_of("cpu", 1);
  wn_model *model = model_with(ctx, NULL, L);
  static const char *const policies[] = {"knorm", "keydiff", "random", "window", "snapkv", "rkv"};
  int32_t ids[MOST];
  random_text(10, ids, MOST);
  for (size_t p = 0; p < 6; p++) {
    wn_session *one = session_with(ctx, model, policies[p], "when=every,every=7", "12", 1),
               *all = session_with(ctx, model, policies[p], "when=every,every=7", "12", 1);
    struct kept a, b;
    for (int t = 0; t < 80; t++) {
      OK(ctx, wn_session_feed(ctx, one, ids + t, 1, 0, NULL));
      kept_of(ctx, one, &a);
      const int held = t < 19 ? t + 1 : 12 + (t - 12) % 7 + 1;
      for (int l = 0; l < L; l++)
        for (int h = 0; h < HKV; h++) assert_int_equal(a.count[l][h], held);
    }
    OK(ctx, wn_session_feed(ctx, all, ids, 80, 0, NULL));
    kept_of(ctx, all, &b);
    if (memcmp(&a, &b, sizeof a) != 0) fail_msg("%s: other tokens in one piece", policies[p]);
    assert_true(wn_session_kv_bytes(one) == wn_session_kv_bytes(all));
    wn_session_destroy(one), wn_session_destroy(all);
  }
  wn_model_destroy(model);
  wn_context_destroy(ctx);
}

/* A method whose heads hold the same tokens: the mean of their scores chooses. SnapKV's is what the policy of that name
 * takes, whose votes are summed over the heads. */
static void test_together(void **state) {
  (void)state;
  static const char *const names[] = {"lagkv", "expected",  "observed", "leverage",       "compactor",
                                      "rkv",   "pyramidkv", "snapkv",   "critical-snapkv"};
  wn_context *ctx = context_of("cpu", 2);
  wn_model *model = model_with(ctx, NULL, L);
  int32_t ids[MOST];
  struct kept a, b;
  bool differ = false;
  random_text(17, ids, MOST);
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    const bool snapkv = !strcmp(names[i], "snapkv");
    wn_session *one = session_with(ctx, model, names[i], "when=prompt,snapkv.rows=4,per_kv_head=false", "20", 1),
               *other = session_with(ctx, model, snapkv ? "knorm" : names[i],
                                     snapkv ? "when=prompt,snapkv.rows=4,method=snapkv" : "when=prompt,snapkv.rows=4",
                                     "20", 1);
    wn_session *both[] = {one, other};
    for (int k = 0; k < 2; k++) {
      OK(ctx, wn_session_feed(ctx, both[k], ids, 60, 0, NULL));
      OK(ctx, wn_session_compress(ctx, both[k]));
    }
    kept_of(ctx, one, &a), kept_of(ctx, other, &b);
    for (int l = 0; l < L; l++)
      for (int h = 0; h < HKV; h++) {
        assert_int_equal(a.count[l][h], a.count[l][0]);
        assert_memory_equal(a.at[l][h], a.at[l][0], sizeof a.at[l][h]);
        differ = differ || memcmp(b.at[l][h], b.at[l][0], sizeof b.at[l][h]) != 0;
      }
    if (snapkv) assert_memory_equal(&a, &b, sizeof a);
    wn_session_destroy(one), wn_session_destroy(other);
  }
  assert_true(differ);
  wn_model_destroy(model);
  wn_context_destroy(ctx);
}

/* "every" with a threshold: what scores above it and has left the window goes every N tokens. In the first layer, whose
 * keys nothing changes, that is what a context of a multiple of N tokens keeps when it ends. */
static void test_sifting(void **state) {
  (void)state;
  static const struct {
    const char *attention, *policy;
    double tau;
  } kinds[] = {{NULL, "knorm", 1.2},
               {"{\"forget\":{}}", "gates", 8},
               {"{\"fade\":{}}", "gates", 0.2},
               {"{\"selective\":{\"per_kv_head\":true}}", "selective", 0.5}};
  wn_context *ctx = context_of("cpu", 1);
  int32_t ids[MOST];
  random_text(15, ids, MOST);
  for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
    wn_model *model = model_with(ctx, kinds[i].attention, L);
    char every[128], once[128];
    snprintf(every, sizeof every, "when=every,every=7,per_kv_head=true,allot=tau,window=5,tau=%g", kinds[i].tau);
    snprintf(once, sizeof once, "when=prompt,per_kv_head=true,allot=tau,window=5,tau=%g", kinds[i].tau);
    wn_session *one = session_with(ctx, model, kinds[i].policy, every, "9", 1),
               *all = session_with(ctx, model, kinds[i].policy, every, "9", 1);
    struct kept a, b;
    int64_t gone = 0, held = 0;
    size_t most = 0;
    for (int t = 0; t < 80; t++) {
      OK(ctx, wn_session_feed(ctx, one, ids + t, 1, 0, NULL));
      kept_of(ctx, one, &a);
      if (wn_session_kv_bytes(one) > most) most = wn_session_kv_bytes(one);
      if (t % 7 != 0 || t == 0) continue;
      wn_session *whole = session_with(ctx, model, kinds[i].policy, once, "9", 1);
      OK(ctx, wn_session_feed(ctx, whole, ids, t, 0, NULL));
      OK(ctx, wn_session_compress(ctx, whole));
      kept_of(ctx, whole, &b);
      for (int h = 0; h < HKV && kinds[i].tau != 0.5; h++) { /* F of what has gone no longer counts */
        assert_int_equal(a.count[0][h], b.count[0][h] + 1);
        assert_memory_equal(a.at[0][h], b.at[0][h], (size_t)b.count[0][h] * sizeof **a.at[0]);
      }
      wn_session_destroy(whole);
    }
    for (int l = 0; l < L; l++)
      for (int h = 0; h < HKV; h++) gone += 80 - a.count[l][h], held += a.count[l][h];
    if (gone == 0 || held <= (int64_t)L * HKV * 8) fail_msg("%s: %lld have gone", kinds[i].policy, (long long)gone);
    for (int t = 0; t < 80; t += 80 - t < 33 ? 80 - t : 33)
      OK(ctx, wn_session_feed(ctx, all, ids + t, 80 - t < 33 ? 80 - t : 33, 0, NULL));
    kept_of(ctx, all, &b);
    if (memcmp(&a, &b, sizeof a) != 0) fail_msg("%s: other tokens in pieces", kinds[i].policy);
    assert_true(wn_session_kv_bytes(one) == wn_session_kv_bytes(all));
    assert_true(wn_session_peak_bytes(one) >= most);
    struct wn_snapshot *x; /* what was held before, and where a snapshot was taken, change nothing */
    wn_session_reset(all);
    OK(ctx, wn_session_feed(ctx, all, ids, 70, 0, NULL));
    OK(ctx, wn_snapshot_take(ctx, all, 70, &x));
    OK(ctx, wn_session_feed(ctx, all, ids + 7, 9, 0, NULL));
    wn_session *fresh = session_with(ctx, model, kinds[i].policy, every, "9", 1);
    for (int k = 0; k < 2; k++) {
      wn_session *to = k ? fresh : all;
      OK(ctx, wn_snapshot_restore(x, 70, to));
      OK(ctx, wn_session_feed(ctx, to, ids + 70, 10, 0, NULL));
      kept_of(ctx, to, &b);
      if (memcmp(&a, &b, sizeof a) != 0) fail_msg("%s: other tokens from a snapshot", kinds[i].policy);
    }
    wn_snapshot_destroy(x), wn_session_destroy(fresh);
    wn_session_destroy(one), wn_session_destroy(all);
    wn_model_destroy(model);
  }
  wn_context_destroy(ctx);
}

/* Write gates that are 0 or 1: a session that lets go of a token as it leaves the window computes what whole sequences
 * compute with everything held. This is how DMS and WG-KV decode. */
static void test_sifting_by_gates(void **state) {
  (void)state;
  enum { W = 6, T = 60 };
  wn_context *ctx = context_of("cpu", 1);
  wn_model *model = model_with(ctx, "{\"write\":{\"window\":6,\"temperature\":0.01}}", L);
  int32_t ids[MOST];
  static float whole[T * V], logits[V];
  void *params;
  random_text(16, ids, MOST);
  OK(ctx, wn_model_params_open(model, &params));
  for (int t = 0; t < model->table.count; t++) {
    const struct wn_param *row = &model->table.rows[t];
    const float factor = strstr(row->name, "write.weight") ? 200 : strstr(row->name, "write.bias") ? 0 : 1;
    for (size_t i = 0; i < row->count; i++) ((float *)params)[row->offset + i] *= factor;
  }
  OK(ctx, wn_model_params_close(model, params, true));
  OK(ctx, wn_model_logits(ctx, model, ids, 1, T, NULL, whole));
  wn_session *s =
      session_with(ctx, model, "gates", "when=every,every=1,per_kv_head=true,allot=tau,window=5,tau=0.69", "9", 1);
  double worst = 0;
  for (int t = 0; t < T; t++) {
    OK(ctx, wn_session_feed(ctx, s, ids + t, 1, 0, logits));
    for (int v = 0; v < V; v++) worst = fmax(worst, fabs((double)logits[v] - (double)whole[t * V + v]));
  }
  struct kept kept;
  kept_of(ctx, s, &kept);
  int64_t held = 0;
  for (int l = 0; l < L; l++)
    for (int h = 0; h < HKV; h++) held += kept.count[l][h];
  if (worst > 1e-5) fail_msg("logits differ by %g", worst);
  if (held > L * HKV * (T - 10) || held < L * HKV * (W + 5)) fail_msg("%lld tokens held", (long long)held);
  wn_session_destroy(s);
  wn_model_destroy(model);
  wn_context_destroy(ctx);
}

/* ---- shapes ---- */

static void test_allotments(void **state) {
  (void)state;
  wn_context *ctx = context_of("cpu", 1);
  wn_model *model = model_with(ctx, NULL, L);
  int32_t ids[MOST];
  struct kept kept, grown;
  float logits[V];
  bool uneven = false;
  random_text(12, ids, MOST);
  for (int hold = 0; hold < 2; hold++) {
    const char *when = hold ? "when=hold,snapkv.rows=4" : "when=prompt,snapkv.rows=4";
    wn_session *s = session_with(ctx, model, "ada-snapkv", when, "25%", 1);
    OK(ctx, wn_session_feed(ctx, s, ids, 60, 0, NULL));
    OK(ctx, wn_session_compress(ctx, s));
    kept_of(ctx, s, &kept);
    for (int l = 0; l < L; l++) {
      assert_int_equal(kept.count[l][0] + kept.count[l][1], 2 * 15);
      assert_true(kept.count[l][0] >= 4 && kept.count[l][1] >= 4); /* the last rows' own tokens */
      uneven = uneven || kept.count[l][0] != kept.count[l][1];
    }
    for (int t = 60; t < 90; t += 15) OK(ctx, wn_session_feed(ctx, s, ids + t, 15, 0, logits));
    kept_of(ctx, s, &grown);
    for (int l = 0; l < L; l++)
      for (int h = 0; h < HKV; h++) assert_int_equal(grown.count[l][h], kept.count[l][h] + (hold ? 0 : 30));
    wn_session_destroy(s);
  }
  assert_true(uneven);
  wn_session *s = session_with(ctx, model, "pyramidkv", "when=prompt,snapkv.rows=2", "50%", 1);
  OK(ctx, wn_session_feed(ctx, s, ids, 60, 0, NULL));
  OK(ctx, wn_session_compress(ctx, s));
  kept_of(ctx, s, &kept);
  assert_int_equal(kept.count[0][0], 58); /* most 2 * 30 - 30/20 = 58.5, at most 60 - 2; the other 60 - 58 */
  assert_int_equal(kept.count[1][0], 2);
  wn_session_destroy(s);
  /* a threshold: exactly the tokens with at most that norm, and the last ones */
  wn_session *full = session_with(ctx, model, "knorm", "when=prompt,per_kv_head=true", "30", 1);
  s = session_with(ctx, model, "knorm", "when=prompt,per_kv_head=true,allot=tau,tau=1e9,window=5", "30", 1);
  OK(ctx, wn_session_feed(ctx, s, ids, 60, 0, NULL));
  OK(ctx, wn_session_compress(ctx, s));
  kept_of(ctx, s, &kept);
  assert_int_equal(kept.count[0][0], 60);
  wn_session_destroy(s);
  s = session_with(ctx, model, "knorm", "when=prompt,window=5", "tau=-1", 1);
  OK(ctx, wn_session_feed(ctx, s, ids, 60, 0, NULL));
  OK(ctx, wn_session_compress(ctx, s));
  kept_of(ctx, s, &kept);
  assert_int_equal(kept.count[1][1], 5);
  assert_int_equal(kept.at[1][1][0], 55);
  wn_session_destroy(s), wn_session_destroy(full);
  wn_model_destroy(model);
  wn_context_destroy(ctx);
}

/* ---- copies, threads ---- */

static void continue_with(wn_context *ctx, wn_session *s, const int32_t *ids, float *logits) {
  OK(ctx, wn_session_feed(ctx, s, ids, 9, 0, logits));
  for (int t = 9; t < 20; t++) OK(ctx, wn_session_feed(ctx, s, ids + t, 1, 0, logits + V));
}

static void test_copies(void **state) {
  (void)state;
  static const char *const kinds[][2] = {{"knorm", "when=prompt"},
                                         {"snapkv", "when=prompt,per_kv_head=true"},
                                         {"h2o", "when=hold"},
                                         {"ada-snapkv", "when=prompt,snapkv.rows=4"},
                                         {"keydiff", "when=every,every=5"},
                                         {"knorm", "when=every,every=5,per_kv_head=true,allot=tau,window=4,tau=1.2"},
                                         {"ada-snapkv", "when=hold,snapkv.rows=4"}};
  int32_t ids[MOST];
  float first[2 * V], second[2 * V], other[2 * V];
  random_text(13, ids, MOST);
  for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
    for (int threads = 1; threads < 4; threads += 2) {
      wn_context *ctx = context_of("cpu", threads);
      wn_model *model = model_with(ctx, NULL, L);
      wn_session *s = session_with(ctx, model, kinds[i][0], kinds[i][1], "20", 1),
                 *copy = session_with(ctx, model, kinds[i][0], kinds[i][1], "20", 1);
      OK(ctx, wn_session_feed(ctx, copy, ids, 30, 0, NULL)); /* it forgets this */
      OK(ctx, wn_session_feed(ctx, s, ids, 64, 0, NULL));
      OK(ctx, wn_session_compress(ctx, s));
      OK(ctx, wn_session_copy(ctx, copy, s, NULL));
      continue_with(ctx, s, ids + 64, first);
      continue_with(ctx, copy, ids + 64, second);
      if (memcmp(first, second, sizeof first) != 0) fail_msg("%s, %s: a copy differs", kinds[i][0], kinds[i][1]);
      if (threads == 1) memcpy(other, first, sizeof other);
      if (memcmp(first, other, sizeof first) != 0) fail_msg("%s, %s: %d threads", kinds[i][0], kinds[i][1], threads);
      struct wn_snapshot *x = NULL;
      if (!strstr(kinds[i][1], "every"))
        assert_refused(ctx, wn_snapshot_take(ctx, s, s->position, &x), WN_ERR_UNSUPPORTED, "compressed");
      wn_session_destroy(s), wn_session_destroy(copy);
      wn_model_destroy(model);
      wn_context_destroy(ctx);
    }
}

/* Generating compresses at the prompt's end; a snapshot of a prompt's beginning continues with the same bits. */
static void test_generation(void **state) {
  (void)state;
  wn_context *ctx = context_of("cpu", 1);
  wn_model *model = model_with(ctx, NULL, L);
  int32_t ids[MOST], drawn[2][10];
  struct wn_snapshot *x;
  random_text(14, ids, MOST);
  wn_session *s = session_with(ctx, model, "snapkv", "when=prompt,snapkv.rows=4", "12", 1);
  OK(ctx, wn_session_feed(ctx, s, ids, 20, 0, NULL));
  OK(ctx, wn_snapshot_take(ctx, s, 20, &x));
  for (int i = 0; i < 2; i++) {
    wn_generate_options o;
    wn_generate_options_init(&o, sizeof o);
    o.prompt = ids + 20, o.prompt_count = 40, o.max_tokens = 10, o.sampling.temperature = 0, o.drawn = drawn[i];
    if (i == 1) OK(ctx, wn_snapshot_restore(x, 20, s));
    OK(ctx, wn_session_generate(ctx, s, &o, NULL));
    struct kept kept;
    kept_of(ctx, s, &kept);
    assert_int_equal(kept.count[0][0], 12 + 9);
  }
  assert_memory_equal(drawn[0], drawn[1], sizeof drawn[0]);
  wn_snapshot_destroy(x);
  wn_session_destroy(s);
  wn_model_destroy(model);
  wn_context_destroy(ctx);
}

/* ---- refusals ---- */

static void test_refusals(void **state) {
  (void)state;
  wn_context *ctx = context_of("cpu", 1);
  wn_model *model = model_with(ctx, NULL, L);
  const wn_model_config *c = wn_model_config_get(model);
  static const struct {
    const char *policy, *options, *budget, *part;
  } bad[] = {
      {"knorm", "when=every", "9", "\"every\""},
      {"knorm", "when=prompt,every=3", "9", "\"every\""},
      {"knorm", "when=always", "25%", "25%"},
      {"knorm", "when=always,allot=pyramid", "9", "allotted"},
      {"knorm", "when=always,allot=tau,per_kv_head=true", "9", "threshold"},
      {"knorm", "when=always", "tau=1.5", "threshold"},
      {"knorm", "when=every,every=3,allot=ada,per_kv_head=true", "9", "allotted"},
      {"streaming", "when=prompt,cache_positions=true", "9", "cache_positions"},
      {"knorm", "when=prompt,allot=ada", "9", "per_kv_head"},
      {"knorm", "when=prompt,allot=ada,per_kv_head=true", "9:5", "of their own"},
      {"expected", "when=always", "9", "always"},
      {"knorm", "when=prompt,method=observed,per_kv_head=true", "9", "h2o"},
      {"knorm", "when=every,every=3,method=kvzip,per_kv_head=true", "9", "context that ends"},
      {"knorm", "when=prompt,allot=model,per_kv_head=true", "9", "kvzip"},
  };
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    wn_budgets b;
    budgets_init(&b);
    if (!wn_budgets_named(bad[i].policy, &b)) assert_int_equal(wn_policy_find(NULL, bad[i].policy, &b.policy), WN_OK);
    OK(ctx, wn_budgets_set(ctx, bad[i].options, &b));
    OK(ctx, wn_budgets_parse(ctx, c, bad[i].budget, &b));
    const wn_status status = wn_budgets_check(ctx, &b, c);
    if (status == WN_OK || !strstr(wn_context_error(ctx), bad[i].part))
      fail_msg("%s, %s: %s", bad[i].policy, bad[i].options, status ? wn_context_error(ctx) : "accepted");
    wn_budgets_clear(&b);
  }
  wn_budgets b;
  wn_session *s;
  int32_t ids[20] = {0};
  float logits[20 * V];
  budgets_init(&b);
  b.when = WN_WHEN_PROMPT;
  assert_int_equal(wn_policy_find(NULL, "knorm", &b.policy), WN_OK);
  assert_refused(ctx, wn_budgets_parse(ctx, c, "101%", &b), WN_ERR_CONFIG, "at most 100%");
  assert_refused(ctx, wn_budgets_parse(ctx, c, "0%", &b), WN_ERR_CONFIG, "above 0");
  OK(ctx, wn_budgets_parse(ctx, c, "9", &b));
  assert_refused(ctx, wn_model_logits(ctx, model, ids, 1, 20, WN_OPTIONS(wn_logits_options, .budgets = &b), logits),
                 WN_ERR_UNSUPPORTED, "no place where a context ends");
  OK(ctx, wn_session_create(ctx, model, WN_OPTIONS(wn_session_options, .capacity = MOST, .budgets = &b), &s));
  assert_refused(ctx, wn_session_compress(ctx, s), WN_ERR_ARGUMENT, "nothing has been fed");
  wn_session_destroy(s);
  s = session_with(ctx, model, "ada-snapkv", "when=prompt", "9", 2);
  random_text(4, ids, 20);
  OK(ctx, wn_session_feed(ctx, s, ids, 10, 0, NULL));
  assert_refused(ctx, wn_session_compress(ctx, s), WN_ERR_UNSUPPORTED, "expected one");
  wn_session_destroy(s);
  wn_budgets_clear(&b);
  wn_model_destroy(model);
  wn_context_destroy(ctx);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_scores),         cmocka_unit_test(test_kvzip),
      cmocka_unit_test(test_reaches_logits), cmocka_unit_test(test_whole_budget),
      cmocka_unit_test(test_memory),         cmocka_unit_test(test_after),
      cmocka_unit_test(test_every),          cmocka_unit_test(test_together),
      cmocka_unit_test(test_sifting),        cmocka_unit_test(test_sifting_by_gates),
      cmocka_unit_test(test_allotments),     cmocka_unit_test(test_copies),
      cmocka_unit_test(test_generation),     cmocka_unit_test(test_refusals),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
