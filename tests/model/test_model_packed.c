/* A model some of whose matrices are quantised, beside a copy in float: logits, decoding and loss agree. Everything
 * that needs float weights says so. */
#include "models.h"
#include "packed_weights.h"
#include "support.h"

#include "model/layer.h"
#include "train/trainer.h"
#include "winnow/embed.h"
#include "winnow/kv.h"
#include "policies.h"

static wn_model_config config(bool tied) {
  wn_model_config c;
  wn_model_config_init(&c);
  c.vocab_size = 50, c.context = 16, c.layers = 2, c.width = 256, c.heads = 4, c.kv_heads = 2, c.head_size = 64;
  c.ffn_width = 64, c.position = WN_POS_ROPE, c.tied = tied, c.init_std = 0.05;
  return c;
}

enum { MOST = 32 };
struct pair {
  struct wn_model *packed, *dense;
  struct packed_weights w[MOST];
};

/* Types of a matrix's parts. The last set needs rows of whole blocks of 256. */
enum { SETS = 3 };
static const wn_gguf_type types[SETS][3] = {{WN_GGUF_Q4_1, WN_GGUF_Q8_0, WN_GGUF_Q5_0},
                                            {WN_GGUF_Q4_0, WN_GGUF_F16, WN_GGUF_BF16},
                                            {WN_GGUF_Q4_K, WN_GGUF_Q6_K, WN_GGUF_Q5_K}};
static int parts_of(const char *name) {
  return strstr(name, "qkv") ? 3 : strstr(name, "ffn.in") ? 2 : 1;
}

static int closed;
static void close_source(void *source) {
  closed += *(int *)source;
}

/* All matrices but attn.out of layer 0. Random blocks hold large numbers: the norms that follow keep results in bounds.
 */
static void make(struct pair *p, wn_context *ctx, bool tied, int set) {
  static int one = 1;
  wn_model_config c = config(tied);
  memset(p, 0, sizeof *p);
  OK(ctx, wn_model_create_dtype(ctx, &c, 3, WN_F32, &p->dense));
  const struct wn_param_table *table = &p->dense->table;
  struct wn_packed rows[MOST] = {{0}};
  void *dense, *packed;
  OK(ctx, wn_model_params_open(p->dense, &dense));
  assert_true(table->count <= MOST);
  for (int i = 0; i < table->count; i++) {
    const struct wn_param *row = &table->rows[i];
    if (row->ndim != 2 || !strcmp(row->name, "layers.0.attn.out.weight")) continue;
    packed_weights_make(&p->w[i], row->shape[0], row->shape[1], parts_of(row->name),
                        types[row->shape[1] % 256 ? set % 2 : set], (uint64_t)i);
    rows[i] = p->w[i].packed;
    memcpy((float *)dense + row->offset, p->w[i].dense, row->count * sizeof(float));
  }
  OK(ctx, wn_model_allocate_packed(ctx, &c, rows, &p->packed));
  p->packed->source = &one, p->packed->source_close = close_source;
  OK(ctx, wn_model_params_open(p->packed, &packed));
  for (int i = 0; i < table->count; i++)
    if (!rows[i].count)
      memcpy((float *)packed + p->packed->table.rows[i].offset, (const float *)dense + table->rows[i].offset,
             table->rows[i].count * sizeof(float));
  OK(ctx, wn_model_params_close(p->packed, packed, true));
  OK(ctx, wn_model_params_close(p->dense, dense, true));
}

static void clear(struct pair *p) {
  const int before = closed;
  wn_model_destroy(p->packed);
  assert_int_equal(closed, before + 1);
  wn_model_destroy(p->dense);
  for (int i = 0; i < MOST; i++) packed_weights_clear(&p->w[i]);
}

/* The root mean square of the difference, relative to that of the values. */
static double apart(const float *a, const float *b, size_t n) {
  double difference = 0, all = 0;
  for (size_t i = 0; i < n; i++) {
    difference += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
    all += (double)b[i] * (double)b[i];
  }
  assert_true(all > 0);
  return sqrt(difference / all);
}

/* On the reference only the order of double sums differs. On cpu, activations are rounded to 8 bits nine times on the
 * way, each time by half a per cent of their root mean square, and the large logits of random weights amplify that. A
 * wrong block, scale or row gives an error of about 1. */
static void check(const char *backend, bool tied, int set, double limit) {
  wn_context *ctx = context_of(backend, 2);
  struct pair p;
  make(&p, ctx, tied, set);
  const int64_t T = 12, V = p.dense->config.vocab_size;
  struct tokens x;
  tokens_of(&x, 2, T, V, false);
  const size_t n = (size_t)(2 * T * V);
  float *logits[3];
  for (int i = 0; i < 3; i++) assert_non_null(logits[i] = malloc(n * sizeof(float)));
  OK(ctx, wn_model_logits(ctx, p.packed, x.ids, 2, T, NULL, logits[0]));
  OK(ctx, wn_model_logits(ctx, p.dense, x.ids, 2, T, NULL, logits[1]));
  const double whole = apart(logits[0], logits[1], n);
  if (!(whole <= limit)) fail_msg("%s: packed logits are %g apart, limit %g", backend, whole, limit);
  /* A prompt of nine rows, then token by token. */
  wn_session *session = NULL;
  OK(ctx, wn_session_create(ctx, p.packed, WN_OPTIONS(wn_session_options, .capacity = T), &session));
  OK(ctx, wn_session_feed(ctx, session, x.ids, 9, 0, logits[2] + 8 * V));
  for (int64_t t = 9; t < T; t++) OK(ctx, wn_session_feed(ctx, session, x.ids + t, 1, 0, logits[2] + t * V));
  wn_session_destroy(session);
  const double steps = apart(logits[2] + 8 * V, logits[1] + 8 * V, (size_t)((T - 8) * V));
  if (!(steps <= limit)) fail_msg("%s: decoding packed is %g apart, limit %g", backend, steps, limit);
  assert_int_equal(wn_model_parameter_count(p.packed), wn_model_parameter_count(p.dense));
  for (int i = 0; i < 3; i++) free(logits[i]);
  float states[2][256];
  for (int dense = 0; dense < 2; dense++) {
    OK(ctx,
       wn_session_create(ctx, dense ? p.dense : p.packed, WN_OPTIONS(wn_session_options, .capacity = T), &session));
    OK(ctx, wn_session_embed(ctx, session, x.ids, T, NULL, states[dense]));
    wn_session_destroy(session);
  }
  const double embedded = apart(states[0], states[1], 256);
  if (!(embedded <= limit))
    fail_msg("%s: the packed model's embedding is %g apart, limit %g", backend, embedded, limit);
  clear(&p);
  wn_context_destroy(ctx);
}

static void test_ref(void **state) {
  (void)state;
  for (int set = 0; set < SETS; set++) check("ref", true, set, 1e-5);
  check("ref", false, 0, 1e-5);
}
static void test_cpu(void **state) {
  (void)state;
  check("cpu", true, 0, 0.1);
  check("cpu", false, 0, 0.1);
}

/* A cache in half floats: half the bytes, and logits as close as the 11 bits of each key and value allow, also under
 * budgets. */
static void test_half_cache(void **state) {
  (void)state;
  wn_context *ctx = context_of("cpu", 2);
  wn_model_config c = config(true);
  struct wn_model *model = model_of(ctx, &c, WN_F32);
  const int64_t T = 16, V = c.vocab_size;
  struct tokens x;
  tokens_of(&x, 2, T, V, false);
  wn_budgets budgets;
  budgets_init(&budgets);
  budgets.policy = WN_POLICY_STREAMING, budgets.sinks = 1;
  assert_ok(ctx, wn_budgets_parse(ctx, wn_model_config_get(model), "6", &budgets));
  for (int evicting = 0; evicting < 8; evicting++) {
    if (evicting == 2) budgets.policy = WN_POLICY_H2O, budgets.recent = 0.5;
    if (evicting == 3) budgets.policy = WN_POLICY_TOVA;
    if (evicting == 4) { /* selections: the selecting head's key is read separately, from the second key-value head */
      wn_model_destroy(model);
      c.attention.selective = (wn_selective_config){PAPER, .head = 2};
      c.attention.selective.mem.eps = 0.1, c.attention.selective.mem.tau = 1;
      model = model_of(ctx, &c, WN_F32);
      budgets.policy = WN_POLICY_SELECTIVE;
    }
    if (evicting >= 5) { /* budgets for each key-value head, then of different sizes */
      wn_model_destroy(model);
      c.attention.selective = (wn_selective_config){PAPER, .per_kv_head = true};
      c.attention.selective.mem.eps = 0.1, c.attention.selective.mem.tau = 1;
      model = model_of(ctx, &c, WN_F32);
      budgets.policy = evicting == 6 ? WN_POLICY_TOVA : WN_POLICY_SELECTIVE;
      budgets.per_kv_head = evicting == 6;
      if (evicting == 7) assert_ok(ctx, wn_budgets_parse(ctx, wn_model_config_get(model), "4:7", &budgets));
    }
    float *logits[2];
    size_t bytes[2];
    for (int half = 0; half < 2; half++) {
      wn_session *session = NULL;
      const wn_session_options options = {.size = sizeof options,
                                          .sequences = 2,
                                          .capacity = T,
                                          .budgets = evicting ? &budgets : NULL,
                                          .cache = half ? WN_CACHE_HALF : WN_CACHE_FLOAT};
      OK(ctx, wn_session_create(ctx, model, &options, &session));
      assert_non_null(logits[half] = malloc((size_t)(2 * V) * sizeof(float)));
      int32_t ids[32];
      for (int b = 0; b < 2; b++) memcpy(ids + b * 10, x.ids + b * T, 10 * sizeof *ids);
      OK(ctx, wn_session_feed(ctx, session, ids, 10, 0, logits[half]));
      for (int64_t t = 10; t < T; t++) {
        for (int b = 0; b < 2; b++) ids[b] = x.ids[b * T + t];
        OK(ctx, wn_session_feed(ctx, session, ids, 1, 0, logits[half]));
      }
      bytes[half] = wn_session_kv_bytes(session);
      wn_session_destroy(session);
    }
    const double error = apart(logits[1], logits[0], (size_t)(2 * V));
    if (!(error > 0 && error < 0.01)) fail_msg("half floats, %d: logits are %g apart", evicting, error);
    if (!evicting) assert_int_equal(bytes[1] * 2, bytes[0]);
    assert_true(bytes[1] < bytes[0]);
    free(logits[0]), free(logits[1]);
  }
  wn_budgets_clear(&budgets);
  wn_model_destroy(model);
  /* Features that do not work with it. */
  c.attention.threshold.enabled = true, c.attention.threshold.tau = 0.9;
  model = model_of(ctx, &c, WN_F32);
  wn_session *session = NULL;
  const wn_session_options options = {.size = sizeof options, .sequences = 1, .cache = WN_CACHE_HALF};
  assert_refused(ctx, wn_session_create(ctx, model, &options, &session), WN_ERR_UNSUPPORTED,
                 "cannot be combined with threshold");
  wn_model_destroy(model);
  wn_context_destroy(ctx);
}

/* "auto": half floats if the file's matrices are quantised and no option prevents it. */
static void test_cache_format(void **state) {
  (void)state;
  for (int n = 0; n < 2; n++) {
    wn_context *ctx = context_of(n ? "ref" : "cpu", 1);
    struct pair p;
    make(&p, ctx, true, 0);
    size_t bytes[2][WN_CACHE_COUNT];
    for (int packed = 0; packed < 2; packed++)
      for (int f = 0; f < WN_CACHE_COUNT; f++) {
        wn_session *session = NULL;
        const wn_session_options options = {.size = sizeof options, .sequences = 1, .cache = (wn_cache_format)f};
        struct wn_model *model = packed ? p.packed : p.dense;
        OK(ctx, wn_session_create(ctx, model, &options, &session));
        bytes[packed][f] = wn_session_kv_bytes(session);
        wn_session_destroy(session);
      }
    assert_int_equal(bytes[0][WN_CACHE_AUTO], bytes[0][WN_CACHE_FLOAT]);
    assert_int_equal(bytes[1][WN_CACHE_AUTO], bytes[1][WN_CACHE_HALF]);
    assert_int_equal(2 * bytes[1][WN_CACHE_HALF], bytes[1][WN_CACHE_FLOAT]);
    if (!n) { /* prevented: refused by name if asked for; else float */
      wn_budgets budgets;
      budgets_init(&budgets);
      budgets.policy = WN_POLICY_STREAMING, budgets.sinks = 1, budgets.cache_positions = true;
      assert_ok(ctx, wn_budgets_parse(ctx, wn_model_config_get(p.packed), "6", &budgets));
      assert_int_equal(wn_cache_format_resolve(ctx, p.packed, NULL, WN_CACHE_AUTO), WN_CACHE_HALF);
      assert_int_equal(wn_cache_format_resolve(ctx, p.packed, &budgets, WN_CACHE_AUTO), WN_CACHE_FLOAT);
      wn_session *session = NULL;
      wn_session_options options = {
          .size = sizeof options, .sequences = 1, .budgets = &budgets, .cache = WN_CACHE_HALF};
      assert_refused(ctx, wn_session_create(ctx, p.packed, &options, &session), WN_ERR_UNSUPPORTED,
                     "rotation by cache positions");
      options.cache = (wn_cache_format)WN_CACHE_COUNT;
      assert_refused(ctx, wn_session_create(ctx, p.packed, &options, &session), WN_ERR_ARGUMENT, "format 5");
      wn_budgets_clear(&budgets);
    }
    clear(&p);
    wn_context_destroy(ctx);
  }
}

static void test_refused(void **state) {
  (void)state;
  wn_context *ctx = context_of("cpu", 1);
  struct pair p;
  make(&p, ctx, true, 0);
  char dir[512];
  make_folder(dir);
  assert_refused(ctx, wn_model_save(ctx, p.packed, NULL, dir), WN_ERR_UNSUPPORTED, "embed.weight is packed (Q4_1)");
  remove_folder(dir);
  wn_safetensors_entry e;
  assert_refused(ctx, wn_model_tensor_at(p.packed, 0, &e), WN_ERR_UNSUPPORTED, "embed.weight is packed");
  assert_ok(ctx, wn_model_tensor_at(p.packed, 1, &e));
  wn_workspace *ws = NULL;
  assert_refused(ctx,
                 wn_workspace_create(ctx, p.packed, 1, 4,
                                     &(struct wn_workspace_options){.backward = true, .activation_dtype = WN_F32}, &ws),
                 WN_ERR_UNSUPPORTED, "training needs weights as floats");
  wn_recipe recipe;
  wn_recipe_init(&recipe);
  recipe.train.batch = 1;
  wn_trainer *trainer = NULL;
  assert_refused(ctx, wn_trainer_create(ctx, p.packed, &recipe.train, &trainer), WN_ERR_UNSUPPORTED,
                 "is packed (Q4_1)");
  /* Matrices that cannot be quantised, or not in this form. */
  wn_model_config c = config(true);
  struct wn_packed rows[MOST] = {{0}};
  struct wn_model *model = NULL;
  const int norm = wn_param_find(&p.dense->table, "final_norm.gain");
  rows[norm] = p.w[0].packed;
  assert_refused(ctx, wn_model_allocate_packed(ctx, &c, rows, &model), WN_ERR_UNSUPPORTED, "final_norm.gain cannot be");
  memset(rows, 0, sizeof rows);
  rows[0] = p.w[0].packed;
  rows[0].part[0].rows--;
  assert_refused(ctx, wn_model_allocate_packed(ctx, &c, rows, &model), WN_ERR_SHAPE, "49 packed rows, expected 50");
  rows[0] = p.w[0].packed;
  c.width = 264;
  assert_refused(ctx, wn_model_allocate_packed(ctx, &c, rows, &model), WN_ERR_SHAPE, "no whole blocks of Q4_1");
  c = config(true);
  c.position = WN_POS_NONE;
  c.recurrence = 8;
  c.attention.relative.enabled = true;
  assert_refused(ctx, wn_model_allocate_packed(ctx, &c, rows, &model), WN_ERR_UNSUPPORTED, "segment recurrence");
  assert_null(model);
  clear(&p);
  wn_context_destroy(ctx);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_ref),          cmocka_unit_test(test_cpu),     cmocka_unit_test(test_half_cache),
      cmocka_unit_test(test_cache_format), cmocka_unit_test(test_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
